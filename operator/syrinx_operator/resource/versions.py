"""Reads what another version of Syrinx has written or declared. What this version does not know is left out. Pure."""

import contextlib
import types
import typing
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, ValidationError, structs

from syrinx_operator.resource.documents import Path

T = TypeVar("T")


def without_unknown(value: Any, annotation: Any, path: Path = ()) -> tuple[Any, list[Path]]:
    """Returns a document without the fields that a type of the resource does not have, and the paths of these."""
    bare, parts = _bare(annotation)
    if types.NoneType in parts:
        return without_unknown(value, parts[0], path)
    if isinstance(value, dict) and isinstance(bare, type) and issubclass(bare, Struct):
        fields = {field.encode_name: field.type for field in structs.fields(bare)}
        known = {
            name: without_unknown(each, fields[name], (*path, name)) for name, each in value.items() if name in fields
        }
        found = [(*path, name) for name in value if name not in fields]
        return {name: each for name, (each, _) in known.items()}, [
            *found,
            *(path for _, more in known.values() for path in more),
        ]
    if isinstance(value, list) and typing.get_origin(bare) is tuple:
        items = [without_unknown(each, parts[0], (*path, index)) for index, each in enumerate(value)]
        return [each for each, _ in items], [path for _, more in items for path in more]
    return value, []


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
