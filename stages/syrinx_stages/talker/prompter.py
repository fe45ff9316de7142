"""From a request, and its reference audio if it has one, to a talker prompt."""

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

LEAST_FRAMES = 13
"""A second of speech: a prompt that leaves room for less is refused."""

_API_NAMES = {"text": "input"}
"""What the public API calls a request's field, where it differs."""


class Prompter:
    """Builds prompts for one checkpoint. Reads weights alone, so any thread may call it."""

    def __init__(self, checkpoint: Checkpoint, talker: Talker, most: int | None = None) -> None:
        """`most`: positions that a request may have, if the engine has places for fewer than the model.

        Raises `CheckpointError` if a part of the checkpoint does not fit.
        """
        positions = talker.config.max_position_embeddings
        self._limit = positions if most is None else min(most, positions)
        self._config = checkpoint.config
        self._talker = talker
        self._tokenizer = checkpoint.load_tokenizer()
        self._clones = checkpoint.config.tts_model_type is ModelType.BASE
        if self._clones:
            self._speaker_encoder = checkpoint.load_speaker_encoder()
            try:
                self._codec_encoder = checkpoint.load_codec_encoder()
            except ImportError as error:
                raise CheckpointError(
                    f"{checkpoint.directory}: a Base checkpoint cannot be used here: {error}"
                ) from None

    def build(self, request: SpeechRequest, reference: bytes | None) -> tuple[Prompt, bytes | None]:
        """The prompt, and the reference's codes (int16 little-endian) for the codec where it decodes them first.

        reference: 16-bit PCM at 24 kHz. Raises `RequestError`.
        """
        voice = None if reference is None else self._voice(request, reference)
        try:
            prompt = build_prompt(request, self._talker, self._tokenizer, self._config, voice)
        except PromptError as error:
            raise RequestError(str(error), _API_NAMES.get(error.param, error.param)) from None
        if len(prompt.embeds) + LEAST_FRAMES > self._limit:
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
        # With the x-vector alone the reference is not continued, so neither stage needs its codes.
        codes = None if request.x_vector_only else self._codec_encoder.encode(samples)
        return Voice(embedding, codes)
