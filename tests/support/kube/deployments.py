"""Deployments: rolling updates, without ReplicaSets in between."""

from __future__ import annotations

from support.kube.apply import copy
from support.kube.controllers import Controller, digest, is_going, is_ready, pod_from, set_condition
from support.kube.store import Object

_HASH = "pod-template-hash"


class Deployments(Controller):
    """Deployments: pods of former templates go as those of the current one become ready."""

    def sync(self) -> None:
        for obj in self.all("deployment"):
            if not is_going(obj):
                self._roll(obj)

    def _roll(self, obj: Object) -> None:
        wanted, strategy = obj["spec"]["replicas"], obj["spec"]["strategy"]
        limits = strategy.get("rollingUpdate", {"maxSurge": 0, "maxUnavailable": wanted})
        mark = digest(obj["spec"]["template"])
        present = self.owned("pod", obj)
        pods = [pod for pod in present if not is_going(pod)]
        new = [pod for pod in pods if pod["metadata"]["labels"][_HASH] == mark]
        room = wanted + limits["maxSurge"] - len(present if strategy["type"] == "Recreate" else pods)
        for _ in range(min(wanted - len(new), room)):
            self._add_pod(obj, mark)
        spare = sum(map(is_ready, pods)) - (wanted - limits["maxUnavailable"])
        for pod in [pod for pod in pods if pod not in new]:
            # Unready pods cost no availability.
            if spare > 0 or not is_ready(pod):
                self.delete("pod", pod)
                spare -= is_ready(pod)
        for pod in sorted(new, key=is_ready)[: max(0, len(new) - wanted)]:
            self.delete("pod", pod)
        self._report(obj, pods, len(new))

    def _add_pod(self, obj: Object, mark: str) -> None:
        pod = pod_from(obj["spec"]["template"], obj, {_HASH: mark})
        pod["metadata"]["generateName"] = f"{obj['metadata']['name']}-{mark}-"
        self.create("pod", obj["metadata"]["namespace"], pod)

    def _report(self, obj: Object, pods: list[Object], updated: int) -> None:
        wanted, ready = obj["spec"]["replicas"], sum(map(is_ready, pods))
        conditions = copy(obj.get("status", {}).get("conditions", []))
        enough = ready >= wanted
        set_condition(
            conditions, "Available", enough, "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
        )
        done = updated == wanted == ready == len(pods)
        set_condition(conditions, "Progressing", True, "NewReplicaSetAvailable" if done else "ReplicaSetUpdated")
        counts = {
            "replicas": len(pods),
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, max(len(pods), wanted) - ready),
        }
        positive = {name: count for name, count in counts.items() if count}
        status = {"observedGeneration": obj["metadata"]["generation"], "conditions": conditions, **positive}
        self.set_status("deployment", obj, status)
