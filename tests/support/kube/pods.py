"""Pod status and scheduling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.kube.apply import copy
from support.kube.controllers import Controller, is_going, set_condition
from support.kube.store import Object
from support.virtual import stamp

NODE = "node-1"
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


def status_of(
    pod: Object, address: str, containers: list[ContainerState], init: list[ContainerState], initialized: bool
) -> Object:
    """Returns the complete status of a scheduled pod."""
    old = pod.get("status", {})
    conditions: list[Object] = copy(old.get("conditions", []))
    ready = bool(containers) and all(container.ready for container in containers)
    unready = [container.name for container in containers if not container.ready]
    detail = "" if ready else f"containers with unready status: {unready}"
    set_condition(conditions, "Initialized", initialized, "" if initialized else "ContainersNotInitialized")
    set_condition(conditions, "ContainersReady", ready, "" if ready else "ContainersNotReady", detail)
    set_condition(conditions, "Ready", ready, "" if ready else "ContainersNotReady", detail)
    started = any("waiting" not in container.state or container.restarts for container in containers)
    status: dict[str, Any] = {
        "phase": "Running" if started else "Pending",
        "qosClass": old.get("qosClass", "Burstable"),
        "conditions": conditions,
        "hostIP": HOST,
        "hostIPs": [{"ip": HOST}],
        "startTime": old.get("startTime", stamp()),
        "containerStatuses": [container.status() for container in containers],
    }
    if init:
        status["initContainerStatuses"] = [container.status() for container in init]
    if address:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    return status


class Scheduler(Controller):
    """Schedules pods to one node."""

    manager = "kube-scheduler"

    def sync(self) -> None:
        for pod in self.all("pod"):
            if not pod["spec"].get("nodeName") and not is_going(pod):
                self._place(pod)

    def _place(self, pod: Object) -> None:
        conditions: list[Object] = copy(pod["status"].get("conditions", []))
        self.set_spec("pod", pod, nodeName=NODE)
        set_condition(conditions, "PodScheduled", True, "")
        pod = self.api.get(self.kind("pod"), pod["metadata"]["namespace"], pod["metadata"]["name"])
        self.set_status("pod", pod, {**copy(pod["status"]), "conditions": conditions})
