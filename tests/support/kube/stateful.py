"""StatefulSets: named pods, revisions, a partition, one pod at a time."""

from __future__ import annotations

from support.kube.api import Api
from support.kube.controllers import Controller, digest, is_going, is_ready, pod_from
from support.kube.store import Object

_REVISION = "controller-revision-hash"


class StatefulSets(Controller):
    """StatefulSets: pods NAME-0 … NAME-(n-1), updated from the highest ordinal down to the partition.

    They are created and deleted all at once (`podManagementPolicy: Parallel`).
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self._templates: dict[tuple[str, str], Object] = {}
        """All templates so far, by UID and revision."""

    def sync(self) -> None:
        for obj in self.all("statefulset"):
            if not is_going(obj):
                self._sync(obj)

    def _sync(self, obj: Object) -> None:
        meta, spec = obj["metadata"], obj["spec"]
        update = f"{meta['name']}-{digest(spec['template'])}"
        self._templates[meta["uid"], update] = spec["template"]
        current = obj.get("status", {}).get("currentRevision", update)
        partition = spec["updateStrategy"].get("rollingUpdate", {}).get("partition", 0)
        pods = {int(pod["metadata"]["name"].rpartition("-")[2]): pod for pod in self.owned("pod", obj)}
        for number, pod in pods.items():
            if number >= spec["replicas"] and not is_going(pod):
                self.delete("pod", pod)
        for number in range(spec["replicas"]):
            if number not in pods:
                self._add_pod(obj, number, current if number < partition else update)
        self._update([pods.get(number) for number in range(partition, spec["replicas"])], update)
        self._report(obj, current, update)

    def _add_pod(self, obj: Object, number: int, revision: str) -> None:
        name = f"{obj['metadata']['name']}-{number}"
        labels = {_REVISION: revision, "statefulset.kubernetes.io/pod-name": name}
        template = self._templates[obj["metadata"]["uid"], revision]
        pod = pod_from(template, obj, labels | {"apps.kubernetes.io/pod-index": str(number)})
        pod["metadata"]["name"] = name
        pod["spec"] |= {"hostname": name, "subdomain": obj["spec"].get("serviceName", "")}
        self.create("pod", obj["metadata"]["namespace"], pod)

    def _update(self, pods: list[Object | None], update: str) -> None:
        """Deletes the last pod of another revision, once those behind it are ready."""
        for pod in reversed(pods):
            if pod is None:
                return
            if pod["metadata"]["labels"][_REVISION] != update and not is_going(pod):
                self.delete("pod", pod)
            elif not is_going(pod) and is_ready(pod):
                continue
            return

    def _report(self, obj: Object, current: str, update: str) -> None:
        pods = self.owned("pod", obj)
        ready = sum(map(is_ready, pods))
        # Like the real controller: terminating pods count for no revision.
        count = {
            revision: sum(pod["metadata"]["labels"][_REVISION] == revision and not is_going(pod) for pod in pods)
            for revision in (current, update)
        }
        if count[update] == len(pods) == ready == obj["spec"]["replicas"]:
            current = update
        counts = {"currentReplicas": count[current], "updatedReplicas": count[update], "readyReplicas": ready}
        status = {
            "observedGeneration": obj["metadata"]["generation"],
            "replicas": len(pods),
            "availableReplicas": ready,
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": 0,
        } | {name: number for name, number in counts.items() if number}
        self.set_status("statefulset", obj, status)
