"""Field ownership and server-side apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from support.kube import fields, schemas
from support.kube.fields import Fields
from support.kube.schemas import Node
from support.virtual import stamp

Object = dict[str, Any]


def copy(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


@dataclass(frozen=True)
class Manager:
    """Identifies an entry of managedFields."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""


Managers = dict[Manager, tuple[Fields, str]]
"""Owned fields and time, by manager."""


def read_managers(obj: Object) -> Managers:
    return {
        Manager(entry.get("manager", ""), entry["operation"], entry["apiVersion"], entry.get("subresource", "")): (
            fields.decode(entry.get("fieldsV1", {})),
            entry["time"],
        )
        for entry in obj.get("metadata", {}).get("managedFields") or []
        if "operation" in entry
    }


def write_managers(obj: Object, managers: Managers) -> None:
    entries = [
        {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": since,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields.encode(owned),
        }
        | ({"subresource": manager.subresource} if manager.subresource else {})
        for manager, (owned, since) in managers.items()
        if owned
    ]
    obj["metadata"].pop("managedFields", None)
    if entries:
        obj["metadata"]["managedFields"] = entries


def track_update(node: Node, manager: Manager, old: Object | None, new: Object, managers: Managers) -> Managers:
    """Returns ownership after a create, put or patch: the writer owns what it changed; removed fields have no owner."""
    changed, removed = fields.compare(node, old or {}, new)
    if not changed and not removed:
        return managers
    after: Managers = {}
    for other, (owned, since) in managers.items():
        after[other] = (owned - removed - (changed if other != manager else frozenset()), since)
    owned, _ = after.get(manager, (frozenset(), ""))
    if changed:
        after[manager] = (owned | changed, stamp())
    return after


def apply(
    node: Node, manager: Manager, live: Object | None, config: Object, managers: Managers
) -> tuple[Object, Managers]:
    """Returns the object after an apply with force, before defaults, and its ownership."""
    asked = fields.owned(node, config)
    merged = copy(merge(node, live or {}, config))
    last, since = managers.get(manager, (frozenset(), stamp()))
    others = {other: owned for other, (owned, _) in managers.items() if other != manager}
    _prune(node, merged, last - asked, frozenset().union(asked, *others.values()))
    changed, removed = fields.compare(node, live or {}, merged)
    after = {other: (owned - changed - removed, managers[other][1]) for other, owned in others.items()}
    after[manager] = (asked, since if asked == last else stamp())
    return merged, after


def merge(node: Node, live: Any, config: Any) -> Any:
    """Merges the applied value into the live one; keyed lists by item."""
    shape = schemas.shape(node, config)
    if shape == "map" and isinstance(live, dict):
        merged = dict(live)
        for key, value in config.items():
            merged[key] = merge(schemas.child(node, key), live[key], value) if key in live else value
        return merged
    if shape == "set" and isinstance(live, list):
        return _joined({fields.member(v): v for v in live}, {fields.member(v): v for v in config})
    if shape == "listmap" and isinstance(live, list):
        before, after = fields.by_key(node, live), fields.by_key(node, config)
        inner = schemas.items(node)
        both = {key: merge(inner, before[key], item) if key in before else item for key, item in after.items()}
        return _joined(before, both)
    return config


def _joined(before: dict[str, Any], after: dict[str, Any]) -> list[Any]:
    """Returns applied items in their order, and then those that are only live."""
    return [*after.values(), *(item for key, item in before.items() if key not in after)]


def _prune(node: Node, merged: Object, removed: Fields, held: Fields) -> None:
    """Removes fields that the manager no longer applies and nobody holds."""
    parents = {path[:depth] for path in held for depth in range(1, len(path))}
    for path in sorted(removed - held - parents):
        fields.remove(node, merged, path)
