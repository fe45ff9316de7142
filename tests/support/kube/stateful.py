"""StatefulSets: named pods, revisions, a partition, one pod at a time."""

from __future__ import annotations

from typing import Any

from support.kube.apply import copy
from support.kube.controllers import Controller, digest, is_going, is_over, is_ready, owner_reference, pod_from
from support.kube.store import Object

_REVISION = "controller-revision-hash"


class StatefulSets(Controller):
    """StatefulSets: pods NAME-0 … NAME-(n-1), updated from the highest ordinal down to the partition."""

    def sync(self) -> None:
        for obj in self.all("statefulset"):
            if not is_going(obj):
                self._sync(obj)

    def _sync(self, obj: Object) -> None:
        status = obj.get("status", {})
        update = self._revision(obj)
        current = status.get("currentRevision", update)
        pods = {pod["metadata"]["name"]: pod for pod in self.owned("pod", obj)}
        by_number = {
            number: pods.get(f"{obj['metadata']['name']}-{number}") for number in range(obj["spec"]["replicas"])
        }
        if self._populate(obj, by_number, pods, current, update) and self._thin_out(obj, pods, by_number):
            self._update(obj, by_number, update)
        self._report(obj, current, update)

    def _revision(self, obj: Object) -> str:
        """Returns the name of the current template's revision, which is stored if it is new."""
        meta, template = obj["metadata"], obj["spec"]["template"]
        name = f"{meta['name']}-{digest(template)}"
        stored = self.owned("controllerrevision", obj)
        newest = max((found["revision"] for found in stored), default=0)
        mine = next((found for found in stored if found["metadata"]["name"] == name), None)
        if mine is None:
            revision: dict[str, Any] = {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "name": name,
                    "labels": dict(template["metadata"]["labels"]),
                    "ownerReferences": [owner_reference(obj)],
                },
                "data": {"spec": {"template": copy(template)}},
                "revision": newest + 1,
            }
            self.create("controllerrevision", meta["namespace"], revision)
        elif mine["revision"] != newest:
            self._replace("controllerrevision", mine, {**copy(mine), "revision": newest + 1}, "")
        return name

    def _populate(
        self, obj: Object, by_number: dict[int, Object | None], pods: dict[str, Object], current: str, update: str
    ) -> bool:
        """Creates missing pods; returns False to wait."""
        ordered = obj["spec"]["podManagementPolicy"] == "OrderedReady"
        for number, pod in by_number.items():
            if pod is not None and is_over(pod):
                if not is_going(pod):
                    self.delete("pod", pod)
            elif pod is None:
                self._add_pod(obj, number, current if number < self._partition(obj) else update)
                if ordered:
                    return False
            elif ordered and (is_going(pod) or not is_ready(pod)):
                return False
        return True

    def _add_pod(self, obj: Object, number: int, revision: str) -> None:
        meta = obj["metadata"]
        name = f"{meta['name']}-{number}"
        stored = self.api.store.get(self.kind("controllerrevision"), meta["namespace"], revision)
        template = stored["data"]["spec"]["template"] if stored else obj["spec"]["template"]
        labels = {_REVISION: revision, "statefulset.kubernetes.io/pod-name": name}
        pod = pod_from(template, obj, labels | {"apps.kubernetes.io/pod-index": str(number)})
        pod["metadata"]["name"] = name
        pod["spec"] |= {"hostname": name, "subdomain": obj["spec"].get("serviceName", "")}
        self.create("pod", meta["namespace"], pod)

    def _thin_out(self, obj: Object, pods: dict[str, Object], by_number: dict[int, Object | None]) -> bool:
        """Deletes surplus pods from the highest ordinal; returns False to wait."""
        prefix = f"{obj['metadata']['name']}-"
        extra = [pod for name, pod in pods.items() if int(name.removeprefix(prefix)) not in by_number]
        extra.sort(key=lambda pod: -int(pod["metadata"]["name"].removeprefix(prefix)))
        ordered = obj["spec"]["podManagementPolicy"] == "OrderedReady"
        for pod in extra:
            if not is_going(pod):
                self.delete("pod", pod)
            if ordered:
                return False
        return True

    def _update(self, obj: Object, by_number: dict[int, Object | None], update: str) -> None:
        if obj["spec"]["updateStrategy"]["type"] == "OnDelete":
            return
        for number in sorted(by_number, reverse=True):
            if number < self._partition(obj):
                return
            pod = by_number[number]
            if pod is None:
                return
            if pod["metadata"]["labels"].get(_REVISION) != update and not is_going(pod):
                self.delete("pod", pod)
                return
            if is_going(pod) or not is_ready(pod):
                return

    @staticmethod
    def _partition(obj: Object) -> int:
        return int(obj["spec"]["updateStrategy"].get("rollingUpdate", {}).get("partition", 0))

    def _report(self, obj: Object, current: str, update: str) -> None:
        pods = [pod for pod in self.owned("pod", obj) if not is_over(pod)]
        ready = [pod for pod in pods if is_ready(pod)]
        # Like the real controller: terminating pods count for no revision.
        count = {
            revision: sum(pod["metadata"]["labels"].get(_REVISION) == revision and not is_going(pod) for pod in pods)
            for revision in (current, update)
        }
        if count[update] == len(pods) == len(ready) == obj["spec"]["replicas"]:
            current = update
        counts = {"currentReplicas": count[current], "updatedReplicas": count[update], "readyReplicas": len(ready)}
        status = {
            "observedGeneration": obj["metadata"]["generation"],
            "replicas": len(pods),
            "availableReplicas": len(ready),
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": 0,
        } | {name: number for name, number in counts.items() if number}
        self.set_status("statefulset", obj, status)
