"""Parses the body of `POST /v1/audio/speech`: JSON with the types and ranges of `SpeechFields`."""

import contextlib
import difflib
import itertools
import mmap
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, too_large

_MAX_PARAM = 100
"""Characters of a client's field name that `param` repeats."""
_IGNORED = {
    "initial_codec_chunk_frames": "chunk sizes are a server setting (chunkRamp)",
    "stream_options": "events have one form",
    "user": "clients are told apart by their key",
}
"""Fields of other servers' clients that have no effect here, and why."""
_HINTS = {
    "do_sample": "send temperature 0 for greedy decoding",
    "subtalker_dosample": "send subtalker_temperature 0 for greedy decoding",
    "instruct": "the field is called instructions",
    "speaker": "the field is called voice",
    "text": "the field is called input",
    "format": "the field is called response_format",
    "max_tokens": "the field is called max_new_tokens",
}
"""Fields of other servers' APIs, and what to send instead."""
_AT = " - at `$"
"""What separates a problem from its location in an error of msgspec."""
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")

RawBody = bytes | bytearray | mmap.mmap

MAX_BODY = 2**20
"""Bytes of a body without its reference audio: its texts, even if each character is escaped."""
MAX_COMMAS = 2**17
"""In a body: more than the longest text and a speaker embedding have. Parsing more values would hold the event loop."""
_REFERENCE = re.compile(rb'"ref_audio"[ \t\r\n]*:[ \t\r\n]*"')
_PIECE = 2**20
"""Bytes of a large value that are processed at once: a call of C code holds the event loop from any thread."""
_ABSENT = msgspec.Raw(b"null")
_MAX_EXTRA = 64 * 1024
"""Maximum size of `extra_params` in bytes."""
_MAX_NAMED = 8
"""Maximum number of unknown fields of `extra_params` that warnings name."""
_KNOWN = FAMILY.request_fields.__struct_fields__


