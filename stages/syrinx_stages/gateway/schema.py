"""The fields of `POST /v1/audio/speech`: names, types and ranges. What they mean together is `order`'s subject."""

from __future__ import annotations

import difflib
import re
from typing import Any

import msgspec

from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.errors import ApiError, bad, shown

_REASONS = {
    "initial_codec_chunk_frames": "chunk sizes are a setting of the server (chunk_ramp), not of a request",
    "do_sample": "send temperature 0 for greedy decoding",
    "subtalker_dosample": "send subtalker_temperature 0 for greedy decoding",
    "instruct": "the field is called instructions",
    "speaker": "the field is called voice",
    "text": "the field is called input",
    "format": "the field is called response_format",
    "max_tokens": "the field is called max_new_tokens",
}
"""Fields of other servers that clients send here, and what to do instead."""
_AT = re.compile(r"^(.*?)(?: - at `\$\.?([^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


def parse_fields(body: dict[str, Any]) -> SpeechFields:
    """Checks names, types and ranges. Raises 400 naming the field."""
    try:
        return msgspec.convert(body, FAMILY.request_fields)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from None
    except OverflowError:
        raise bad(None, "a number is too large for its field") from None


def _explain(message: str) -> ApiError:
    """msgspec's message in our words: what is wrong, and with which field."""
    found = _AT.match(message)
    problem, parent = (found[1], found[2]) if found else (message, None)
    if unknown := _UNKNOWN.match(problem):
        return _unknown_field(unknown[1], parent)
    if missing := _MISSING.match(problem):
        return bad(f"{parent}.{missing[1]}" if parent else missing[1], "is required", "missing_field")
    return bad(parent, problem[0].lower() + problem[1:])


def _unknown_field(name: str, parent: str | None) -> ApiError:
    known = FAMILY.request_fields.__struct_fields__
    if parent:
        hint = f'{parent} is a name or {{"id": name}}'
    elif reason := _REASONS.get(name):
        hint = reason
    elif close := difflib.get_close_matches(name[:100], known, 1):
        hint = f"did you mean {close[0]}?"
    else:
        hint = f"accepted: {', '.join(known)}"
    param = f"{parent}.{name}" if parent else name
    message = f"{shown(param)} is not a field of this request: {hint}"
    return ApiError(400, message, param=param[:100], code="unknown_field")
