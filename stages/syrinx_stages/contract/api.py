"""The body of `POST /v1/audio/speech`: names, types and ranges of its fields."""

from typing import Annotated

import msgspec
from msgspec import Meta

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopK = Annotated[int, Meta(ge=0, le=100_000)]
TopP = Annotated[float, Meta(gt=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(ge=0.5, le=5)]
MaxNewTokens = Annotated[int, Meta(ge=1)]


class VoiceId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's object form of `voice`."""

    id: str


class SpeechFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields and those of Qwen3-TTS. A null field counts as absent."""

    input: str
    model: str | None = None
    voice: str | VoiceId | None = None
    instructions: str | None = None
    response_format: str | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None
    stream_format: str | None = None
    stream: bool | None = None
    task_type: str | None = None
    language: str | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    non_streaming_mode: bool | None = None
    max_new_tokens: MaxNewTokens | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    subtalker_temperature: Temperature | None = None
    subtalker_top_k: TopK | None = None
    subtalker_top_p: TopP | None = None
