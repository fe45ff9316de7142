"""Parses the fields of a request: those of `SpeechFields`, and what those of other APIs' clients mean."""

import difflib
import itertools
from typing import Any

import msgspec
from msgspec import Raw

from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.errors import ApiError, bad_request, printable, quoted
from syrinx_stages.gateway.fields.json_objects import (
    RawBody,
    Sent,
    check_commas,
    decode,
    decoding,
    put_back,
    take_out_references,
)
from syrinx_stages.gateway.fields.peers import FOREIGN, PeerField
from syrinx_stages.gateway.fields.values import fields_of

_MAX_PARAM = 100
"""Characters of a client's field name that `param` repeats."""
_EXTRA = "extra_params"
"""More fields, of vLLM-Omni's clients: those of the request itself come first."""
_MAX_EXTRA = 64 * 1024
"""Maximum size of `extra_params` in bytes."""
_NOTHING = (b"null", b'""', b"[]")
"""Values of `extra_params` that add nothing; PHP writes an empty object as an array."""
_MAX_NAMED = 8
"""Maximum number of the parts of a value that warnings name."""

Parsed = tuple[SpeechFields, list[str]]
"""Fields, and warnings that name those without effect."""


def parse_fields(body: RawBody, kind: type[SpeechFields] = FAMILY.request_fields) -> Parsed:
    """Parses a request body. `kind`: the type with the names, types and defaults of its fields.

    Raises `ApiError`: 400, naming the field if there is one; 413 for a body above `MAX_BODY` without its reference, or
    with more than `MAX_COMMAS`.
    """
    rest, references = take_out_references(body)
    check_commas(bytes(rest).count(b","), "body")
    fields, warnings = parse_object(decode(rest, Sent), kind)
    return put_back(fields, references), warnings


def parse_object(sent: Sent, kind: type[SpeechFields]) -> Parsed:
    """Parses the fields of an object. Raises `ApiError` 400, naming the field if there is one."""
    with decoding():
        values, warnings = _values(sent, kind)
        if _EXTRA in sent:
            warnings += _add_extra(sent[_EXTRA], values, kind)
    missing = (each.name for each in fields_of(kind).values() if each.required and each.name not in values)
    if (name := next(missing, None)) is not None:
        raise bad_request(name, "is required", "missing_field")
    return kind(**values), warnings


def _values(sent: Sent, kind: type[SpeechFields]) -> tuple[dict[str, Any], list[str]]:
    """Returns the values that are given, also in the fields of other APIs, and warnings."""
    fields = fields_of(kind)
    read = {name: fields[name].read(raw) for name, raw in sent.items() if name in fields}
    values, warnings = {name: value for name, value in read.items() if value is not None}, list[str]()
    for name, raw in sent.items():
        if name not in fields and name != _EXTRA:
            warnings += _translate(name, raw, values, kind)
    return values, warnings


def _translate(name: str, raw: Raw, values: dict[str, Any], kind: type[SpeechFields]) -> list[str]:
    """Adds what a field of another API means to `values`. Returns warnings."""
    field = FOREIGN.get(name)
    if field is None:
        raise _unknown_field(name, kind)
    value = msgspec.json.decode(raw)
    if field.asks_for_nothing(value):
        return []
    if field.refused:
        raise bad_request(name, f"is not available: {field.refused}", "unknown_field")
    if field.convert is None:
        return [f"{name} is ignored: {field.ignored}"]
    meant, ignored = field.convert(value)
    for target, given in meant.items():
        _add(field, target, given, values, kind)
    return [f"{name}: {each}" for each in ignored[:_MAX_NAMED]]


def _add(field: PeerField, target: str, given: Any, values: dict[str, Any], kind: type[SpeechFields]) -> None:
    try:
        value = fields_of(kind)[target].read(Raw(msgspec.json.encode(given)))
    except ApiError as error:
        message = f"{field.name}: stands for {error.message}"
        raise ApiError(error.status, message, param=field.name, code=error.code) from None
    if value is not None and values.setdefault(target, value) != value:
        raise bad_request(field.name, f"stands for {target}, which has another value; leave one of them out")


def _add_extra(raw: Raw, values: dict[str, Any], kind: type[SpeechFields]) -> list[str]:
    """Adds the fields in `extra_params` to those that the body itself does not have. Returns warnings."""
    if len(bytes(raw)) > _MAX_EXTRA:
        raise bad_request(_EXTRA, f"has {len(bytes(raw)):,} bytes; at most {_MAX_EXTRA:,} are accepted")
    if bytes(raw) in _NOTHING:
        return []
    if not bytes(raw).startswith(b"{"):
        raise bad_request(_EXTRA, "is no object; send one with the fields")
    sent = msgspec.json.decode(raw, type=Sent)
    known = fields_of(FAMILY.request_fields).keys() | FOREIGN.keys()
    unknown = itertools.islice((name for name in sent if name not in known), _MAX_NAMED)
    ignored = [f"{_EXTRA}.{quoted(name)} is ignored: unknown field" for name in unknown]
    extra, warnings = _values({name: raw for name, raw in sent.items() if name in known}, kind)
    extra.pop("input", None)
    for name, value in extra.items():
        values.setdefault(name, value)
    return ignored + warnings


def _unknown_field(name: str, kind: type[SpeechFields]) -> ApiError:
    known = sorted(fields_of(kind))
    close = difflib.get_close_matches(name[:_MAX_PARAM], known, 1)
    hint = f"did you mean {close[0]}?" if close else f"accepted: {', '.join(known)}"
    message = f"{quoted(name)} is not a field of this request: {hint}"
    return ApiError(400, message, param=printable(name[:_MAX_PARAM]), code="unknown_field")
