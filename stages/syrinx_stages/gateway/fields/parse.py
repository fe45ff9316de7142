"""Parses the fields of a request: those of `SpeechFields`, and what those of other APIs' clients mean."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, unknown_field
from syrinx_stages.gateway.fields.json_objects import (
    RawBody,
    Sent,
    check_commas,
    decode,
    decoding,
    put_back,
    take_out_references,
)
from syrinx_stages.gateway.fields.peers import FOREIGN
from syrinx_stages.gateway.fields.values import decoded, fields_of, is_empty

_EXTRA = "extra_params"
"""More fields, of vLLM-Omni's clients: those of the request itself come first."""
_MAX_EXTRA = 64 * 1024
"""Maximum size of `extra_params` in bytes."""
_MAX_NAMED = 8
"""Maximum number of the parts of a value that warnings name."""


class Parsed(Struct, frozen=True):
    """Fields of a request, as a client has sent them."""

    fields: SpeechFields
    warnings: list[str]
    """They name fields without effect."""
    names: Mapping[str, str] = {}
    """The fields of other APIs that the client has sent instead of fields, by these."""

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Makes errors name the fields that the client has sent."""
        try:
            yield
        except ApiError as error:
            name = self.names.get(error.param or "")
            if name is None:
                raise
            raise error.renamed(name, f"stands for {error.param}: ") from None


def parse_fields(body: RawBody, kind: type[SpeechFields] = FAMILY.request_fields) -> Parsed:
    """Parses a request body. `kind`: the type with the names, types and defaults of its fields.

    Raises `ApiError`: 400, naming the field if there is one; 413 for a body above `MAX_BODY` without its reference, or
    with more than `MAX_COMMAS`.
    """
    rest, references = take_out_references(body)
    check_commas(bytes(rest).count(b","), "body")
    parsed = parse_object(decode(rest, Sent), kind)
    return structs.replace(parsed, fields=put_back(parsed.fields, references))


def parse_object(sent: Sent, kind: type[SpeechFields]) -> Parsed:
    """Parses the fields of an object. Raises `ApiError` 400, naming the field if there is one."""
    with decoding():
        found = _Values(sent, kind)
        if _EXTRA in sent:
            _add_extra(sent[_EXTRA], found)
        for each in fields_of(kind).values():
            if each.required and each.name not in found.values:
                found.require(each.name, sent)
    return Parsed(kind(**found.values), found.warnings, found.names)


class _Values:
    """The values that are given, also in the fields of other APIs. Raises `ApiError` 400."""

    def __init__(self, sent: Sent, kind: type[SpeechFields]) -> None:
        self.kind = kind
        self._fields = fields_of(kind)
        read = {name: self._fields[name].read(raw) for name, raw in sent.items() if name in self._fields}
        self.values: dict[str, Any] = {name: value for name, value in read.items() if value is not None}
        self.names: dict[str, str] = {}
        """See `Parsed`."""
        self.warnings: list[str] = []
        for name, raw in sent.items():
            if name not in self._fields and name != _EXTRA:
                self._translate(name, raw)

    def require(self, name: str, sent: Sent) -> None:
        """Adds the blank value of a required field that was sent under another name. Raises 400 if there is none."""
        alias = next((each for each in sent if each in FOREIGN and FOREIGN[each].stands_for == name), None)
        if alias is None:
            raise bad_request(name, "is required", "missing_field")
        if not isinstance(value := decoded(alias, sent[alias]), str):
            raise bad_request(alias, f"stands for {name}, which is required", "missing_field")
        self.values[name], self.names[name] = value, alias

    def _translate(self, name: str, raw: Raw) -> None:
        """Adds what a field of another API means."""
        field = FOREIGN.get(name)
        if field is None:
            raise unknown_field(name, "this request", sorted(self._fields))
        value = decoded(name, raw)
        if field.asks_for_nothing(value):
            return
        if field.refused:
            raise bad_request(name, f"is not available: {field.refused}", "unknown_field")
        if field.convert is None:
            self.warnings.append(f"{name} is ignored: {field.ignored}")
            return
        meant, ignored = field.convert(value)
        for target, given in meant.items():
            self._add(name, target, given)
        self.warnings += [f"{name}: {each}" for each in ignored[:_MAX_NAMED]]

    def _add(self, name: str, target: str, given: Any) -> None:
        """Adds the value of a field, which field `name` of another API stands for."""
        try:
            value = self._fields[target].read(Raw(msgspec.json.encode(given)))
        except ApiError as error:
            raise error.renamed(name, f"stands for {error.param}: ") from None
        if target not in self.values:
            self.names[target] = name
        if value is None:
            return
        if target not in self.values:
            self.values[target] = value
        elif self.values[target] != value:
            raise bad_request(name, f"stands for {target}, which has another value; leave one of them out")


def _add_extra(raw: Raw, found: _Values) -> None:
    """Adds the fields in `extra_params` to those that the body itself does not have."""
    if len(bytes(raw)) > _MAX_EXTRA:
        raise bad_request(_EXTRA, f"has {len(bytes(raw)):,} bytes; at most {_MAX_EXTRA:,} are accepted")
    if is_empty(value := decoded(_EXTRA, raw)) or value is None:
        return
    if not isinstance(value, dict):
        raise bad_request(_EXTRA, "is no object; send one with the fields")
    sent = msgspec.json.decode(raw, type=Sent)
    known = fields_of(FAMILY.request_fields).keys() | FOREIGN.keys()
    unknown = itertools.islice((name for name in sent if name not in known), _MAX_NAMED)
    found.warnings += [f"{_EXTRA}.{quoted(name)} is ignored: unknown field" for name in unknown]
    extra = _Values({name: raw for name, raw in sent.items() if name in known}, found.kind)
    found.warnings += extra.warnings
    for name in extra.values.keys() - found.values.keys() - {"input"}:
        found.values[name] = extra.values[name]
        found.names.pop(name, None)
        if name in extra.names:
            found.names[name] = extra.names[name]
