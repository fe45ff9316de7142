"""Translates request fields to a `SpeechRequest` for the stages, or to an error that says what is accepted."""

import asyncio
import secrets
from enum import StrEnum
from typing import Any, Literal

import msgspec

from syrinx_stages.contract.api import SpeechFields, VoiceId
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.gateway.audio.encoders import OTHER_NAMES, AudioFormat, AudioOptions, accepted_rates, default_rate
from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, unsupported
from syrinx_stages.gateway.fields.values import choice
from syrinx_stages.gateway.speech.texts import MAX_TEXT, MAX_WHOLE_TEXT, check_respelled, check_text, without_controls
from syrinx_stages.gateway.speech.trace import SpeechSpan
from syrinx_stages.gateway.voices.catalog import DEFAULT_VOICE, Catalog
from syrinx_stages.gateway.voices.voices import KeptVoice
from syrinx_stages.model.describe import Description
from syrinx_stages.model.generation import replace_fields
from syrinx_stages.normalization.languages import name_of
from syrinx_stages.normalization.lexicon import Change, Respelled, respell
from syrinx_stages.normalization.plain import with_usual_spaces, without_marks


class Delivery(StrEnum):
    """How the audio is sent to the client."""

    WHOLE = "whole"
    """One body of known length."""
    AUDIO = "audio"
    """Raw bytes as they are generated."""
    SSE = "sse"
    """Server-sent events as the audio is generated."""


class ParsedRequest(msgspec.Struct, frozen=True):
    """A valid request."""

    request: SpeechRequest
    audio: AudioOptions
    delivery: Delivery
    spelling: Respelled
    """The request's text, and where it is in that of the client."""
    warnings: list[str] = []
    """Names fields of the request that have no effect."""

    def with_fields(self, **fields: Any) -> "ParsedRequest":
        """Returns it with other values of fields of its `SpeechRequest`."""
        return msgspec.structs.replace(self, request=msgspec.structs.replace(self.request, **fields))


def parse_request(
    fields: SpeechFields,
    catalog: Catalog,
    request_id: str,
    accepted_at: float,
    client: str = "",
    kept: KeptVoice | None = None,
) -> ParsedRequest:
    """Validates the fields. `accepted_at` is in Unix seconds, `client` as in `SpeechRequest`.

    kept: the client's voice that `voice` names, if it names one.

    Raises `ApiError`: 400 if the request is invalid in itself, 404 if it names another model, 422 if this checkpoint
    does not support it.
    """
    if fields.model is not None and not catalog.has_model(fields.model):
        raise model_not_found(fields.model, catalog, "model: ")
    audio = _audio(fields)
    delivery = _delivery(fields, audio.format, catalog.api.stream_format)
    checkpoint = catalog.checkpoint
    task = _task(fields, checkpoint)
    spelling = _spelling(fields, task, delivery, catalog)
    voice, warnings = _voice(fields, task, catalog) if kept is None else (None, [])
    _check_reference(fields, task, kept)
    cloning = task is TaskType.BASE
    x_vector_only = _x_vector_only(fields, kept)
    transcript = fields.ref_text if kept is None else kept.transcript
    if x_vector_only and kept is None and transcript is not None:
        warnings.append("ref_text is ignored: the voice is cloned from the speaker embedding alone")
    instructions, ignored = _instructions(fields, task, catalog)
    language = _language(fields, checkpoint)
    request = SpeechRequest(
        id=request_id,
        accepted_at=accepted_at,
        text=spelling.text,
        task_type=task,
        voice=voice,
        language=language,
        instructions=instructions,
        has_reference=cloning,
        reference_text=None if x_vector_only or transcript is None else without_controls(transcript),
        x_vector_only=x_vector_only,
        # The official defaults: a cloned voice is given its text token by token.
        non_streaming_text=not cloning if fields.non_streaming_mode is None else fields.non_streaming_mode,
        is_divided=task is not TaskType.VOICE_DESIGN,
        languages=_normalized_languages(fields, language, catalog),
        max_frames=_max_frames(fields, checkpoint),
        total_frames=fields.max_new_tokens,
        sampling=replace_fields(checkpoint.sampling, fields),
        # -1 is no seed in other APIs.
        seed=secrets.randbits(63) if fields.seed in (None, -1) else fields.seed,
        client=client,
        checks=catalog.api.runaway_guard if fields.runaway_guard is None else fields.runaway_guard,
        live=delivery is not Delivery.WHOLE,
    )
    return ParsedRequest(request, audio, delivery, spelling, warnings + ignored)


