"""Builds talker prompts in the layout of the official package.

The prompt of every task is

    [instructions] [<|im_start|> assistant newline] [language, speaker, control tokens + text padding] [text and codes]

Each later input is the sum of the last frame's code embeddings and one text row. With non-streaming text, the prompt
has all the text and the rows are padding; with streaming text, every frame consumes one token of it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from ..contract.messages import SpeechRequest
from .config import ModelConfig, ModelType
from .describe import TASK_TYPES, languages, supports_instructions
from .talker import Talker
from .tokenizer import Tokenizer


class PromptError(ValueError):
    """The checkpoint cannot serve a request; `param` is the offending request field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class Voice(msgspec.Struct, frozen=True):
    """The reference voice of a Base request."""

    embedding: Tensor
    """The speaker encoder's x-vector: [hidden_size]."""
    codes: Tensor | None = None
    """The codes of the reference audio [frames, 16]; None for `x_vector_only`."""


class Prompt(NamedTuple):
    """A talker prompt, and the text rows for the frames after it."""

    embeds: Tensor
    """[length, hidden_size]."""
    text_rows: Tensor
    """[count, hidden_size]: added to the embeddings of frames 0, 1, ..."""
    pad_row: Tensor
    """[hidden_size]: added to the embeddings of all later frames."""

    def to(self, device: torch.device) -> Prompt:
        """Returns the prompt on a device."""
        return Prompt(*(tensor.to(device) for tensor in self))

    def text_row(self, frame: int) -> Tensor:
        """Returns the text row [hidden_size] that is added to the embeddings of frame `frame`."""
        return self.text_rows[frame] if frame < len(self.text_rows) else self.pad_row


def build_prompt(
    request: SpeechRequest, talker: Talker, tokenizer: Tokenizer, config: ModelConfig, voice: Voice | None = None
) -> Prompt:
    """Builds the prompt of a request; Base checkpoints, and only they, need `voice`.

    Raises `PromptError` naming the request field that the checkpoint does not support.
    """
    if request.task_type is not (task := TASK_TYPES[config.tts_model_type]):
        raise PromptError("task_type", f"this checkpoint does {task}, not {request.task_type}")
    return _Builder(request, talker, tokenizer, config, voice).build()


class _Builder:
    """Builds the prompt of one request."""

    def __init__(
        self,
        request: SpeechRequest,
        talker: Talker,
        tokenizer: Tokenizer,
        config: ModelConfig,
        voice: Voice | None,
    ) -> None:
        self.request, self.talker, self.tokenizer = request, talker, tokenizer
        self.config, self.codec, self.voice = config, config.talker_config, voice
        if (voice is None) is (config.tts_model_type is ModelType.BASE):
            wanted = "is needed by" if voice is None else "is only for"
            raise PromptError("ref_audio", f"a reference voice {wanted} a Base checkpoint")
        special = self._text([config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id])
        self.pad, self.bos, self.eos = torch.split(special, 1)

    def build(self) -> Prompt:
        """Returns the prompt."""
        ids = self.tokenizer.assistant(self.request.text)
        if not ids.text:
            raise PromptError("text", "is empty")
        text = torch.cat((self._text(ids.text), self.eos))
        start = [self._instructions(), self._text(ids.role), self._control_tokens()]
        if self.voice is not None and not self.request.x_vector_only:
            body, rest = self._continue_reference(self.voice, ids.text)
        elif self.request.non_streaming_text:
            body = torch.cat((text + self._codec(self.codec.codec_pad_id), self.pad + self._codec_bos))
            rest = text[:0]
        else:
            body, rest = text[:1] + self._codec_bos, text[1:]
        return Prompt(torch.cat((*start, body)), rest, self.pad[0])

    def _text(self, ids: list[int]) -> Tensor:
        return self.talker.embed_text(torch.tensor(ids, dtype=torch.int64, device=self.talker.device))

    def _codec(self, *ids: int) -> Tensor:
        return self.talker.embed_codec(torch.tensor(ids, device=self.talker.device))

    @property
    def _codec_bos(self) -> Tensor:
        return self._codec(self.codec.codec_bos_id)

    def _instructions(self) -> Tensor:
        if not self.request.instructions:
            return self.pad[:0]
        if not supports_instructions(self.config):
            raise PromptError("instructions", "this checkpoint does not follow instructions")
        return self._text(self.tokenizer.user(self.request.instructions))

    def _control_tokens(self) -> Tensor:
        """Language, speaker and codec padding, added to text padding; the last one is added to the text's BOS."""
        codec, language = self.codec, self._language()
        if language is None:
            think = self._codec(codec.codec_nothink_id, codec.codec_think_bos_id, codec.codec_think_eos_id)
        else:
            think = self._codec(codec.codec_think_id, codec.codec_think_bos_id, language, codec.codec_think_eos_id)
        control = torch.cat((think, self._speaker(), self._codec(codec.codec_pad_id)))
        return control + torch.cat((self.pad.expand(len(control) - 1, -1), self.bos))

    def _language(self) -> int | None:
        """The language's id, or None for auto. With auto or Chinese, a dialect speaker speaks its dialect."""
        language = self.request.language.lower()
        if language not in (accepted := languages(self.config)):
            raise PromptError("language", f"{self.request.language!r} is unknown; accepted: {', '.join(accepted)}")
        if self.request.voice and language in ("auto", "chinese"):
            language = self.codec.dialect(self.request.voice.lower()) or language
        return None if language == "auto" else self.codec.codec_language_id[language]

    def _speaker(self) -> Tensor:
        """The speaker's embedding [1, hidden_size], or [0, hidden_size] for VoiceDesign."""
        if self.voice is not None:
            embedding: Tensor = self.voice.embedding.to(self.pad)
            return embedding[None]
        if self.config.tts_model_type is ModelType.VOICE_DESIGN:
            return self.pad[:0]
        speakers = self.codec.speakers
        if not self.request.voice or self.request.voice.lower() not in speakers:
            raise PromptError("voice", f"{self.request.voice!r} is unknown; accepted: {', '.join(speakers)}")
        return self._codec(speakers[self.request.voice.lower()])

    def _continue_reference(self, voice: Voice, text_ids: list[int]) -> tuple[Tensor, Tensor]:
        """Returns the reference with the text to speak as its continuation (in-context learning), and the text rows."""
        if voice.codes is None or not len(voice.codes):
            raise PromptError("ref_audio", "the reference has no codes")
        if not self.request.reference_text:
            raise PromptError(
                "ref_text", "the transcript of the reference audio is needed unless x_vector_only_mode is true"
            )
        reference_ids = self.tokenizer.reference(self.request.reference_text)
        text = torch.cat((self._text(reference_ids + text_ids), self.eos))
        codes = torch.cat((self._codec_bos, self.talker.embed_frame(voice.codes.to(self.talker.device))))
        if self.request.non_streaming_text:
            return torch.cat((text + self._codec(self.codec.codec_pad_id), codes + self.pad)), text[:0]
        aligned = text[: len(codes)]
        padding = self.pad.expand(len(codes) - len(aligned), -1)
        return torch.cat((aligned, padding)) + codes, text[len(codes) :]
