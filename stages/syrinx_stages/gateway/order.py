"""From checked fields to a request for the stages and a plan of delivery, or to a refusal that says what would do."""

from __future__ import annotations

import secrets
import unicodedata
from enum import StrEnum
from typing import TypeVar

import msgspec

from syrinx_stages.contract.api import SpeechFields, VoiceId
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import Sampling, SpeechRequest, TaskType
from syrinx_stages.gateway.encoders import STREAMABLE, Format
from syrinx_stages.gateway.errors import ApiError, bad, shown, unsupported
from syrinx_stages.gateway.voices import DEFAULT_VOICE, find, voice_names
from syrinx_stages.model.describe import Description

MAX_TEXT = 4096
"""Characters of `input`, `instructions` and `ref_text` each: OpenAI's limit, some five minutes of speech."""

_Choice = TypeVar("_Choice", bound=StrEnum)


class Delivery(StrEnum):
    """How the audio goes to the client."""

    WHOLE = "whole"
    """One body with its length."""
    AUDIO = "audio"
    """Raw bytes while they are made."""
    SSE = "sse"
    """Server-sent events while it is made."""


class Order(msgspec.Struct, frozen=True):
    """One accepted request."""

    request: SpeechRequest
    form: Format
    delivery: Delivery
    speed: float
    ref_audio: str | None
    """What the client sent as reference: not fetched or decoded yet. `request.has_reference` says that it will be."""


def place(fields: SpeechFields, checkpoint: Description, model_name: str, request_id: str, accepted_at: float) -> Order:
    """Checks what the fields mean for this checkpoint.

    Raises 400 (wrong in itself), 404 (another model) or 422 (this checkpoint cannot).
    """
    if fields.model is not None and fields.model != model_name:
        message = f"model: {shown(fields.model)} is not served here; accepted: {model_name}"
        raise ApiError(404, message, param="model", code="model_not_found")
    _check_text("input", fields.input)
    form, delivery = _delivery(fields)
    task = _task(fields, checkpoint)
    _check_reference(fields, task)
    request = SpeechRequest(
        id=request_id,
        accepted_at=accepted_at,
        text=fields.input,
        task_type=task,
        voice=_voice(fields, task, checkpoint),
        language=_language(fields, checkpoint),
        instructions=_instructions(fields, task, checkpoint),
        has_reference=task is TaskType.BASE,
        reference_text=fields.ref_text,
        x_vector_only=bool(fields.x_vector_only_mode),
        # The official defaults: a cloned voice is given its text token by token.
        non_streaming_text=task is not TaskType.BASE
        if fields.non_streaming_mode is None
        else fields.non_streaming_mode,
        max_frames=_max_frames(fields, checkpoint),
        sampling=_sampling(fields),
        seed=secrets.randbits(63) if fields.seed is None else fields.seed,
        live=delivery is not Delivery.WHOLE,
    )
    return Order(request, form, delivery, fields.speed or 1.0, fields.ref_audio)


def _check_text(field: str, text: str) -> None:
    """Raises 400 for text that cannot be spoken."""
    if not text.strip():
        raise bad(field, "is empty; send the text")
    if len(text) > MAX_TEXT:
        raise bad(field, f"has {len(text):,} characters; at most {MAX_TEXT:,} are accepted")
    for at, character in enumerate(text):
        if unicodedata.category(character) == "Cc" and character not in "\t\n\r":
            raise bad(field, f"character {at + 1} is the control character U+{ord(character):04X}; remove it")


def _choice(field: str, value: str | None, kind: type[_Choice]) -> _Choice | None:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        raise bad(field, f"{shown(value)} is unknown; accepted: {', '.join(kind)}") from None


class _StreamFormat(StrEnum):
    AUDIO = "audio"
    SSE = "sse"


def _delivery(fields: SpeechFields) -> tuple[Format, Delivery]:
    if fields.response_format == "aac":
        raise bad("response_format", f"aac is not supported (no free encoder); accepted: {', '.join(Format)}")
    form = _choice("response_format", fields.response_format, Format) or Format.WAV
    stream_format = _choice("stream_format", fields.stream_format, _StreamFormat)
    if stream_format and fields.stream is False:
        raise bad("stream", f"is false, but stream_format {stream_format} asks for a stream; leave one of them out")
    if not (stream_format or fields.stream):
        return form, Delivery.WHOLE
    if form not in STREAMABLE:
        raise bad("response_format", f"{form} cannot be streamed; accepted with streaming: {', '.join(STREAMABLE)}")
    if fields.speed not in (None, 1.0):
        raise bad(
            "speed", "only 1.0 is accepted with streaming; leave out stream and stream_format to change the speed"
        )
    return form, Delivery(stream_format or Delivery.AUDIO)


