"""Field sets as in `managedFields`, and their values in an object.

A path is a tuple of steps in the notation of fieldsV1: `f:NAME` for a field, `k:{...}` for an item of a list by its
keys, `v:VALUE` for a member of a set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from support.kube import schemas
from support.kube.errors import ApiError
from support.kube.schemas import Node

Path = tuple[str, ...]
Fields = frozenset[Path]

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_ITEM = object()
"""Path element for the existence of a list item."""
_KEY_DEFAULTS = {"protocol": "TCP"}
_SERVERS_OWN = {
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata",),
    *((("f:metadata", f"f:{name}")) for name in ("name", "namespace", "creationTimestamp", "selfLink", "uid")),
    *((("f:metadata", f"f:{name}")) for name in ("generation", "managedFields", "resourceVersion", "generateName")),
}


def key_of(node: Node, item: Any) -> str:
    """Returns the path element of an item in a keyed list. Raises ApiError if a key is missing."""
    keys = {}
    for name in schemas.map_keys(node):
        value = item.get(name, _KEY_DEFAULTS.get(name)) if isinstance(item, dict) else None
        if value is None:
            raise ApiError(500, "", f"associative list with keys has an element that omits key field {name!r}")
        keys[name] = value
    return "k:" + _canonical(keys)


def by_key(node: Node, items: list[Any]) -> dict[str, Any]:
    """Returns a keyed list's items by path element. Raises ApiError for duplicate keys."""
    found: dict[str, Any] = {}
    for item in items:
        step = key_of(node, item)
        if step in found:
            raise ApiError(500, "", f"duplicate entries for key {step[2:]}")
        found[step] = item
    return found


def member(value: Any) -> str:
    return "v:" + _canonical(value)


def flatten(node: Node, value: Any) -> dict[Path, Any]:
    """Returns every field that can be owned, with its value."""
    found: dict[Path, Any] = {}
    _flatten(node, value, (), found)
    return found


def _flatten(node: Node, value: Any, path: Path, found: dict[Path, Any]) -> None:
    shape = schemas.shape(node, value)
    if shape == "leaf" or not value:
        if path:
            found[path] = value
    elif shape == "map":
        for key, content in value.items():
            _flatten(schemas.child(node, key), content, (*path, f"f:{key}"), found)
    elif shape == "set":
        found |= {(*path, member(content)): content for content in value}
    else:
        for step, item in by_key(node, value).items():
            found[(*path, step)] = _ITEM
            _flatten(schemas.items(node), item, (*path, step), found)


def owned(node: Node, value: dict[str, Any]) -> Fields:
    """Returns the fields of an object that can have an owner."""
    return frozenset(path for path in flatten(node, value) if path not in _SERVERS_OWN)


def conflicts(node: Node, applied: dict[str, Any], stored: dict[str, Any]) -> set[Path]:
    """Returns the fields of an object that are stored with another value than they were applied with.

    Who applies the same file server-side, after somebody has applied it client-side, has conflicts about them.
    """
    found = flatten(node, stored)
    given = {path: value for path, value in flatten(node, applied).items() if path not in _SERVERS_OWN}
    return {path for path, value in given.items() if value not in (_ITEM, {}, []) and found.get(path) != value}


def compare(node: Node, old: dict[str, Any], new: dict[str, Any]) -> tuple[Fields, Fields]:
    """Returns (fields added or changed, fields removed)."""
    # Most writes change one part of an object.
    differ = [key for key in {**old, **new} if key not in old or key not in new or old[key] != new[key]]
    before, after = (flatten(node, {key: obj[key] for key in differ if key in obj}) for obj in (old, new))
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    return frozenset(changed - _SERVERS_OWN), frozenset((before.keys() - after.keys()) - _SERVERS_OWN)


@lru_cache(maxsize=8192)
def encode(fields: Fields) -> dict[str, Any]:
    """Returns the fields in the fieldsV1 format. Callers must not modify it."""
    tree: dict[str, Any] = {}
    for path in sorted(fields):
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        node["."] = {}
    return _trim(tree)


def _trim(tree: dict[str, Any]) -> dict[str, Any]:
    return {step: {} if below.keys() == {"."} else _trim(below) for step, below in tree.items()}


def decode(tree: dict[str, Any]) -> Fields:
    """Returns the fields of a fieldsV1 value."""
    return _decoded(msgspec.json.encode(tree))


@lru_cache(maxsize=8192)
def _decoded(content: bytes) -> Fields:
    return frozenset(_paths(msgspec.json.decode(content), ()))


def _paths(tree: dict[str, Any], path: Path) -> Iterator[Path]:
    for step, below in tree.items():
        if step == ".":
            yield path
        elif not below:
            yield (*path, step)
        else:
            yield from _paths(below, (*path, step))


def remove(node: Node, value: Any, path: Path) -> None:
    """Removes a field from an object, in place, and parents that become empty."""
    step, rest = path[0], path[1:]
    if step.startswith("f:") and isinstance(value, dict):
        key = step[2:]
        if key not in value:
            return
        if rest:
            remove(schemas.child(node, key), value[key], rest)
            if value[key] in ({}, []):
                del value[key]
        else:
            del value[key]
    elif step.startswith("v:") and isinstance(value, list):
        value[:] = [content for content in value if member(content) != step]
    elif isinstance(value, list):
        for item in [item for item in value if key_of(node, item) == step]:
            if rest:
                remove(schemas.items(node), item, rest)
            else:
                value.remove(item)
