"""Garbage collection, and the objects that come with namespaces and claims."""

from __future__ import annotations

from support.kube.apply import copy
from support.kube.controllers import Controller, is_going
from support.kube.store import Object


class GarbageCollector(Controller):
    """Deletes objects without a remaining owner; in the foreground if the owner waits for them."""

    def sync(self) -> None:
        everything = list(self.api.store.everything())
        living = {obj["metadata"]["uid"]: obj for obj in everything}
        for obj in everything:
            references = obj["metadata"].get("ownerReferences", ())
            owners = [living[reference["uid"]] for reference in references if self._is_there(obj, reference, living)]
            if references and not owners and not is_going(obj):
                self._remove(obj, "Background")
            elif owners and all(_waits(owner) for owner in owners) and not is_going(obj):
                self._remove(obj, "Foreground")
        for obj in everything:
            finalizers = obj["metadata"].get("finalizers", ())
            if is_going(obj) and "foregroundDeletion" in finalizers and not self._dependents(obj):
                self._release(obj, "foregroundDeletion")

    def _is_there(self, obj: Object, reference: Object, living: dict[str, Object]) -> bool:
        owner = living.get(reference["uid"])
        if owner is None or (owner["kind"], owner["metadata"]["name"]) != (reference["kind"], reference["name"]):
            return False
        return owner["metadata"].get("namespace") in (None, obj["metadata"].get("namespace"))

    def _dependents(self, owner: Object) -> list[Object]:
        uid = owner["metadata"]["uid"]
        return [
            obj
            for obj in self.api.store.everything()
            if any(reference["uid"] == uid for reference in obj["metadata"].get("ownerReferences", ()))
        ]

    def _remove(self, obj: Object, policy: str) -> None:
        kind = self.api.kinds.of(obj)
        if self.api.store.get(kind, obj["metadata"].get("namespace"), obj["metadata"]["name"]) is obj:
            options = {"propagationPolicy": policy} if policy == "Foreground" and self._dependents(obj) else {}
            self.api.delete(kind, obj["metadata"].get("namespace"), obj["metadata"]["name"], options)

    def _release(self, obj: Object, finalizer: str) -> None:
        kind, meta = self.api.kinds.of(obj), obj["metadata"]
        new = copy(self.api.get(kind, meta.get("namespace"), meta["name"]))
        new["metadata"]["finalizers"] = [name for name in new["metadata"]["finalizers"] if name != finalizer]
        self.api.replace(kind, meta.get("namespace"), meta["name"], new, self.write)


def _waits(owner: Object) -> bool:
    return is_going(owner) and "foregroundDeletion" in owner["metadata"].get("finalizers", ())


class Namespaces(Controller):
    """Namespaces: a new one gets its ServiceAccount and CA."""

    def sync(self) -> None:
        for namespace in self.all("namespace"):
            name = namespace["metadata"]["name"]
            if self.api.store.get(self.kind("serviceaccount"), name, "default") is None:
                self.create("serviceaccount", name, {"metadata": {"name": "default"}})
            if self.api.store.get(self.kind("configmap"), name, "kube-root-ca.crt") is None:
                self.create("configmap", name, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "-"}})


class Claims(Controller):
    """Claims: bound immediately; one in use stays until its pods are gone."""

    def sync(self) -> None:
        for claim in self.all("persistentvolumeclaim"):
            meta = claim["metadata"]
            if is_going(claim):
                self._let_go(claim)
            elif claim["status"].get("phase") != "Bound":
                self.set_spec("persistentvolumeclaim", claim, volumeName=f"pvc-{meta['uid']}")
                claim = self.api.get(self.kind("persistentvolumeclaim"), meta["namespace"], meta["name"])
                size = claim["spec"].get("resources", {}).get("requests", {})
                bound = {"phase": "Bound", "capacity": dict(size), "accessModes": claim["spec"].get("accessModes", [])}
                self.set_status("persistentvolumeclaim", claim, bound)

    def _let_go(self, claim: Object) -> None:
        name = claim["metadata"]["name"]
        for pod in self.all("pod", claim["metadata"]["namespace"]):
            volumes = pod["spec"].get("volumes", ())
            if any(volume.get("persistentVolumeClaim", {}).get("claimName") == name for volume in volumes):
                return
        rest = [found for found in claim["metadata"].get("finalizers", ()) if found != "kubernetes.io/pvc-protection"]
        if rest != claim["metadata"].get("finalizers", []):
            new = copy(claim)
            new["metadata"]["finalizers"] = rest
            self._replace("persistentvolumeclaim", claim, new, "")
