"""Reads what another version of Syrinx has written or declared. What this version does not know is left out. Pure."""

import contextlib
import types
import typing
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, ValidationError, structs

from syrinx_operator.resource.checks.documents import Path

T = TypeVar("T")


def without_unknown(value: Any, struct: type[Struct]) -> tuple[Any, list[Path]]:
    """Returns a document without the fields that a type of the resource does not have, and the paths of these."""
    unknown: list[Path] = []
    return _without_unknown(value, struct, (), unknown), unknown


def _without_unknown(value: Any, annotation: Any, path: Path, unknown: list[Path]) -> Any:
    bare, parts = _bare(annotation)
    if types.NoneType in parts:
        return _without_unknown(value, parts[0], path, unknown)
    if isinstance(value, dict) and isinstance(bare, type) and issubclass(bare, Struct):
        fields = {field.encode_name: field.type for field in structs.fields(bare)}
        unknown += [(*path, name) for name in value if name not in fields]
        known = {name: each for name, each in value.items() if name in fields}
        return {name: _without_unknown(each, fields[name], (*path, name), unknown) for name, each in known.items()}
    if isinstance(value, list) and typing.get_origin(bare) is tuple:
        return [_without_unknown(each, parts[0], (*path, index), unknown) for index, each in enumerate(value)]
    return value


def read_known(value: Any, kind: type[T]) -> T:
    """Returns a status or state as its type, without the fields and list items that this version cannot read.

    Raises `ValidationError` if a required part is one of them.
    """
    return cast(T, _read(value, kind))


def _read(value: Any, annotation: Any) -> Any:
    try:
        return msgspec.convert(value, annotation)
    except ValidationError:
        bare, parts = _bare(annotation)
        if types.NoneType in parts:
            return _read(value, parts[0])
        if isinstance(value, dict) and isinstance(bare, type) and issubclass(bare, Struct):
            return _read_struct(value, bare)
        if isinstance(value, list) and typing.get_origin(bare) is tuple:
            return tuple(_read_items(value, parts[0]))
        raise


def _read_struct(value: dict[str, Any], struct: type[Struct]) -> Struct:
    known = {}
    for field in structs.fields(struct):
        if field.encode_name in value:
            try:
                known[field.name] = _read(value[field.encode_name], field.type)
            except ValidationError:
                if field.required:
                    raise
        elif field.required:
            raise ValidationError(f"missing: {field.encode_name}")
    return struct(**known)


def _read_items(values: list[Any], annotation: Any) -> Iterator[Any]:
    for value in values:
        with contextlib.suppress(ValidationError):
            yield _read(value, annotation)


def _bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type without its metadata, and its arguments."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation, typing.get_args(annotation)
