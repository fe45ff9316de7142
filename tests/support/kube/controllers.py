"""What the built-in controllers share: each compares desired and actual state and takes the next step."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from typing import Any

from support.kube.api import Api, Write
from support.kube.apply import copy
from support.kube.errors import ApiError
from support.kube.kinds import Kind
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

    def _replace(self, name: str, obj: Object, new: Object, subresource: str) -> None:
        meta = obj["metadata"]
        self.api.replace(self.kind(name), meta.get("namespace"), meta["name"], new, self.write, subresource)


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


def digest(value: Any) -> str:
    """Returns a hash without vowels, as Kubernetes encodes it."""
    digits = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]
    return digits.translate(str.maketrans("ae013", "xz245"))


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((found["type"], found["status"]) == ("Ready", "True") for found in conditions)


def is_going(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


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