def text_limit(catalog: Catalog) -> int:
    """Returns how many characters a text may have."""
    limit = catalog.api.max_text_length
    return min(limit, MAX_TEXT) if catalog.checkpoint.task_type is TaskType.VOICE_DESIGN else limit


def lexicon_of(fields: SpeechFields, catalog: Catalog) -> dict[str, str]:
    """Returns the lexicon of a request: that of the resource, with its own entries."""
    return {**catalog.api.lexicon, **(fields.lexicon or {})}


def _spelling(fields: SpeechFields, task: TaskType, delivery: Delivery, catalog: Catalog) -> Respelled:
    """Returns the text with the respellings of the lexicons."""
    limit, hint = text_limit(catalog), ""
    if limit < catalog.api.max_text_length:
        hint = f" with {task}, which would give each part of a longer text another voice"
    elif delivery is Delivery.WHOLE and limit > MAX_WHOLE_TEXT:
        limit, hint = MAX_WHOLE_TEXT, " for a whole file; send stream: true"
    check_text("input", fields.input, limit, hint)
    respelled = respell(fields.input, lexicon_of(fields, catalog))
    if (length := len(respelled.text)) > limit:
        raise bad_request("lexicon", f"makes the text {length:,} characters long; at most {limit:,} are accepted")
    check_respelled(respelled.text)
    if task is not TaskType.VOICE_DESIGN:
        return respelled
    # A designed voice speaks all of its text at once.
    text = without_marks(with_usual_spaces(respelled.text))
    return Respelled(text, (Change(0, len(text), len(fields.input)),))


def _normalized_languages(fields: SpeechFields, language: str, catalog: Catalog) -> tuple[str, ...]:
    """Returns in which languages the text may be, if it is to be normalized."""
    checkpoint, default = catalog.checkpoint, catalog.api.normalize
    default = checkpoint.normalize if default is None else default
    if not (default if fields.normalize is None else fields.normalize):
        return ()
    return tuple(each for each in checkpoint.languages if each != "auto") if language == "auto" else (language,)


async def parse(
    fields: SpeechFields, catalog: Catalog, request_id: str, accepted_at: float, client: str, kept: KeptVoice | None
) -> ParsedRequest:
    """As `parse_request`. A lexicon, or a long text, is processed in a thread."""
    arguments = fields, catalog, request_id, accepted_at, client, kept
    if len(fields.input) <= MAX_TEXT and not fields.lexicon:
        return parse_request(*arguments)
    return await asyncio.to_thread(parse_request, *arguments)


def traced(parsed: ParsedRequest, span: SpeechSpan | None, model: str) -> ParsedRequest:
    """Returns a request with the fields of its trace, and describes it in its span; as it is if it is not traced."""
    if span is None:
        return parsed
    span.set_request(model, parsed.request)
    return parsed.with_fields(**span.fields)


def model_not_found(name: str, catalog: Catalog, prefix: str = "") -> ApiError:
    """404: `name` is not the model served here."""
    accepted = ", ".join((catalog.model, *catalog.model_aliases))
    message = f"{prefix or 'model '}{quoted(name)} is not served here; accepted: {accepted}"
    return ApiError(404, message, param="model", code="model_not_found")


