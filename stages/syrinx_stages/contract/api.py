"""The body of `POST /v1/audio/speech`: names, types and ranges of its fields."""

from typing import Annotated

import msgspec
from msgspec import Meta

SPEECH_STREAM_PATH = "/v1/audio/speech/stream"
"""The WebSocket for text that arrives in pieces."""
NARI_STREAM_PATH = "/v1/audio/speech/ws"
"""The same in the messages of Nari's server."""

MAX_WORD, MAX_RESPELLING = 64, 128
"""Characters of an entry of a lexicon, and of its respelling."""
MAX_LEXICON = 100
"""Entries in the lexicon of a request."""
LexiconWord = Annotated[
    str, Meta(max_length=MAX_WORD, pattern=r"^\S(?:[^\x00-\x1f\x7f-\x9f]*\S)?$", description="a word or a phrase")
]
Respelling = Annotated[
    str,
    Meta(
        max_length=MAX_RESPELLING,
        pattern=r"^[^\x00-\x1f\x7f-\x9f]*\S[^\x00-\x1f\x7f-\x9f]*$",
        description="how it is spoken",
    ),
]
_LEXICON = (
    f"up to {MAX_LEXICON} words or phrases of up to {MAX_WORD} characters in one line, with respellings of up to "
    f"{MAX_RESPELLING}"
)
_Temperature = Annotated[float, Meta(ge=0, le=2)]
_TopK = Annotated[int, Meta(ge=-1, le=100_000)]
_TopP = Annotated[float, Meta(gt=0, le=1)]


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a request and a checkpoint's `generation_config.json` share. A null field counts as absent."""

    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: _Temperature | None = None
    top_k: _TopK | None = None
    top_p: _TopP | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.5, le=5)] | None = None
    subtalker_temperature: _Temperature | None = None
    subtalker_top_k: _TopK | None = None
    subtalker_top_p: _TopP | None = None


class VoiceId(msgspec.Struct, frozen=True):
    """OpenAI's object form of `voice`, and an entry of a list of voices, whose other fields describe it."""

    id: str


class SpeechFields(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields and those of Qwen3-TTS."""

    input: str
    model: str | None = None
    voice: str | VoiceId | None = None
    instructions: str | None = None
    response_format: str | None = None
    sample_rate: Annotated[int, Meta(ge=8_000, le=48_000)] | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None
    stream_format: str | None = None
    stream: bool | None = None
    task_type: str | None = None
    language: str | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    speaker_embedding: (
        Annotated[list[float], Meta(min_length=1, max_length=16_384, description="a list of numbers")] | None
    ) = None
    non_streaming_mode: bool | None = None
    seed: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    normalize: bool | None = None
    lexicon: Annotated[dict[LexiconWord, Respelling], Meta(max_length=MAX_LEXICON, description=_LEXICON)] | None = None
    runaway_guard: bool | None = None
