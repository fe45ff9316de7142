"""Builds talker prompts from requests and their reference audio."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CheckpointError, ModelType
from syrinx_stages.model.prompt import Prompt, PromptError, Voice, build_prompt
from syrinx_stages.model.talker import Talker
from syrinx_stages.runtime.errors import RequestError

MIN_FRAMES = 13
"""One second of speech. A prompt that leaves room for fewer frames is rejected."""

_API_NAMES = {"text": "input"}
"""Public names of request fields, where they differ."""


class Prompter:
    """Builds prompts for one checkpoint. Thread-safe: it only reads weights."""

    def __init__(self, checkpoint: Checkpoint, talker: Talker, max_positions: int | None = None) -> None:
        """Loads the tokenizer and, for a Base checkpoint, the reference encoders.

        max_positions: the engine's limit per request, if it is lower than the model's.
        Raises CheckpointError if a part of the checkpoint is invalid.
        """
        model_limit = talker.config.max_position_embeddings
        self._limit = model_limit if max_positions is None else min(max_positions, model_limit)
        self._config = checkpoint.config
        self._talker = talker
        self._tokenizer = checkpoint.load_tokenizer()
        self._clones = checkpoint.config.tts_model_type is ModelType.BASE
        if self._clones:
            self._speaker_encoder = checkpoint.load_speaker_encoder()
            try:
                self._codec_encoder = checkpoint.load_codec_encoder()
            except ImportError as error:
                raise CheckpointError(f"{checkpoint.directory}: cannot load a Base checkpoint: {error}") from None

    def build(self, request: SpeechRequest, reference: bytes | None) -> tuple[Prompt, bytes | None]:
        """Returns the prompt and, if the codec must decode them first, the reference's codes.

        reference: 16-bit PCM at the family's sample rate. The codes are [frames, 16] int16, little-endian.
        Raises RequestError.
        """
        voice = None if reference is None else self._voice(request, reference)
        try:
            prompt = build_prompt(request, self._talker, self._tokenizer, self._config, voice)
        except PromptError as error:
            raise RequestError(str(error), _API_NAMES.get(error.param, error.param)) from None
        if len(prompt.embeds) + MIN_FRAMES > self._limit:
            message = (
                f"input: the prompt has {len(prompt.embeds)} positions of the model's {self._limit}; send shorter text"
            )
            raise RequestError(message, "input")
        codes = None if voice is None or voice.codes is None else voice.codes.to(torch.int16).cpu().numpy().tobytes()
        return prompt, codes

    def _voice(self, request: SpeechRequest, reference: bytes) -> Voice:
        if not self._clones:
            raise RequestError("ref_audio: this checkpoint does not clone voices", "ref_audio")
        samples = torch.from_numpy(np.frombuffer(reference, "<i2").astype(np.float32) / 32768)
        embedding: Tensor = self._speaker_encoder.embed(samples)
        # With the speaker embedding alone, the reference is not continued, so neither stage needs its codes.
        codes = None if request.x_vector_only else self._codec_encoder.encode(samples)
        return Voice(embedding, codes)