def _task(fields: SpeechFields, checkpoint: Description) -> TaskType:
    """What was asked for; left out, a reference means Base, and otherwise it is what the checkpoint does."""
    asked = _choice("task_type", fields.task_type, TaskType)
    if asked not in (None, checkpoint.task_type):
        raise unsupported("task_type", f"{asked} needs another checkpoint; this one does {checkpoint.task_type}")
    if asked is None and checkpoint.task_type is not TaskType.BASE and fields.ref_audio is not None:
        raise unsupported("ref_audio", f"cloning a voice needs a Base checkpoint; this one does {checkpoint.task_type}")
    return checkpoint.task_type


def _check_reference(fields: SpeechFields, task: TaskType) -> None:
    if task is not TaskType.BASE:
        for name in ("ref_audio", "ref_text", "x_vector_only_mode"):
            if getattr(fields, name) not in (None, False):
                raise bad(name, f"is for task_type Base; leave it out with {task}")
        return
    if not fields.ref_audio:
        raise bad("ref_audio", "is required for task_type Base: base64 audio, a data: URI or a URL", "missing_field")
    if fields.x_vector_only_mode:
        if fields.ref_text is not None:
            raise bad("ref_text", "has no use with x_vector_only_mode; leave one of them out")
    elif fields.ref_text is None:
        message = "is required for task_type Base: what ref_audio says; or set x_vector_only_mode"
        raise bad("ref_text", message, "missing_field")
    else:
        _check_text("ref_text", fields.ref_text)


def _voice(fields: SpeechFields, task: TaskType, checkpoint: Description) -> str | None:
    wanted = fields.voice.id if isinstance(fields.voice, VoiceId) else fields.voice
    names = voice_names(checkpoint)
    if wanted is not None and (name := find(wanted, names)):
        return name
    if wanted is None or wanted.lower() == DEFAULT_VOICE:
        return names[0] if names else None
    if not names:
        source = "ref_audio" if task is TaskType.BASE else "instructions"
        raise bad("voice", f"with {task} the voice comes from {source}; leave voice out or send {DEFAULT_VOICE!r}")
    raise bad("voice", f"{shown(wanted)} is unknown; accepted: {', '.join(names)}")


def _language(fields: SpeechFields, checkpoint: Description) -> str:
    spoken = [language for language in checkpoint.languages if language != "auto"]
    # A checkpoint with one language speaks nothing else, and speaks it better when told.
    default = spoken[0] if len(spoken) == 1 else "auto"
    wanted = default if fields.language is None else fields.language
    if (language := find(wanted, checkpoint.languages)) is None:
        raise bad("language", f"{shown(wanted)} is unknown; accepted: {', '.join(checkpoint.languages)}")
    return language


def _instructions(fields: SpeechFields, task: TaskType, checkpoint: Description) -> str | None:
    if not fields.instructions:
        if task is TaskType.VOICE_DESIGN:
            raise bad(
                "instructions", "is required for task_type VoiceDesign: a description of the voice", "missing_field"
            )
        return None
    if not checkpoint.supports_instructions:
        raise unsupported(
            "instructions", f"this checkpoint ({task}, {checkpoint.size}) has no use for them; leave them out"
        )
    _check_text("instructions", fields.instructions)
    return fields.instructions


def _max_frames(fields: SpeechFields, checkpoint: Description) -> int:
    # Half the positions at the most: the prompt needs the others.
    limit = min(FAMILY.max_frames, checkpoint.max_positions // 2)
    if fields.max_new_tokens is None:
        return min(FAMILY.default_frames, limit)
    if fields.max_new_tokens > limit:
        message = (
            f"{fields.max_new_tokens} is too many; at most {limit} ({FAMILY.frames_per_second} a second) are accepted"
        )
        raise bad("max_new_tokens", message)
    return fields.max_new_tokens


def _sampling(fields: SpeechFields) -> Sampling:
    asked = {
        "temperature": fields.temperature,
        "top_k": fields.top_k,
        "top_p": fields.top_p,
        "repetition_penalty": fields.repetition_penalty,
        "residual_temperature": fields.subtalker_temperature,
        "residual_top_k": fields.subtalker_top_k,
        "residual_top_p": fields.subtalker_top_p,
    }
    return msgspec.structs.replace(Sampling(), **{name: value for name, value in asked.items() if value is not None})
