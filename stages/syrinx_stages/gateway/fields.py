"""Parses the body of `POST /v1/audio/speech`: strict JSON, then the types and ranges of `SpeechFields`.

The standard library decodes the JSON: msgspec accepts duplicate names, and its errors for NaN and for lone surrogates
do not name the field.
"""

import difflib
import json
import re
from typing import Any

import msgspec

from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.errors import ApiError, bad_request, quoted

_MAX_PARAM = 100
"""Characters of a client's field name that `param` repeats."""
_HINTS = {
    "initial_codec_chunk_frames": "chunk sizes are a server setting (chunk_ramp)",
    "do_sample": "send temperature 0 for greedy decoding",
    "subtalker_dosample": "send subtalker_temperature 0 for greedy decoding",
    "instruct": "the field is called instructions",
    "speaker": "the field is called voice",
    "text": "the field is called input",
    "format": "the field is called response_format",
    "max_tokens": "the field is called max_new_tokens",
}
"""Fields of other servers' APIs, and what to send instead."""
_LOCATION = re.compile(r"^(.*?)(?: - at `\$\.?([^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


def parse_fields(body: bytes) -> SpeechFields:
    """Parses a request body. Raises `ApiError` 400, naming the field if there is one."""
    try:
        return msgspec.convert(_parse_json(body), FAMILY.request_fields)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except OverflowError:
        raise bad_request(None, "a number is too large for its field") from None


class _NonNumber(str):
    """NaN, Infinity or -Infinity, which Python's decoder accepts and JSON does not have."""


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_NonNumber)
    except UnicodeDecodeError as error:
        raise bad_request(None, f"the body is not UTF-8 (byte {error.start})", "invalid_json") from None
    except RecursionError:
        raise bad_request(None, "the body is nested too deeply", "invalid_json") from None
    except ValueError as error:
        raise bad_request(None, f"the body is not JSON: {error}", "invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request(None, "the body is not a JSON object", "invalid_json")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if problem := _lone_surrogate(name):
            raise bad_request(None, f"a field name: {problem}")
        if isinstance(value, str) and (problem := _lone_surrogate(value)):
            raise bad_request(name[:_MAX_PARAM], problem)
        if isinstance(value, _NonNumber):
            raise bad_request(name[:_MAX_PARAM], f"{value} is not a JSON number", "invalid_json")
        if name in fields:
            raise bad_request(name[:_MAX_PARAM], "appears twice in the body", "invalid_json")
        fields[name] = value
    return fields


def _lone_surrogate(text: str) -> str | None:
    """A description of the first lone surrogate in a string; JSON escapes can encode one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start + 1} is half of a surrogate pair (\\u{ord(text[error.start]):04x})"
    return None


def _field_error(message: str) -> ApiError:
    found = _LOCATION.match(message)
    problem, parent = (found[1], found[2]) if found else (message, None)
    if unknown := _UNKNOWN.match(problem):
        return _unknown_field(unknown[1], parent)
    if missing := _MISSING.match(problem):
        return bad_request(f"{parent}.{missing[1]}" if parent else missing[1], "is required", "missing_field")
    return bad_request(parent, problem[0].lower() + problem[1:])


def _unknown_field(name: str, parent: str | None) -> ApiError:
    known = FAMILY.request_fields.__struct_fields__
    if parent:
        hint = f'{parent} is a name or {{"id": name}}'
    elif not (hint := _HINTS.get(name, "")):
        close = difflib.get_close_matches(name[:_MAX_PARAM], known, 1)
        hint = f"did you mean {close[0]}?" if close else f"accepted: {', '.join(sorted(known))}"
    param = f"{parent}.{name}" if parent else name
    message = f"{quoted(param)} is not a field of this request: {hint}"
    return ApiError(400, message, param=param[:_MAX_PARAM], code="unknown_field")
