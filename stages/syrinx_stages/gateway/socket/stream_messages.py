"""The messages of `/v1/audio/speech/stream`, in the shape of vLLM-Omni's protocol: parsing and building. Pure."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.audio.encoders import AudioFormat, AudioOptions
from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, too_large
from syrinx_stages.gateway.fields.json_objects import Sent, check_commas, decode
from syrinx_stages.gateway.fields.parse import Parsed, parse_fields
from syrinx_stages.gateway.fields.values import choice
from syrinx_stages.normalization.sentences import Granularity

MAX_TEXT_MESSAGE = 64 * 1024
"""Bytes of a message other than `session.config`."""
CLIENT_MESSAGES = ("session.config", "input.text", "input.done", "cancel", "session.close")
_COMMITS = "text is spoken while it arrives, without commits"
_INSTEAD = {"input.commit": f"{_COMMITS}; leave it out", "input.cancel": "send cancel"}
"""Messages that were proposed for vLLM-Omni, and what to do instead."""


class TextMode(StrEnum):
    """How text becomes utterances."""

    SENTENCES = "sentences"
    """Each sentence is an utterance of its own; see `split_granularity`."""
    TOKENS = "tokens"
    """All text up to `input.done` is one utterance, spoken while it arrives."""


class _StreamingMode(StrEnum):
    """vLLM-Omni's name of it."""

    SENTENCE = "sentence"
    TOKEN_LEVEL = "token_level"


_SENTENCE_COMMIT = "sentence_commit"
"""Another one that was proposed."""
_MODES = {_StreamingMode.SENTENCE: TextMode.SENTENCES, _StreamingMode.TOKEN_LEVEL: TextMode.TOKENS}


class SessionConfig(Struct, frozen=True):
    """A valid `session.config`, but for what only the checkpoint knows."""

    sent: Parsed
    """`input` is not set."""
    text_mode: TextMode
    granularity: Granularity
    stream_audio: bool
    request_id: str | None
    """Names the next utterance, so that another connection can continue it."""
    audio_offset: int | None
    """To continue it: number of the first sample that the client has not got."""
    is_single: bool
    """It came as SGLang-Omni's clients send it: they wait for `session.configured`, and for the end of the connection
    after `session.done`."""

    @property
    def fields(self) -> SpeechFields:
        """Those of a request for a text."""
        return self.sent.fields


class ClientMessage(Struct, frozen=True):
    """A message of a client; of `session.config` only its type."""

    type: str
    text: str | None = None
    """The next piece, of `input.text` only."""


_Identifier = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}$", description="1 to 64 letters, digits, dots, underscores, colons, hyphens"),
]


_NESTED = "session"
"""The field with the fields of a `session.config`, if they are not beside `type`."""
_Session: Any = msgspec.defstruct(
    "_Session",
    [
        ("type", str, ""),
        (_NESTED, None, None),
        # Texts are sent with `input.text`.
        ("input", str | None, ""),
        ("text_mode", str | None, None),
        ("streaming_mode", str | None, None),
        ("split_granularity", str | None, None),
        ("stream_audio", bool | None, None),
        ("request_id", _Identifier | None, None),
        ("audio_offset", Annotated[int, Meta(ge=0, le=2**52)] | None, None),
    ],
    bases=(FAMILY.request_fields,),
    frozen=True,
    kw_only=True,
)
"""The fields of requests and those of sessions. A null field counts as absent."""
SESSION_FIELDS = tuple(
    name for name in _Session.__struct_fields__ if name not in ("type", *FAMILY.request_fields.__struct_fields__)
)
"""Those of sessions alone."""
_REFUSED = {
    "input": "send the text with input.text",
    "stream": "the field is called stream_audio",
    "stream_format": "audio is sent as binary messages; leave it out",
}
"""Fields of requests that sessions do not have, and what to send instead."""


def message_type(data: str) -> str:
    """Returns the type of a client's message. Raises `ApiError` 400 if it has none that is known, or 413."""
    return _decode(data).type


def parse_message(data: str) -> ClientMessage:
    """Parses a message other than `session.config`. Raises `ApiError` 400 or 413."""
    if len(data) > MAX_TEXT_MESSAGE:
        raise too_large("text", f"the message is larger than {MAX_TEXT_MESSAGE // 1024} KB; send smaller pieces")
    message = _decode(data)
    if message.type == "input.text" and message.text is None:
        raise bad_request("text", "is required: the next piece of the text", "missing_field")
    return message


def _decode(data: str) -> ClientMessage:
    check_commas(data.count(","), "message")
    message = decode(data.encode(), ClientMessage, "message")
    if message.type not in CLIENT_MESSAGES:
        unknown = f"{quoted(message.type)} is unknown"
        if instead := _INSTEAD.get(message.type):
            raise bad_request("type", f"{unknown}: {instead}")
        raise bad_request("type", f"{unknown}; accepted: {', '.join(CLIENT_MESSAGES)}")
    return message