def _delivery(fields: SpeechFields, audio_format: AudioFormat, default: Literal["Audio", "SSE"]) -> Delivery:
    """Returns the delivery. `default`: that of `stream: true` without a format."""
    stream_format = choice("stream_format", fields.stream_format, (Delivery.AUDIO, Delivery.SSE))
    if fields.stream and stream_format is None:
        return Delivery.SSE if default == "SSE" else Delivery.AUDIO
    # Many programs cannot read a FLAC file without its length.
    if fields.stream or (fields.stream is None and (stream_format or audio_format is not AudioFormat.FLAC)):
        return stream_format or Delivery.AUDIO
    if stream_format:
        message = f"is false, but stream_format {stream_format} asks for a stream; leave one of them out"
        raise bad_request("stream", message)
    return Delivery.WHOLE


def _audio(fields: SpeechFields) -> AudioOptions:
    audio_format = choice("response_format", fields.response_format, AudioFormat, OTHER_NAMES) or AudioFormat.WAV
    rate = fields.sample_rate or default_rate(audio_format)
    rates = accepted_rates(audio_format)
    if rates is not None and rate not in rates:
        accepted = ", ".join(f"{each:,}" for each in rates)
        raise bad_request("sample_rate", f"{rate:,} is not a sample rate of {audio_format}; accepted: {accepted}")
    return AudioOptions(audio_format, rate, fields.speed or 1.0)


def _task(fields: SpeechFields, checkpoint: Description) -> TaskType:
    """The checkpoint's task type. Raises 422 if the client asks for another one, by name or by sending a reference."""
    requested = choice("task_type", fields.task_type, TaskType)
    if requested not in (None, checkpoint.task_type):
        message = f"{requested} needs another checkpoint; this one does {checkpoint.task_type}"
        raise unsupported("task_type", message)
    source = _source(fields)
    if requested is None and checkpoint.task_type is not TaskType.BASE and source is not None:
        message = f"cloning a voice needs a Base checkpoint; this one does {checkpoint.task_type}"
        raise unsupported(source, message)
    return checkpoint.task_type


def _source(fields: SpeechFields) -> str | None:
    """The field that brings a voice to clone; None without one."""
    return next((name for name in ("ref_audio", "speaker_embedding") if getattr(fields, name) is not None), None)


def _check_reference(fields: SpeechFields, task: TaskType, kept: KeptVoice | None) -> None:
    if task is not TaskType.BASE:
        for name in ("ref_audio", "ref_text", "x_vector_only_mode", "speaker_embedding"):
            if getattr(fields, name) not in (None, False):
                raise bad_request(name, f"is for task_type Base; leave it out with {task}")
    elif kept is not None:
        _check_kept(fields, kept)
    elif fields.speaker_embedding is not None:
        _check_embedding(fields)
    else:
        _check_audio(fields)


def _check_kept(fields: SpeechFields, kept: KeptVoice) -> None:
    for name in ("ref_audio", "ref_text", "speaker_embedding"):
        if getattr(fields, name) is not None:
            message = f"cannot be combined with the voice {quoted(kept.name)}, which has its own"
            raise bad_request(name, f"{message}; leave one of them out")
    if fields.x_vector_only_mode is False and kept.x_vector_only:
        message = f"is false, but the voice {quoted(kept.name)} has no transcript"
        raise bad_request("x_vector_only_mode", message)


def _check_embedding(fields: SpeechFields) -> None:
    if fields.ref_audio is not None:
        raise bad_request("ref_audio", "has no effect with speaker_embedding; leave one of them out")
    if fields.x_vector_only_mode is False:
        raise bad_request("x_vector_only_mode", "is false, but speaker_embedding is an x-vector; leave one of them out")


def _x_vector_only(fields: SpeechFields, kept: KeptVoice | None) -> bool:
    without_codes = fields.speaker_embedding is not None or (kept is not None and kept.x_vector_only)
    return without_codes or bool(fields.x_vector_only_mode)


