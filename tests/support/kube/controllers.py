"""The built-in controllers: each compares desired and actual state and takes the next step."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
from typing import Any

from support.kube.api import Api, Write
from support.kube.apply import copy
from support.kube.errors import ApiError
from support.kube.kinds import Kind
from support.kube.select import by_labels
from support.kube.store import Change, Object
from support.virtual import stamp

ROUNDS = 200
"""Rounds after which two controllers are considered to fight."""


class Controller:
    """`sync` does everything that is possible now; it runs after every change."""

    manager = "kube-controller-manager"

    def __init__(self, api: Api) -> None:
        self.api = api

    def sync(self) -> None:
        raise NotImplementedError

    @property
    def write(self) -> Write:
        return Write(manager=self.manager, trusted=True)

    def kind(self, name: str) -> Kind:
        return self.api.kinds.named(name)

    def all(self, name: str, namespace: str | None = None) -> list[Object]:
        return self.api.store.all(self.kind(name), namespace)

    def owned(self, name: str, owner: Object) -> list[Object]:
        """Returns the objects of a kind that an owner controls."""
        uid = owner["metadata"]["uid"]
        return [obj for obj in self.all(name, owner["metadata"]["namespace"]) if controller_of(obj) == uid]

    def create(self, name: str, namespace: str, obj: Object) -> None:
        """Creates an object; if that is rejected, the next sync retries."""
        with contextlib.suppress(ApiError):
            self.api.create(self.kind(name), namespace, obj, self.write)

    def delete(self, name: str, obj: Object, **options: Any) -> None:
        self.api.delete(self.kind(name), obj["metadata"].get("namespace"), obj["metadata"]["name"], options)

    def set_status(self, name: str, obj: Object, status: Object) -> None:
        if obj.get("status") != status:
            self._replace(name, obj, {**copy(obj), "status": status}, "status")

    def set_spec(self, name: str, obj: Object, **fields: Any) -> None:
        if any(obj["spec"].get(field) != value for field, value in fields.items()):
            new = copy(obj)
            new["spec"] |= fields
            self._replace(name, obj, new, "")

    def _replace(self, name: str, obj: Object, new: Object, subresource: str) -> None:
        """Updates an object; on a conflict the next sync retries."""
        meta = obj["metadata"]
        try:
            self.api.replace(self.kind(name), meta.get("namespace"), meta["name"], new, self.write, subresource)
        except ApiError as error:
            if error.code not in (404, 409):
                raise


class Manager:
    """Runs all controllers until nothing changes, then waits for the next change."""

    def __init__(self, api: Api, controllers: list[Controller]) -> None:
        self._api = api
        self._controllers = controllers
        self._changed = asyncio.Event()
        self.paused = False
        """True stops all controllers, as with an unavailable control plane."""
        self.pace = 0.0
        """Seconds between two rounds: with thousands of objects a round takes long, and serves many changes."""
        api.store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for _ in range(ROUNDS):
                version = self._api.store.version
                if not self.paused:
                    for controller in self._controllers:
                        controller.sync()
                if version == self._api.store.version:
                    break
                await asyncio.sleep(self.pace)
            else:
                raise AssertionError(f"the cluster's controllers find no rest: {self._api.store.history[-5:]}")
            self._changed.clear()


def controller_of(obj: Object) -> str | None:
    references = obj["metadata"].get("ownerReferences", ())
    return next((reference["uid"] for reference in references if reference.get("controller")), None)


def owner_reference(owner: Object) -> Object:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def digest(value: Any, length: int = 10) -> str:
    """Returns a hash without vowels, as Kubernetes encodes it."""
    digits = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]
    return digits.translate(str.maketrans("ae013", "xz245"))


def condition(obj: Object, kind: str) -> Object:
    conditions = obj.get("status", {}).get("conditions", ())
    return next((found for found in conditions if found["type"] == kind), {})


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def is_going(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def set_condition(conditions: list[Object], kind: str, holds: bool, reason: str, message: str = "") -> None:
    """Sets a condition with its transition time, in place."""
    old = next((found for found in conditions if found["type"] == kind), None)
    status = "True" if holds else "False"
    since = old["lastTransitionTime"] if old and old["status"] == status else stamp()
    new = {"type": kind, "status": status, "lastTransitionTime": since}
    new |= ({"reason": reason} if reason else {}) | ({"message": message} if message else {})
    if old is None:
        conditions.append(new)
    else:
        conditions[conditions.index(old)] = new


def pod_from(template: Object, owner: Object, labels: dict[str, str]) -> Object:
    meta = template.get("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {**meta.get("labels", {}), **labels},
            "annotations": dict(meta.get("annotations", {})),
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": copy(template["spec"]),
    }


class ReplicaSets(Controller):
    """ReplicaSets: keeps the desired number of pods."""

    def sync(self) -> None:
        for obj in self.all("replicaset"):
            pods = [pod for pod in self.owned("pod", obj) if not is_over(pod)]
            active = [pod for pod in pods if not is_going(pod)]
            if not is_going(obj):
                self._adjust(obj, active)
            ready = sum(is_ready(pod) for pod in active)
            status = {"replicas": len(active), "observedGeneration": obj["metadata"]["generation"]}
            if active:
                status |= {"fullyLabeledReplicas": len(active)}
            self.set_status("replicaset", obj, status | _positive(readyReplicas=ready, availableReplicas=ready))

    def _adjust(self, obj: Object, active: list[Object]) -> None:
        meta, missing = obj["metadata"], obj["spec"]["replicas"] - len(active)
        for _ in range(missing):
            pod = pod_from(obj["spec"]["template"], obj, {})
            pod["metadata"]["generateName"] = f"{meta['name']}-"
            self.create("pod", meta["namespace"], pod)
        by_worth = sorted(active, key=lambda pod: (is_ready(pod), pod["status"].get("phase") == "Running"))
        for pod in by_worth[: max(0, -missing)]:
            self.delete("pod", pod)


class Deployments(Controller):
    """Deployments: rolling updates through ReplicaSets."""

    def sync(self) -> None:
        for obj in self.all("deployment"):
            if not is_going(obj):
                self._roll(obj)

    def _roll(self, obj: Object) -> None:
        sets = sorted(self.owned("replicaset", obj), key=_revision)
        name = f"{obj['metadata']['name']}-{digest(obj['spec']['template'])}"
        current = next((found for found in sets if found["metadata"]["name"] == name), None)
        if current is None and not obj["spec"].get("paused"):
            self._add_set(obj, name, _revision(sets[-1]) + 1 if sets else 1)
            return
        old = [found for found in sets if found is not current and not is_going(found)]
        if current is not None:
            if obj["spec"]["strategy"]["type"] == "Recreate":
                self._recreate(obj, current, old)
            else:
                self._step(obj, current, old)
        for spent in [found for found in old if not found["status"].get("replicas")][
            : -obj["spec"]["revisionHistoryLimit"]
        ]:
            if spent["spec"]["replicas"] == 0:
                self.delete("replicaset", spent)
        self._report(obj, current, [found for found in sets if not is_going(found)])

    def _add_set(self, obj: Object, name: str, revision: int) -> None:
        meta, template = obj["metadata"], copy(obj["spec"]["template"])
        mark = {"pod-template-hash": name.rpartition("-")[2]}
        template["metadata"]["labels"] |= mark
        selector = copy(obj["spec"]["selector"])
        selector["matchLabels"] = {**selector.get("matchLabels", {}), **mark}
        new = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "labels": dict(template["metadata"]["labels"]),
                "annotations": {"deployment.kubernetes.io/revision": str(revision)},
                "ownerReferences": [owner_reference(obj)],
            },
            "spec": {"replicas": 0, "selector": selector, "template": template},
        }
        self.create("replicaset", meta["namespace"], new)

    def _recreate(self, obj: Object, current: Object, old: list[Object]) -> None:
        for found in old:
            self.set_spec("replicaset", found, replicas=0)
        if not any(self.owned("pod", found) for found in old):
            self.set_spec("replicaset", current, replicas=obj["spec"]["replicas"])

    def _step(self, obj: Object, current: Object, old: list[Object]) -> None:
        wanted, limits = obj["spec"]["replicas"], obj["spec"]["strategy"]["rollingUpdate"]
        surge, missing = _share(limits["maxSurge"], wanted, up=True), _share(limits["maxUnavailable"], wanted, up=False)
        missing = max(missing, 1) if surge == 0 else missing
        asked = sum(found["spec"]["replicas"] for found in (current, *old))
        has = current["spec"]["replicas"]
        self.set_spec("replicaset", current, replicas=min(wanted, max(has, has + wanted + surge - asked)))
        available = sum(found["status"].get("availableReplicas", 0) for found in (current, *old))
        unready = has - current["status"].get("availableReplicas", 0)
        may_go = asked - (wanted - missing) - unready
        for found in old:
            # Unready pods are removed first; that costs no availability.
            broken = found["spec"]["replicas"] - found["status"].get("availableReplicas", 0)
            removed = min(broken, max(may_go, 0))
            spare = min(
                found["spec"]["replicas"] - removed, max(0, min(may_go - removed, available - (wanted - missing)))
            )
            may_go, available = may_go - removed - spare, available - spare
            self.set_spec("replicaset", found, replicas=found["spec"]["replicas"] - removed - spare)

    def _report(self, obj: Object, current: Object | None, sets: list[Object]) -> None:
        status = obj.get("status", {})
        wanted = obj["spec"]["replicas"]
        total = sum(found["status"].get("replicas", 0) for found in sets)
        ready = sum(found["status"].get("readyReplicas", 0) for found in sets)
        updated = current["status"].get("replicas", 0) if current else 0
        conditions = copy(status.get("conditions", []))
        minimum = wanted - _share(
            obj["spec"]["strategy"].get("rollingUpdate", {}).get("maxUnavailable", 0), wanted, up=False
        )
        enough = ready >= minimum
        set_condition(
            conditions, "Available", enough, "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
        )
        done = updated == wanted == ready == total
        set_condition(conditions, "Progressing", True, "NewReplicaSetAvailable" if done else "ReplicaSetUpdated")
        new = {"observedGeneration": obj["metadata"]["generation"], "conditions": conditions}
        new |= _positive(replicas=total, updatedReplicas=updated, readyReplicas=ready, availableReplicas=ready)
        self.set_status("deployment", obj, new | _positive(unavailableReplicas=max(0, max(total, wanted) - ready)))


class Services(Controller):
    """Services: endpoints of ready pods, and load balancer addresses."""

    def sync(self) -> None:
        for obj in self.all("service"):
            if obj["spec"].get("selector"):
                self._endpoints(obj)
            if obj["spec"]["type"] == "LoadBalancer":
                ingress = [{"ip": obj["spec"]["clusterIP"], "ipMode": "VIP"}]
                self.set_status("service", obj, {"loadBalancer": {"ingress": ingress}})

    def _endpoints(self, obj: Object) -> None:
        meta = obj["metadata"]
        selector = {"matchLabels": obj["spec"]["selector"]}
        pods = [pod for pod in self.all("pod", meta["namespace"]) if by_labels(selector, pod)]
        endpoints = [
            {
                "addresses": [pod["status"]["podIP"]],
                "conditions": {
                    "ready": obj["spec"].get("publishNotReadyAddresses", is_ready(pod) and not is_going(pod)),
                    "serving": is_ready(pod),
                    "terminating": is_going(pod),
                },
                "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"], "namespace": meta["namespace"]},
            }
            for pod in pods
            if pod.get("status", {}).get("podIP") and not is_over(pod)
        ]
        slice_kind = self.kind("endpointslice")
        old = self.api.store.get(slice_kind, meta["namespace"], f"{meta['name']}-slice")
        new = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{meta['name']}-slice",
                "labels": {"kubernetes.io/service-name": meta["name"]},
                "ownerReferences": [owner_reference(obj)],
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": port.get("name", ""), "port": port["port"]} for port in obj["spec"].get("ports", ())],
        }
        if old is None:
            self.create("endpointslice", meta["namespace"], new)
        elif old.get("endpoints", []) != endpoints:
            self._replace("endpointslice", old, {**copy(old), "endpoints": endpoints}, "")


def _share(limit: Any, whole: int, *, up: bool) -> int:
    if isinstance(limit, int):
        return limit
    part = int(limit.rstrip("%")) * whole / 100
    return math.ceil(part) if up else math.floor(part)


def _revision(obj: Object) -> int:
    return int(obj["metadata"].get("annotations", {}).get("deployment.kubernetes.io/revision", 0))


def _positive(**counts: int) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
