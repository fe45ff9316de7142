"""Validation beyond types: immutable fields, names, and selectors."""

from __future__ import annotations

import re
from typing import Any

from support.kube.errors import invalid

Object = dict[str, Any]
Cause = tuple[str, str]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_MUTABLE = {
    "StatefulSet": {"replicas", "template", "updateStrategy", "revisionHistoryLimit", "minReadySeconds"}
    | {"ordinals", "persistentVolumeClaimRetentionPolicy"},
    "PersistentVolumeClaim": {"resources", "volumeName", "volumeAttributesClassName"},
    "Pod": {"tolerations", "terminationGracePeriodSeconds"},
}
"""The only fields of a spec that may change."""
_IMMUTABLE = {
    "Deployment": ("spec", "selector"),
    "Service": ("spec", "clusterIP"),
    "Secret": ("type",),
    "RoleBinding": ("roleRef",),
    "ClusterRoleBinding": ("roleRef",),
}


def check(obj: Object, old: Object | None) -> None:
    """Raises ApiError 422 with all violations."""
    causes = [*_metadata(obj), *(_workload(obj["spec"]) if obj["kind"] in ("Deployment", "StatefulSet") else [])]
    if old is not None:
        causes += _immutable(obj, old)
    if causes:
        raise invalid(obj["kind"], obj["metadata"]["name"], *causes)


def _metadata(obj: Object) -> list[Cause]:
    meta = obj["metadata"]
    free = obj["kind"] in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    causes = _labels("metadata.labels", meta.get("labels", {}))
    if not free and not _NAME.fullmatch(meta["name"]):
        causes.append(("metadata.name", f'Invalid value: "{meta["name"]}": not a valid DNS name'))
    if sum(len(key) + len(value) for key, value in meta.get("annotations", {}).items()) > 262_144:
        causes.append(("metadata.annotations", "Too long: may not be more than 262144 bytes"))
    return causes


def _labels(path: str, labels: dict[str, str]) -> list[Cause]:
    wrong = [value for value in labels.values() if not _LABEL.fullmatch(value)]
    return [(path, f'Invalid value: "{value}": not a valid label') for value in wrong]


def _workload(spec: Object) -> list[Cause]:
    wanted, labels = spec["selector"].get("matchLabels", {}), spec["template"]["metadata"].get("labels", {})
    causes = _labels("spec.template.metadata.labels", labels)
    if not wanted or not wanted.items() <= labels.items():
        causes.append(("spec.template.metadata.labels", "Invalid value: `selector` does not match template `labels`"))
    return causes


def _immutable(obj: Object, old: Object) -> list[Cause]:
    kind = obj["kind"]
    if kind in _MUTABLE and _without(obj["spec"], _MUTABLE[kind]) != _without(old["spec"], _MUTABLE[kind]):
        return [("spec", f"Forbidden: updates for fields other than {sorted(_MUTABLE[kind])} are forbidden")]
    if kind in _IMMUTABLE and _at(obj, _IMMUTABLE[kind]) != _at(old, _IMMUTABLE[kind]):
        return [(".".join(_IMMUTABLE[kind]), "Invalid value: field is immutable")]
    if old.get("immutable") and obj.get("data") != old.get("data"):
        return [("data", "Forbidden: field is immutable when `immutable` is set")]
    return []


def _without(spec: Object, fields: set[str]) -> Object:
    return {key: value for key, value in spec.items() if key not in fields}


def _at(obj: Object, path: tuple[str, ...]) -> Any:
    for step in path:
        obj = obj[step]
    return obj