def body_type(name: str, fields: Sequence[tuple[str, Any, Any]] = ()) -> type[SpeechFields]:
    """Returns the type of a JSON object with the fields of requests and others: their names, types and defaults."""
    # Not decoded: a large value would take time and memory for nothing.
    without_effect = [(each, msgspec.Raw, _ABSENT) for each in (*_IGNORED, "extra_params")]
    made: Any = msgspec.defstruct(
        name,
        [*without_effect, *fields],
        bases=(FAMILY.request_fields,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    kind: type[SpeechFields] = made
    return kind


_Body = body_type("_Body")


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Raises `ApiError` 400 for what msgspec raises while it decodes a body, naming the field if there is one."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except RecursionError:
        raise bad_request(None, "the body is nested too deeply", "invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(None, f"the body is not JSON in UTF-8: {error}", "invalid_json") from None


def parse_fields(body: RawBody, kind: type[SpeechFields] = _Body) -> tuple[SpeechFields, list[str]]:
    """Parses a request body. Returns its fields, and warnings that name those without effect. `kind`: see `body_type`.

    Raises `ApiError`: 400, naming the field if there is one; 413 for a body above `MAX_BODY` without its reference, or
    with more than `MAX_COMMAS`.
    """
    rest, references = take_out_references(body)
    fields, warnings = _decode(rest, kind)
    return put_back(fields, references), warnings


def take_out_references(body: RawBody) -> tuple[RawBody, dict[str, str]]:
    """Returns the JSON with placeholders for the values of `ref_audio` in a body above `MAX_BODY`, and these values.

    Decoding all at once would take too long. Raises `ApiError` 413 if the rest is larger than `MAX_BODY`.
    """
    rest, references, position = bytearray(), dict[str, str](), 0
    while (left := len(body) - position) > (room := MAX_BODY - len(rest)):
        found = _REFERENCE.search(body, position, position + room)
        end = body.find(b'"', found.end()) if found else -1
        if found is None or end < 0:
            raise too_large(None, f"the body without ref_audio is larger than {MAX_BODY // 2**20} MB")
        placeholder = f"-{len(references)}"
        references[placeholder] = _string(body, found.end(), end)
        rest += body[position : found.end()] + placeholder.encode()
        position = end
    return (rest + body[position:], references) if left < len(body) else (body, references)


def _string(body: RawBody, start: int, end: int) -> str:
    """Returns a JSON string. Of escapes only that of a slash is resolved: base64 has no other."""
    pieces = []
    while start < end:
        stop = min(start + _PIECE, end)
        stop += body[stop - 1 : stop] == b"\\" and stop < end
        pieces.append(body[start:stop].replace(b"\\/", b"/").decode("ascii", "replace"))
        start = stop
    return "".join(pieces)


def put_back(fields: SpeechFields, references: dict[str, str]) -> SpeechFields:
    """Returns the fields with the reference that was taken out of their body, if it was."""
    if fields.ref_audio not in references:
        return fields
    return msgspec.structs.replace(fields, ref_audio=references[fields.ref_audio])


def check_commas(count: int, what: str) -> None:
    """Raises `ApiError` 413 for JSON with more than `MAX_COMMAS`, which takes too long to parse."""
    if count > MAX_COMMAS:
        raise too_large(None, f"the {what} has more than {MAX_COMMAS:,} values or commas")


def _decode(body: RawBody, kind: type[SpeechFields]) -> tuple[SpeechFields, list[str]]:
    check_commas(bytes(body).count(b","), "body")
    with decoding():
        fields: Any = msgspec.json.decode(body, type=kind)
        warnings = [f"{name} is ignored: {why}" for name, why in _IGNORED.items() if getattr(fields, name) != _ABSENT]
        if fields.extra_params == _ABSENT:
            return fields, warnings
        return _with_extra(fields, warnings)


def _with_extra(fields: Any, warnings: list[str]) -> tuple[SpeechFields, list[str]]:
    """Adds the fields in `extra_params`, of vLLM-Omni's clients, which the body itself does not have."""
    if len(fields.extra_params) > _MAX_EXTRA:
        raise bad_request(
            "extra_params", f"has {len(fields.extra_params):,} bytes; at most {_MAX_EXTRA:,} are accepted"
        )
    if not bytes(fields.extra_params).startswith(b"{"):
        raise bad_request("extra_params", "expected `object`")
    extra = msgspec.json.decode(fields.extra_params, type=dict[str, Any])
    unknown = itertools.islice((name for name in extra if name not in _KNOWN), _MAX_NAMED)
    warnings = warnings + [f"extra_params.{quoted(name)} is ignored: unknown field" for name in unknown]
    extra = {name: value for name, value in extra.items() if name in _KNOWN}
    added = msgspec.convert({"input": fields.input, **extra}, FAMILY.request_fields)
    absent = {name: getattr(added, name) for name in extra if getattr(fields, name) is None}
    return msgspec.structs.replace(fields, **absent), warnings


def _field_error(message: str) -> ApiError:
    # A key of a map is "at `key` in `$.lexicon`", a value "at `$.lexicon[...]`".
    problem, at, location = message.replace("`key` in ", "").rpartition(_AT)
    problem, parent = (problem, location.strip(".`").removesuffix("[...]")) if at else (message, None)
    if unknown := _UNKNOWN.match(problem):
        return _unknown_field(unknown[1], parent)
    if missing := _MISSING.match(problem):
        return bad_request(f"{parent}.{missing[1]}" if parent else missing[1], "is required", "missing_field")
    return bad_request(parent, problem[0].lower() + problem[1:])


def _unknown_field(name: str, parent: str | None) -> ApiError:
    if parent:
        hint = f'{parent} is a name or {{"id": name}}'
    elif not (hint := _HINTS.get(name, "")):
        close = difflib.get_close_matches(name[:_MAX_PARAM], _KNOWN, 1)
        hint = f"did you mean {close[0]}?" if close else f"accepted: {', '.join(sorted(_KNOWN))}"
    full_name = f"{parent}.{name}" if parent else name
    message = f"{quoted(full_name)} is not a field of this request: {hint}"
    return ApiError(400, message, param=_printable(full_name[:_MAX_PARAM]), code="unknown_field")


def _printable(text: str) -> str:
    """Returns a client's text without control characters, which could change what a terminal shows."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
