"""Deletion: grace periods, finalizers and propagation."""

from __future__ import annotations

from typing import Any

from support.kube.apply import copy
from support.kube.errors import conflict
from support.kube.kinds import Kind
from support.kube.store import Object, Store
from support.virtual import stamp


class Deletion:
    """Deletes like the API server; the garbage collector does the rest."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def delete(self, kind: Kind, old: Object, options: dict[str, Any]) -> Object:
        for name, wanted in options.get("preconditions", {}).items():
            if wanted and old["metadata"].get(name) != wanted:
                raise conflict(kind.resource, old["metadata"]["name"], f"the {name} in the precondition does not match")
        new = copy(old)
        meta = new["metadata"]
        finalizers = list(meta.get("finalizers", []))
        policy = options.get("propagationPolicy")
        if policy == "Foreground" and "foregroundDeletion" not in finalizers:
            finalizers.append("foregroundDeletion")
        if finalizers:
            meta["finalizers"] = finalizers
        grace = _grace(kind, old, options)
        sooner = "deletionTimestamp" not in meta or grace < meta.get("deletionGracePeriodSeconds", 0)
        if not sooner and (grace or not self.may_go(new)):
            return self._store.put(kind, new) if new != old else old
        meta["deletionTimestamp"] = stamp(grace)
        meta["deletionGracePeriodSeconds"] = grace
        if self.may_go(new):
            return self._store.remove(kind, old)
        if kind.generation and "generation" in meta and "deletionTimestamp" not in old["metadata"]:
            meta["generation"] += 1
        return self._store.put(kind, new)

    @staticmethod
    def may_go(obj: Object) -> bool:
        """Returns whether a terminating object can be removed."""
        meta = obj["metadata"]
        return not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")


def _grace(kind: Kind, obj: Object, options: dict[str, Any]) -> int:
    """Returns the grace period in seconds; 0 for anything but pods."""
    if kind.kind != "Pod" or not obj["spec"].get("nodeName") or obj["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(obj["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)
