"""What the talker is prompted with: the official package's layout of text, voice, language and instructions.

The prompt of every task is

    [instructions] [<|im_start|> assistant newline] [language, speaker, marks over text padding] [text and codes]

and each later input is the sum of the last frame's code embeddings and one text row: with non-streaming text all text
is in the prompt and the rows are padding; with streaming text one token arrives with every frame.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import torch
from torch import Tensor

from ..contract.messages import SpeechRequest
from .config import ModelConfig, ModelType
from .describe import TASK_TYPES, languages, supports_instructions
from .talker import Talker
from .tokenizer import Tokenizer


class PromptError(ValueError):
    """A request that this checkpoint cannot speak; `param` is the request's field to blame."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class Voice(msgspec.Struct, frozen=True):
    """The reference voice of a Base request."""

    embedding: Tensor
    """What the speaker encoder heard: [hidden_size]."""
    codes: Tensor | None = None
    """The reference audio's codes [frames, 16]; not needed for `x_vector_only`."""


class Prompt:
    """A talker prompt, and the text that arrives while it speaks."""

    def __init__(self, embeds: Tensor, text_rows: Tensor, pad_row: Tensor) -> None:
        self.embeds = embeds
        """[length, hidden_size]."""
        self.text_rows = text_rows
        """[count, hidden_size]: added to the embeddings of frames 0, 1, ..."""
        self.pad_row = pad_row
        """[hidden_size]: added once the text rows are used up."""

    def __iter__(self) -> Iterator[Tensor]:
        """Its tensors."""
        return iter((self.embeds, self.text_rows, self.pad_row))

    def to(self, device: torch.device) -> Prompt:
        """The same on a device."""
        return Prompt(*(tensor.to(device) for tensor in self))

    def text_row(self, frame: int) -> Tensor:
        """What to add to frame `frame`'s code embeddings: [hidden_size]."""
        return self.text_rows[frame] if frame < len(self.text_rows) else self.pad_row


def build_prompt(
    request: SpeechRequest, talker: Talker, tokenizer: Tokenizer, config: ModelConfig, voice: Voice | None = None
) -> Prompt:
    """The prompt of a request. `voice` is needed for Base, and for Base only.

    Raises `PromptError` naming the request's field that does not fit the checkpoint.
    """
    if request.task_type is not (task := TASK_TYPES[config.tts_model_type]):
        raise PromptError("task_type", f"this checkpoint speaks {task}, not {request.task_type}")
    return _Builder(request, talker, tokenizer, config, voice).build()


class _Builder:
    """One request's prompt, part by part."""

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
        marks = self._text([config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id])
        self.pad, self.bos, self.eos = torch.split(marks, 1)

    def build(self) -> Prompt:
        """The whole prompt."""
        ids = self.tokenizer.assistant(self.request.text)
        if not ids.text:
            raise PromptError("text", "there is nothing to speak")
        text = torch.cat((self._text(ids.text), self.eos))
        start = [self._instructions(), self._text(ids.role), self._marks()]
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

    def _marks(self) -> Tensor:
        """Language, speaker and padding over text padding, and text's begin mark over the last."""
        codec, language = self.codec, self._language()
        if language is None:
            think = self._codec(codec.codec_nothink_id, codec.codec_think_bos_id, codec.codec_think_eos_id)
        else:
            think = self._codec(codec.codec_think_id, codec.codec_think_bos_id, language, codec.codec_think_eos_id)
        marks = torch.cat((think, self._speaker(), self._codec(codec.codec_pad_id)))
        return marks + torch.cat((self.pad.expand(len(marks) - 1, -1), self.bos))

    def _language(self) -> int | None:
        """The language's id; a dialect speaker left to itself, or told to speak Chinese, speaks its dialect."""
        language = self.request.language.lower()
        if language not in (accepted := languages(self.config)):
            raise PromptError("language", f"{self.request.language!r} is unknown; accepted: {', '.join(accepted)}")
        if self.request.voice and language in ("auto", "chinese"):
            language = self.codec.dialect(self.request.voice.lower()) or language
        return None if language == "auto" else self.codec.codec_language_id[language]

    def _speaker(self) -> Tensor:
        """The speaker's embedding [1, hidden_size]; VoiceDesign has none [0, hidden_size]."""
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
        """Reference text and codes, then the text to speak as their continuation ("in-context learning")."""
        if voice.codes is None or not len(voice.codes):
            raise PromptError("ref_audio", "the reference has no codes")
        if not self.request.reference_text:
            raise PromptError("ref_text", "the reference audio's text is needed unless x_vector_only_mode is true")
        reference_ids = self.tokenizer.reference(self.request.reference_text)
        text = torch.cat((self._text(reference_ids + text_ids), self.eos))
        codes = torch.cat((self._codec_bos, self.talker.embed_frame(voice.codes.to(self.talker.device))))
        if self.request.non_streaming_text:
            return torch.cat((text + self._codec(self.codec.codec_pad_id), codes + self.pad)), text[:0]
        beside = text[: len(codes)]
        padding = self.pad.expand(len(codes) - len(beside), -1)
        return torch.cat((beside, padding)) + codes, text[len(codes) :]