def parse_config(data: str) -> SessionConfig:
    """Parses a `session.config`. Raises `ApiError` 400 or 413, naming the field if there is one."""
    body, is_single = _fields(data.encode())
    sent = parse_fields(body, _Session)
    with sent.naming():
        for name, hint in _REFUSED.items():
            if getattr(sent.fields, name):
                raise bad_request(name, f"is not a field of a session: {hint}", "unknown_field")
        return _checked(sent, sent.fields, is_single)


def _fields(body: bytes) -> tuple[bytes, bool]:
    """Returns the object with the fields, and whether it is in `session`, as SGLang-Omni's clients send it."""
    sent = decode(body, Sent, "message")
    session = bytes(sent.get(_NESTED, b"null"))
    if session == b"null":
        return body, False
    if not session.startswith(b"{"):
        raise bad_request(_NESTED, "is no object; send the fields in it, or beside type")
    if others := sent.keys() - {"type", _NESTED}:
        raise bad_request(_NESTED, f"has the fields, but {quoted(min(others))} is beside it; send all in one place")
    return session, True


def _checked(sent: Parsed, own: Any, is_single: bool) -> SessionConfig:
    """own: the same fields, with those of sessions."""
    mode, fields = _text_mode(own), sent.fields
    stream_audio = mode is TextMode.TOKENS if own.stream_audio is None else own.stream_audio
    if mode is TextMode.TOKENS:
        if not stream_audio:
            raise bad_request("stream_audio", "is false, but with text_mode tokens audio is always streamed")
        if fields.non_streaming_mode:
            message = "is true, but with text_mode tokens the model reads the text while it speaks; leave it out"
            raise bad_request("non_streaming_mode", message)
        if own.split_granularity is not None:
            raise bad_request("split_granularity", "has no effect with text_mode tokens; leave it out")
        fields = msgspec.structs.replace(fields, non_streaming_mode=False)
    elif own.request_id is not None:
        raise bad_request("request_id", "has no effect without text_mode tokens; leave it out")
    if own.audio_offset is not None and own.request_id is None:
        raise bad_request("audio_offset", "continues an utterance; send its request_id, too")
    if stream_audio and fields.response_format is None:
        fields = msgspec.structs.replace(fields, response_format="pcm")
    fields = msgspec.structs.replace(fields, stream=stream_audio)
    granularity = choice("split_granularity", own.split_granularity, Granularity) or Granularity.SENTENCE
    sent = msgspec.structs.replace(sent, fields=fields)
    return SessionConfig(sent, mode, granularity, stream_audio, own.request_id, own.audio_offset, is_single)


def _text_mode(own: Any) -> TextMode:
    if own.streaming_mode == _SENTENCE_COMMIT:
        raise bad_request("streaming_mode", f"{_SENTENCE_COMMIT} is not available: {_COMMITS}; send token_level")
    mode, theirs = (
        choice("text_mode", own.text_mode, TextMode),
        choice("streaming_mode", own.streaming_mode, _StreamingMode),
    )
    if theirs is None:
        return mode or TextMode.SENTENCES
    if mode is not None and mode is not _MODES[theirs]:
        raise bad_request("streaming_mode", f"stands for text_mode {_MODES[theirs]}, which has another value")
    return _MODES[theirs]


class Place(Struct, frozen=True):
    """Which utterance of a connection a message is about, and which sentence of it."""

    utterance: int
    sentence: int = 0

    def message(self, kind: str, **content: Any) -> dict[str, Any]:
        """Returns a message about it."""
        return {"type": kind, "utterance_index": self.utterance, "sentence_index": self.sentence, **content}


def audio_start(place: Place, text: str, audio: AudioOptions, seed: int) -> dict[str, Any]:
    """Returns the message before the audio of a text."""
    described = {"format": audio.format, "sample_rate": audio.rate, "channels": 1, "seed": seed}
    return place.message("audio.start", sentence_text=text, **described)


def session_configured(session_id: str, config: SessionConfig) -> dict[str, Any]:
    """Returns the message after a configuration of SGLang-Omni's clients."""
    described = {
        "response_format": config.fields.response_format or AudioFormat.WAV,
        "stream_audio": config.stream_audio,
        "split_granularity": config.granularity,
    }
    return {"type": "session.configured", "session_id": session_id, **described}


def session_resumed(request_id: str, characters: int, ended: bool) -> dict[str, Any]:
    """Returns the message after the configuration that continues an utterance: send its text from there on."""
    return {"type": "session.resumed", "request_id": request_id, "characters": characters, "ended": ended}


def session_done(utterance: int, sentences: int) -> dict[str, Any]:
    """Returns the message after an utterance."""
    return {"type": "session.done", "utterance_index": utterance, "total_sentences": sentences}


def error_message(error: ApiError, place: Place | None = None) -> dict[str, Any]:
    """Returns the message that reports an error, in the words of an error response."""
    content = {**error.body(), "error_type": error.body()["type"]}
    if error.retry_after is not None:
        content["retry_after"] = error.retry_after
    del content["type"]
    return {"type": "error", **content} if place is None else place.message("error", **content)
