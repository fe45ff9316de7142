"""What the API server makes of an object, remembered: tests write the same objects again and again."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from support.admission import admit as admit_custom
from support.kube import schemas
from support.kube.kinds import Kind

Object = dict[str, Any]
_OF_THE_SERVER = ("creationTimestamp", "generation", "resourceVersion", "uid")
_encode = msgspec.json.encode
_decode = msgspec.json.decode


def decode(kind: Kind, obj: Object, unknown: list[str], *, exact: bool) -> Object:
    """Returns an object as stored, like `schemas.decode`. Raises ApiError 400."""
    parts: Object = {}
    for key, value in obj.items():
        if key == "metadata":
            found, more = schemas.decode(kind.schema, {key: value}, "", unknown, exact=exact), ()
        else:
            content, more = _decoded(kind, exact, _encode({key: value}))
            found = _decode(content)
        unknown += more
        parts |= found
    return parts


@lru_cache(maxsize=8192)
def _decoded(kind: Kind, exact: bool, content: bytes) -> tuple[bytes, tuple[str, ...]]:
    unknown: list[str] = []
    return _encode(schemas.decode(kind.schema, _decode(content), "", unknown, exact=exact)), tuple(unknown)


def validate(kind: Kind, obj: Object) -> None:
    """Raises ApiError 422 for violations of a built-in kind's schema by what its writer wrote."""
    meta = {key: value for key, value in obj["metadata"].items() if key not in _OF_THE_SERVER}
    _validate(kind, _encode({**obj, "metadata": meta}))


@lru_cache(maxsize=8192)
def _validate(kind: Kind, content: bytes) -> None:
    schemas.validate(kind.group, kind.version, kind.kind, _decode(content))


def admit(kind: Kind, new: Object, old: Object | None) -> Object:
    """Returns a custom object as stored. Raises Refused."""
    name = {"name": new["metadata"]["name"]}
    before = None if old is None else _encode({**old, "metadata": name})
    admitted: Object = _decode(_admit(kind, _encode({**new, "metadata": name}), before))
    return {**admitted, "metadata": new["metadata"]}


@lru_cache(maxsize=8192)
def _admit(kind: Kind, new: bytes, old: bytes | None) -> bytes:
    return _encode(admit_custom(kind.crd, _decode(new), None if old is None else _decode(old), strict=False))
