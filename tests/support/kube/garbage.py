"""Garbage collection."""

from __future__ import annotations

from support.kube.apply import copy
from support.kube.controllers import Controller, is_going
from support.kube.deletion import FOREGROUND
from support.kube.store import Object


class GarbageCollector(Controller):
    """Deletes objects without a remaining owner; in the foreground if the owner waits for them."""

    def sync(self) -> None:
        everything = list(self.api.store.everything())
        living = {obj["metadata"]["uid"]: obj for obj in everything}
        owners = {uid: _owners(obj) for uid, obj in living.items()}
        parents = {owner for each in owners.values() for owner in each}
        for uid, obj in living.items():
            found = [living[owner] for owner in owners[uid] if owner in living]
            if owners[uid] and not is_going(obj) and all(map(_waits, found)):
                policy = "Foreground" if found and uid in parents else "Background"
                self.delete(obj["kind"], obj, propagationPolicy=policy)
        for uid, obj in living.items():
            if _waits(obj) and uid not in parents:
                self._release(obj)

    def _release(self, obj: Object) -> None:
        new = copy(obj)
        new["metadata"]["finalizers"].remove(FOREGROUND)
        self._replace(obj["kind"], obj, new, "")


def _owners(obj: Object) -> list[str]:
    return [reference["uid"] for reference in obj["metadata"].get("ownerReferences", ())]


def _waits(obj: Object) -> bool:
    return is_going(obj) and FOREGROUND in obj["metadata"].get("finalizers", ())
