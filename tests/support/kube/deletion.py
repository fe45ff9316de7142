"""Deletion: grace periods and finalizers."""

from __future__ import annotations

from typing import Any

from support.kube.apply import copy
from support.kube.errors import conflict
from support.kube.kinds import Kind
from support.kube.store import Object, Store
from support.virtual import stamp

FOREGROUND = "foregroundDeletion"
"""Finalizer of an object that waits for those that it owns."""


def delete(store: Store, kind: Kind, old: Object, options: dict[str, Any]) -> Object:
    """Deletes like the API server; the garbage collector does the rest."""
    wanted = options.get("preconditions", {}).get("uid")
    if wanted and old["metadata"]["uid"] != wanted:
        raise conflict(kind.resource, old["metadata"]["name"], "the uid in the precondition does not match")
    new = copy(old)
    meta = new["metadata"]
    if options.get("propagationPolicy") == "Foreground":
        meta["finalizers"] = [*{*meta.get("finalizers", []), FOREGROUND}]
    grace = 0
    if kind.kind == "Pod":
        grace = int(options.get("gracePeriodSeconds", old["spec"]["terminationGracePeriodSeconds"]))
    if "deletionTimestamp" in meta and grace >= meta["deletionGracePeriodSeconds"]:
        return old
    meta |= {"deletionTimestamp": stamp(grace), "deletionGracePeriodSeconds": grace}
    return store.remove(kind, old) if may_go(new) else store.put(kind, new)


def may_go(obj: Object) -> bool:
    """Returns whether a terminating object can be removed."""
    meta = obj["metadata"]
    return not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")