def _check_audio(fields: SpeechFields) -> None:
    if not fields.ref_audio:
        message = "is required for task_type Base: base64 audio, a data: URI or a URL; or name a voice"
        raise bad_request("ref_audio", message, "missing_field")
    if fields.x_vector_only_mode:
        return
    if fields.ref_text is None:
        message = "is required for task_type Base: the transcript of ref_audio; or set x_vector_only_mode"
        raise bad_request("ref_text", message, "missing_field")
    check_text("ref_text", fields.ref_text)


def voice_to_clone(fields: SpeechFields, catalog: Catalog) -> str | None:
    """Returns the name or id of the voice that the request names; None if it brings its own.

    Aliases are without effect for a request with its own: some clients always send one.
    """
    requested = _requested_voice(fields)
    if _source(fields) is not None and (requested is None or requested.lower() in catalog.voice_aliases):
        return None
    return DEFAULT_VOICE if requested is None else requested


def _requested_voice(fields: SpeechFields) -> str | None:
    name = fields.voice.id if isinstance(fields.voice, VoiceId) else fields.voice
    return None if name is None else name.strip() or None


def _voice(fields: SpeechFields, task: TaskType, catalog: Catalog) -> tuple[str | None, list[str]]:
    """Returns the speaker of the checkpoint, and the warnings about `voice`."""
    requested = _requested_voice(fields)
    if requested is None or catalog.has_voice(requested):
        return None if task is TaskType.BASE else catalog.voice(requested or DEFAULT_VOICE), []
    if task is TaskType.BASE:
        if (source := _source(fields)) is not None:
            return None, [f"voice is ignored: {quoted(requested)} is not among your voices, and {source} is the voice"]
        message = f"{quoted(requested)} is not among your voices; upload it with POST /v1/audio/voices"
        raise bad_request("voice", f"{message}, or send ref_audio without a voice")
    if not catalog.voices:
        message = f"with {task} the voice comes from instructions; leave voice out or send {DEFAULT_VOICE!r}"
        raise bad_request("voice", message)
    accepted = ", ".join((*catalog.voices, *catalog.voice_aliases))
    raise bad_request("voice", f"{quoted(requested)} is unknown; accepted: {accepted}")


def _language(fields: SpeechFields, checkpoint: Description) -> str:
    languages = [language for language in checkpoint.languages if language != "auto"]
    if fields.language is None:
        # A checkpoint with one language speaks nothing else, and speaks it better when told.
        return languages[0] if len(languages) == 1 else "auto"
    names = {known.lower(): known for known in checkpoint.languages}
    requested = fields.language.strip().lower()
    found = names.get(requested) or names.get(name_of(requested) or "")
    if found is None:
        message = f"{quoted(fields.language)} is unknown; accepted: {', '.join(checkpoint.languages)}"
        raise bad_request("language", f"{message}, or their codes, such as en or en-US")
    return found


def _instructions(fields: SpeechFields, task: TaskType, catalog: Catalog) -> tuple[str | None, list[str]]:
    """Returns the instructions for the model, and the warnings about them."""
    if not fields.instructions:
        if task is TaskType.VOICE_DESIGN:
            message = "is required for task_type VoiceDesign: a description of the voice"
            raise bad_request("instructions", message, "missing_field")
        return None, []
    if not catalog.checkpoint.supports_instructions:
        message = f"this checkpoint ({task}, {catalog.checkpoint.size}) does not support them"
        if catalog.api.unsupported_instructions == "Refuse":
            raise unsupported("instructions", f"{message}; leave them out")
        return None, [f"instructions are ignored: {message}"]
    check_text("instructions", fields.instructions)
    return without_controls(fields.instructions), []


def _max_frames(fields: SpeechFields, checkpoint: Description) -> int:
    # The other half of the positions is for the prompt.
    limit = min(FAMILY.max_frames, checkpoint.max_positions // 2)
    if fields.max_new_tokens is None:
        return min(checkpoint.max_new_tokens, limit)
    if fields.max_new_tokens > limit:
        rate = FAMILY.frames_per_second
        message = f"{fields.max_new_tokens} is too large; at most {limit} ({rate} per second) are accepted"
        raise bad_request("max_new_tokens", message)
    return fields.max_new_tokens
