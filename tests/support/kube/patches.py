"""Merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

from typing import Any

from support.kube.apply import copy
from support.kube.errors import ApiError, bad_request


def merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Applies a JSON patch. Raises ApiError 422 if a `test` or a path fails."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    result = copy(target)
    for operation in operations:
        try:
            _operate(result, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            detail = f"the server rejected our request due to an error in our request: {operation}: {error}"
            raise ApiError(422, "Invalid", detail) from None
    return result


def _operate(root: Any, operation: dict[str, Any]) -> None:
    kind, path = operation["op"], _steps(operation["path"])
    if kind == "test":
        if _at(root, path) != operation["value"]:
            raise ValueError("testing value failed")
    elif kind == "add":
        _add(root, path, operation["value"])
    elif kind == "remove":
        _remove(root, path)
    elif kind == "replace":
        _remove(root, path)
        _add(root, path, operation["value"])
    elif kind in ("copy", "move"):
        value = copy(_at(root, _steps(operation["from"])))
        if kind == "move":
            _remove(root, _steps(operation["from"]))
        _add(root, path, value)
    else:
        raise ValueError(f"unknown operation {kind!r}")


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _at(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _add(root: Any, path: list[str], value: Any) -> None:
    parent = _at(root, path[:-1])
    if isinstance(parent, list):
        parent.insert(len(parent) if path[-1] == "-" else int(path[-1]), value)
    else:
        parent[path[-1]] = value


def _remove(root: Any, path: list[str]) -> None:
    parent = _at(root, path[:-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
