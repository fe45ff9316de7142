"""The values of fields by their types: what has one meaning is accepted, however a client spells it. Pure."""

import functools
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, inspect, structs

from syrinx_stages.gateway.errors import ApiError, bad_request, printable, quoted
from syrinx_stages.gateway.fields.json_objects import MISSING

_Choice = TypeVar("_Choice", bound=StrEnum)
_Scalar = inspect.BoolType | inspect.IntType | inspect.FloatType
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_NUMBER = re.compile(r"[+-]?(\d{1,20}\.?\d{0,400}|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)
_MAX_SHOWN = 60
"""Characters of a client's JSON that an error message repeats."""


class Field(Struct, frozen=True):
    """A field of a request."""

    name: str
    type: Any
    required: bool
    scalar: _Scalar | None
    """The type of a value that is no text and has no parts."""
    has_parts: bool
    """It is a list or an object."""
    texts: str
    """What to send, in words, if the type does not say it; empty if it does."""

    def read(self, sent: Raw) -> Any:
        """Returns the value, None if it is not given: null, blank or without parts. Raises `ApiError` 400."""
        if bytes(sent) == b"null":
            return None
        try:
            value = self._scalar(sent) if self.scalar is not None else msgspec.json.decode(sent, type=self.type)
        except msgspec.ValidationError as error:
            if self.has_parts and is_empty(decoded(self.name, sent)):
                return None
            raise self._error(sent, str(error)) from None
        return None if isinstance(value, str) and not (self.required or value.strip()) else value

    def _scalar(self, sent: Raw) -> Any:
        """Returns a boolean or a number, also if it is sent as text. Raises `msgspec.ValidationError`."""
        try:
            value = msgspec.json.decode(sent)
        except msgspec.DecodeError:
            raise msgspec.ValidationError("out of range") from None
        if isinstance(value, str) and not (value := value.strip().lower()):
            return None
        value = truth(value) if isinstance(self.scalar, inspect.BoolType) else self._number(value)
        return msgspec.convert(value, self.type)

    def _number(self, value: Any) -> Any:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value) if re.search(r"[.e]", value) else int(value)
        if isinstance(self.scalar, inspect.IntType) and isinstance(value, float) and value.is_integer():
            return int(value)
        return value

    def _error(self, sent: Raw, message: str) -> ApiError:
        if missing := MISSING.match(message):
            return bad_request(f"{self.name}.{missing[1]}", "is required", "missing_field")
        problem = message.partition(" - at `")[0]
        wanted = self.texts or (_wanted(self.scalar) if self.scalar is not None else "")
        advice = f"send {wanted}" if wanted else problem[0].lower() + problem[1:]
        return bad_request(self.name, f"{_shown(sent)} is not accepted; {advice}")


def decoded(name: str, sent: Raw) -> Any:
    """Returns the value of a field that has another type than its own, or none. Raises `ApiError` 400."""
    try:
        return msgspec.json.decode(sent)
    except msgspec.DecodeError:
        # A part of a valid body: only its numbers were not decoded before.
        raise bad_request(name, f"{_shown(sent)} is not accepted; it has a number that is out of range") from None


def is_empty(value: Any) -> bool:
    """Returns whether a list or an object has no parts: PHP writes both as a list, and forms as a text."""
    return value == [] or (isinstance(value, str) and not value.strip())


def truth(value: Any) -> Any:
    """Returns the boolean that a number or a text in lower case stands for, or else the value."""
    text = str(value) if isinstance(value, str | int) else ""
    return True if text in _TRUE else False if text in _FALSE else value


def _wanted(kind: _Scalar) -> str:
    """Returns which values a type has, for an error message."""
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
    lower = f" above {kind.gt:,}" if kind.gt is not None else f" from {kind.ge:,}"
    return noun + lower + ("" if kind.le is None else f" to {kind.le:,}")


def _shown(sent: Raw) -> str:
    text = bytes(sent)[: 4 * _MAX_SHOWN].decode("utf-8", "replace")
    return printable(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


def choice(
    field: str, value: str | None, choices: Iterable[_Choice], others: Mapping[str, _Choice] | None = None
) -> _Choice | None:
    """Returns the choice that a client names, in any case. Raises `ApiError` 400 if there is none.

    `others`: names that other APIs have for the choices.
    """
    if value is None:
        return None
    names = list(choices)
    accepted = {_compared(name): name for name in names} | {
        _compared(name): each for name, each in (others or {}).items()
    }
    found = accepted.get(_compared(value))
    if found is None:
        raise bad_request(field, f"{quoted(value)} is unknown; accepted: {', '.join(names)}")
    return found


def _compared(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


@functools.cache
def fields_of(kind: type[Struct]) -> dict[str, Field]:
    """Returns the fields of a type by their names."""
    return {each.name: _field(each) for each in structs.fields(kind)}


def _field(info: structs.FieldInfo) -> Field:
    found = inspect.type_info(info.type)
    described = found.types if isinstance(found, inspect.UnionType) else (found,)
    types = [each.type if isinstance(each, inspect.Metadata) else each for each in described]
    scalar = next((each for each in types if isinstance(each, _Scalar)), None)
    has_parts = any(isinstance(each, inspect.ListType | inspect.DictType) for each in types)
    named = any(isinstance(each, inspect.StructType) for each in types)
    is_text = any(isinstance(each, inspect.StrType) and each.pattern is None for each in types)
    schemas = [each.extra_json_schema or {} for each in described if isinstance(each, inspect.Metadata)]
    texts = schemas[0]["description"] if schemas else 'a name or {"id": name}' if named else "a text" if is_text else ""
    return Field(info.name, info.type, info.required, scalar, has_parts, texts)
