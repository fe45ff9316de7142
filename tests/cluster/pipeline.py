"""A pipeline in a test namespace: what a user does with it, and what the cluster shows of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from cluster import speech
from cluster.client import Kubernetes, Object, wait_until
from cluster.installation import EXAMPLES, REMOVED_SECONDS, Installation

CONVERGES = 120.0
"""Timeout in seconds for changes that start no pod."""
ANYWHERE = {"cidr": "0.0.0.0/0"}
"""Peers of admin and settings ports if the operator runs outside: the API server's proxy has a node's address."""
SHOWN = ("Ready", "GatewayReady", "TalkerReady", "CodecReady", "ConnectorReady", "Progressing", "Degraded")


class Pipeline:
    """A pipeline by its name, in the test namespace unless another one is given."""

    def __init__(self, installed: Installation, name: str, cluster: Kubernetes | None = None) -> None:
        self.installed = installed
        self.parameters = installed.parameters
        self.cluster = cluster or installed.cluster
        self.name = name
        self.selector = f"syrinx.dev/pipeline={name}"

    def create(self, **spec: object) -> None:
        """Applies `examples/pipeline.yaml` with this name and the cluster's images and storage."""
        pipeline = yaml.safe_load((EXAMPLES / "pipeline.yaml").read_text())
        pipeline["metadata"] = {"name": self.name}
        pipeline["spec"]["imagePullPolicy"] = self.parameters.pull_policy
        if self.parameters.pull_secret:
            pipeline["spec"]["imagePullSecrets"] = [{"name": self.parameters.pull_secret}]
        if not self.parameters.operator_image:
            pipeline["spec"]["monitoring"] = {"allowFrom": [ANYWHERE]}
        merge(pipeline["spec"], spec)
        self.cluster.apply(pipeline)

    def edit(self, spec: Object) -> None:
        """`kubectl patch ttsp NAME --type merge`."""
        self.cluster.patch("TTSPipeline", self.name, {"spec": spec})

    def remove(self) -> None:
        """Deletes the pipeline and waits until it and its pods are gone."""
        if self.parameters.keep:
            return
        self.cluster.delete("TTSPipeline", self.name)

        def gone() -> bool:
            return not self.body and not self.cluster.list("Pod", self.selector)

        wait_until(f"{self.name} to be gone", REMOVED_SECONDS, gone)

    @property
    def body(self) -> Object:
        """The resource; empty if it does not exist."""
        return self.cluster.get("TTSPipeline", self.name) or {}

    @property
    def status(self) -> Object:
        """The status; empty before the first one."""
        found: Object = self.body.get("status") or {}
        return found

    def condition(self, kind: str) -> Object:
        """Returns a condition; empty if absent."""
        return speech.condition(self.body, kind)

    def is_complete(self) -> bool:
        """Returns whether the newest generation is Ready and rolled out."""
        body = self.body
        is_seen = body.get("status", {}).get("observedGeneration") == body.get("metadata", {}).get("generation")
        is_ready = speech.condition(body, "Ready").get("status") == "True"
        return is_seen and is_ready and speech.condition(body, "Progressing").get("status") != "True"

    def wait_ready(self) -> Object:
        """Waits until the newest generation is Ready and not Progressing."""
        try:
            return self.wait("to be Ready", lambda: self.body if self.is_complete() else None, slow=True)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def wait(self, what: str, check: Callable[[], Any], *, slow: bool = False) -> Any:
        """Waits until `check` returns something true, and returns it; `slow`: as long as pods may take to start."""
        return wait_until(f"{self.name}: {what}", self.parameters.ready_seconds if slow else CONVERGES, check)

    def wait_condition(self, kind: str, reason: str, text: str = "") -> str:
        """Waits for a condition with a reason and a text in its message; returns the message."""

        def found() -> str | None:
            condition = self.condition(kind)
            message: str = condition.get("message", "")
            return message if condition.get("reason") == reason and text in message else None

        message: str = self.wait(f"{kind} with reason {reason} {text}", found, slow=True)
        return message

    def pods(self, component: str = "") -> dict[str, Object]:
        """Returns pods by name, without terminating ones."""
        selector = self.selector + (f",syrinx.dev/component={component}" if component else "")
        found = self.cluster.list("Pod", selector)
        return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def uids(self, component: str = "") -> dict[str, str]:
        """Returns the UIDs of pods by name, without terminating ones."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(component).items()}

    def lose(self, pod: str, grace: int | None = None) -> None:
        """Deletes a pod, and waits until it has ended."""
        uid = self.uids()[pod]
        self.cluster.delete("Pod", pod, grace=grace)

        def has_ended() -> bool:
            return all(each["metadata"]["uid"] != uid for each in self.cluster.list("Pod", self.selector))

        self.wait(f"to be without {pod} of before", has_ended)

    def python_pod(
        self, name: str, script: str, *arguments: str, volumes: Mapping[str, Object] | None = None
    ) -> Object:
        """Returns a pod that runs Python in the stages' image, on the node of the pipeline. volumes: by directory."""
        mounts = [{"name": each["name"], "mountPath": directory} for directory, each in (volumes or {}).items()]
        container = {
            "name": "python",
            "image": self.parameters.stages_image,
            "imagePullPolicy": self.parameters.pull_policy,
            "command": ["python", "-c", script, *arguments],
            "volumeMounts": mounts,
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        user = {"runAsUser": 65532, "runAsNonRoot": True, "fsGroup": 65532}
        spec: Object = {
            "containers": [container],
            "volumes": list((volumes or {}).values()),
            "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
            "restartPolicy": "Never",
            "nodeSelector": self.body["spec"]["talker"].get("nodeSelector", {}),
            "terminationGracePeriodSeconds": 1,
        }
        if self.parameters.pull_secret:
            spec["imagePullSecrets"] = [{"name": self.parameters.pull_secret}]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def confirmed(self, component: str, **settings: object) -> bool:
        """Returns whether every replica of a stage has confirmed the newest settings with these values."""
        stage = self.status.get(component, {})
        replicas = stage.get("confirmed", [])
        return (
            bool(replicas)
            and all(each.get("generation") == stage.get("settingsGeneration") for each in replicas)
            and all(stage.get("settings", {}).get(key) == value for key, value in settings.items())
        )

    def events(self) -> dict[str, str]:
        """Returns the newest message of each reason of the pipeline's Events."""
        about = [each for each in self.cluster.list("Event") if each["involvedObject"].get("name") == self.name]
        newest = sorted(about, key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "")
        return {each["reason"]: each["message"] for each in newest}

    def describe(self) -> str:
        """Returns conditions, pods, Events and logs as text."""
        lines = [f"=== {self.name} in {self.cluster.namespace}"]
        body = self.body
        lines += [f"{kind}: {speech.condition(body, kind)}" for kind in SHOWN]
        for pod in self.cluster.list("Pod", self.selector):
            lines.append(f"--- pod {pod['metadata']['name']}: {json.dumps(pod.get('status', {}))[:1500]}")
            lines += [self.cluster.logs(pod["metadata"]["name"], each["name"]) for each in pod["spec"]["containers"]]
        for event in self.cluster.list("Event")[-40:]:
            about = event["involvedObject"]
            lines.append(f"event {about['kind']}/{about.get('name')}: {event.get('reason')}: {event.get('message')}")
        lines += ["--- operator", self.installed.operator.logs()]
        return "\n".join(lines)


@contextlib.contextmanager
def running(installed: Installation, name: str, **spec: object) -> Iterator[Pipeline]:
    """Yields a new pipeline once it is Ready, and deletes it at the end."""
    pipeline = Pipeline(installed, name)
    pipeline.create(**spec)
    try:
        pipeline.wait_ready()
        yield pipeline
    finally:
        pipeline.remove()


def merge(into: Object, change: Object) -> None:
    """Applies a merge patch in place."""
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value
