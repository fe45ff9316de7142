"""The scale subresource."""

from __future__ import annotations

from typing import Any

from support.kube.kinds import Kind, crd_version

Object = dict[str, Any]


def read(kind: Kind, obj: Object) -> Object:
    """Returns the autoscaling/v1 Scale of an object."""
    meta = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    wanted, current, selector = _paths(kind)
    labels = obj["spec"].get("selector", {}).get("matchLabels", {})
    text = (
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())) if kind.crd is None else _at(obj, selector)
    )
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in names if name in meta},
        "spec": {"replicas": _at(obj, wanted) or 0},
        "status": {"replicas": _at(obj, current) or 0} | ({"selector": text} if text else {}),
    }


def write(kind: Kind, obj: Object, body: Object) -> Object:
    """Sets the replicas of `body` (a Scale), in place."""
    *parents, last = _paths(kind)[0]
    target = obj
    for step in parents:
        target = target.setdefault(step, {})
    target[last] = body["spec"].get("replicas", 0)
    return obj


def _paths(kind: Kind) -> tuple[list[str], list[str], list[str]]:
    declared = crd_version(kind.crd)["subresources"]["scale"] if kind.crd else {}
    return (
        declared.get("specReplicasPath", ".spec.replicas").split(".")[1:],
        declared.get("statusReplicasPath", ".status.replicas").split(".")[1:],
        declared.get("labelSelectorPath", "").split(".")[1:],
    )


def _at(obj: Any, path: list[str]) -> Any:
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj if path else None
