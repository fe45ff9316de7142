"""Pod status."""

from __future__ import annotations

from dataclasses import dataclass

from support.kube.apply import copy
from support.kube.controllers import set_condition
from support.kube.store import Object
from support.virtual import stamp

HOST = "127.0.0.1"


@dataclass
class ContainerState:
    """The state of a container as the kubelet reports it."""

    name: str
    image: str
    state: Object
    """`{"running": {...}}`, `{"waiting": {...}}` or `{"terminated": {...}}`."""
    ready: bool = False
    started: bool = False
    restarts: int = 0
    last: Object | None = None

    def status(self) -> Object:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": f"local/{self.image}",
            "containerID": "local://0" if "running" in self.state else "",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last or {},
        }


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def running(since: str) -> Object:
    return {"running": {"startedAt": since}}


def terminated(code: int, since: str) -> Object:
    reason = "Completed" if code == 0 else "Error"
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": since, "finishedAt": stamp()}}


def status_of(pod: Object, address: str, containers: list[ContainerState]) -> Object:
    """Returns the complete status of a pod."""
    old = pod.get("status", {})
    conditions: list[Object] = copy(old.get("conditions", []))
    unready = [container.name for container in containers if not container.ready]
    for kind in ("PodScheduled", "Initialized"):
        set_condition(conditions, kind, True, "")
    for kind in ("ContainersReady", "Ready"):
        if unready:
            detail = f"containers with unready status: {unready}"
            set_condition(conditions, kind, False, "ContainersNotReady", detail)
        else:
            set_condition(conditions, kind, True, "")
    started = any("waiting" not in container.state or container.restarts for container in containers)
    return {
        "phase": "Running" if started else "Pending",
        "qosClass": "Burstable",
        "conditions": conditions,
        "startTime": old.get("startTime", stamp()),
        "containerStatuses": [container.status() for container in containers],
        "hostIP": HOST,
        "hostIPs": [{"ip": HOST}],
        "podIP": address,
        "podIPs": [{"ip": address}],
    }
