"""The messages that travel between stages, and their encoding (msgpack through msgspec)."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class TaskType(StrEnum):
    """What the checkpoint is asked to do; the values are the public API's."""

    CUSTOM_VOICE = "CustomVoice"
    VOICE_DESIGN = "VoiceDesign"
    BASE = "Base"


class EndReason(StrEnum):
    """Why a stream ended."""

    STOP = "stop"
    """The talker said its end-of-sequence code."""
    LENGTH = "length"
    """`max_frames` was reached."""
    CANCELLED = "cancelled"
    """The client left, or its gateway died."""
    ERROR = "error"
    """The request cannot be served; `End.message` says why."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How codes are drawn. Defaults are the official `generation_config` of Qwen3-TTS."""

    temperature: float = 0.9
    """Of code 0; 0 is greedy."""
    top_k: int = 50
    """Keep this many of the likeliest codes; 0 keeps all."""
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    """Divides (or multiplies, if negative) the logits of code-0 values already said."""
    min_frames: int = 2
    """End of sequence is not drawn before this many frames."""
    residual_temperature: float = 0.9
    """Of codes 1 to 15; 0 is greedy."""
    residual_top_k: int = 50
    residual_top_p: float = 1.0


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One utterance to speak, validated by the gateway."""

    id: str
    accepted_at: float
    """Unix seconds by the gateway's clock."""
    text: str
    task_type: TaskType
    voice: str | None = None
    """A speaker of the checkpoint; set for CustomVoice alone."""
    language: str = "auto"
    """`auto` or a key of the checkpoint's `codec_language_id`, lower case."""
    instructions: str | None = None
    has_reference: bool = False
    """The reference audio lies under its own key: mono 16-bit PCM at 24 kHz. Base alone."""
    reference_text: str | None = None
    x_vector_only: bool = False
    non_streaming_text: bool = True
    """All text in the prompt (True), or one text token a frame (False)."""
    max_frames: int = 2048
    sampling: Sampling = Sampling()
    seed: int = 0
    live: bool = True
    """Somebody listens while it is made: the lead limit applies."""


class Reference(msgspec.Struct, frozen=True, tag="ref"):
    """The reference audio's codes: context that the codec decodes first and does not play."""

    codes: bytes


class Codes(msgspec.Struct, frozen=True, tag="codes", omit_defaults=True):
    """Frames of 16 codes each, int16 little-endian, frame-major."""

    codes: bytes
    talker: str = ""
    """The replica that made them, said in the first entry each owner writes."""


class Audio(msgspec.Struct, frozen=True, tag="audio", omit_defaults=True):
    """16-bit little-endian mono PCM of whole frames."""

    pcm: bytes
    talker: str = ""
    codec: str = ""
    """The replicas that made it, said in the first entry each owner writes."""


class PlaybackProgress(msgspec.Struct, frozen=True, tag="played"):
    """The client has been handed everything up to this entry's frame."""


class StreamCreated(msgspec.Struct, frozen=True, tag="open"):
    """The first entry of every stream: it exists, and nothing has been said yet."""


class End(msgspec.Struct, frozen=True, tag="end", omit_defaults=True):
    """The last entry of a codes or audio stream."""

    reason: EndReason
    message: str = ""
    """For `error`: what went wrong, in words for the client."""
    param: str = ""
    """For `error`: the request field to blame, if one is."""


Entry = StreamCreated | Reference | Codes | Audio | PlaybackProgress | End
"""Anything a per-request stream can hold."""

_request_decoder = msgspec.msgpack.Decoder(SpeechRequest)
_entry_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
_encoder = msgspec.msgpack.Encoder()


def encode(message: SpeechRequest | Entry) -> bytes:
    """The wire form of a message."""
    return _encoder.encode(message)


def decode_request(data: bytes) -> SpeechRequest:
    """Reads a request. Raises `msgspec.ValidationError` or `msgspec.DecodeError` if it is not one."""
    return _request_decoder.decode(data)


def decode_entry(data: bytes) -> Entry:
    """Reads a stream entry. Raises `msgspec.ValidationError` or `msgspec.DecodeError` if it is not one."""
    return _entry_decoder.decode(data)
