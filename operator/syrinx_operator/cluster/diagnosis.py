"""Why pods are not ready: turns pods into replicas, and diagnoses replicas and workloads without pods. Pure."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.names import (
    CODEC_CONFIG_ANNOTATION,
    COMPONENT_LABEL,
    CONFIG_ANNOTATION,
    SETTINGS_PORT_NAME,
    TEMPLATE_LABEL,
)
from syrinx_operator.cluster.state import Component, Manifest, Problem, Replica
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_operator.resource.stage_config import codec_process

CRASH_LOOP = "CrashLoopBackOff"
MISSING_AFTER = timedelta(seconds=60)
"""How long a workload may be short of pods before it is reported; Kubernetes creates pods within seconds."""
_MAX_PROBLEM = 300
"""Characters of a pod's or workload's own message that are repeated."""

_STARTUP_SECONDS = {Component.GATEWAY: 300, Component.REDIS: 120}

_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
_FINISHED = frozenset({"Failed", "Succeeded"})
_ALIASES = {"ErrImagePull": "ImagePullBackOff", "RegistryUnavailable": "ImagePullBackOff"}
"""Reasons that the kubelet alternates between for the same problem."""
_ADVICE = {
    "ImagePullBackOff": "check the image name and, for a private registry, spec.imagePullSecrets",
    "InvalidImageName": "correct the image name",
    "ErrImageNeverPull": "spec.imagePullPolicy is Never: the image must already be on the node",
    "CreateContainerConfigError": "a Secret or ConfigMap that it references, or a key in it, does not exist",
    CRASH_LOOP: "see `kubectl logs {pod} --previous --all-containers`",
    "Unschedulable": "no node fits: compare its resources, node selector, tolerations and volumes with the nodes",
}
_TRANSIENT = frozenset({"Unschedulable"})
"""Reasons that need no intervention within the startup limit: an autoscaler may be adding a node."""
_RESTARTING = frozenset({"Terminated", "Error", "Completed"})
"""Reasons of a container that is about to restart; repeated restarts become a crash loop."""


class _StartConfig(Struct):
    generation: str = ""


def replicas(pods: Iterable[Manifest]) -> tuple[Replica, ...]:
    """Returns the replicas in a pipeline's pods; finished pods, such as evicted ones, are skipped."""
    components = set(Component)
    return tuple(
        replica
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _FINISHED
        and pod["metadata"].get("labels", {}).get(COMPONENT_LABEL) in components
        for replica in _pod_replicas(pod)
    )


def diagnose(
    replica: Replica, limit: timedelta, now: datetime, *, crash_looping: bool = False, since: datetime | None = None
) -> tuple[Problem, bool] | None:
    """Returns why a replica is not ready, and whether waiting does not help; None if it is ready or starting.

    `limit` is the time that it may take to become ready, counted from `since` if that is later than when it became
    unready. `crash_looping` says that the last status reported a crash loop: between two crashes it seems to start.
    """
    if replica.ready or replica.terminating:
        return None
    start = parse_time(replica.unready_since)
    is_late = start is not None and now - (start if since is None else max(start, since)) > limit
    reason, problem = _parse_problem(replica)
    if not reason and crash_looping and replica.restarts:
        reason, problem = CRASH_LOOP, f"restarted {replica.restarts} times"
    if reason:
        advice = _ADVICE.get(reason, "see `kubectl describe pod {pod}`").format(pod=replica.name)
        return Problem(reason, f"{replica.name}: {problem}; {advice}"), is_late or reason not in _TRANSIENT
    if is_late:
        minutes = limit.total_seconds() / 60
        advice = f"see `kubectl logs {replica.name} --all-containers`"
        return Problem("NotReady", f"{replica.name} has not been ready for over {minutes:g} minutes; {advice}"), True
    return None


def missing_pods(workload: Manifest, since: datetime, now: datetime) -> str:
    """Returns a message if the cluster does not create a workload's pods (as with an exceeded quota), otherwise "".

    `since` is the time since which the pipeline has not been as desired. A Deployment's status says why pods are
    missing, a StatefulSet's does not: only its Events do.
    """
    if now - since < MISSING_AFTER:
        return ""
    kind, name = workload["kind"], workload["metadata"]["name"]
    status = workload.get("status") or {}
    failure = _condition(status, "ReplicaFailure")
    if failure.get("status") == "True":
        message = " ".join(str(failure.get("message") or "").split())[:_MAX_PROBLEM]
        return f"{kind} {name} cannot create its pods: {message}"
    current, desired = status.get("replicas", 0), workload["spec"].get("replicas", 1)
    if current >= desired:
        return ""
    return f"{kind} {name} has {current} of {desired} pods; for the reason see `kubectl describe {kind.lower()} {name}`"


def startup_limit(spec: PipelineSpec, component: Component) -> timedelta:
    """Returns how long a replica may take to become ready before it is diagnosed as failing."""
    stages = {Component.TALKER: spec.talker, Component.CODEC: codec_process(spec)}
    seconds = stages[component].startup_seconds if component in stages else _STARTUP_SECONDS[component]
    return timedelta(seconds=seconds + 30)


def parse_time(text: str) -> datetime | None:
    """Returns an RFC 3339 time; None if `text` is none."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None


def _pod_replicas(pod: Manifest) -> Iterator[Replica]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, annotations = metadata["labels"], metadata.get("annotations", {})
    readiness = _condition(status, "Ready")
    is_ready = readiness.get("status") == "True"
    since = readiness.get("lastTransitionTime") or metadata.get("creationTimestamp") or ""
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    try:
        start_config = msgspec.json.decode(annotations.get(CONFIG_ANNOTATION, "{}"), type=_StartConfig)
    except msgspec.MsgspecError:
        start_config = _StartConfig()
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or ())
    replica = Replica(
        name=metadata["name"],
        component=Component(labels[COMPONENT_LABEL]),
        template=labels.get(TEMPLATE_LABEL, ""),
        has_settings_port=any(port.get("name") == SETTINGS_PORT_NAME for port in ports),
        model_generation=start_config.generation,
        ready=is_ready,
        unready_since="" if is_ready else since,
        terminating="deletionTimestamp" in metadata,
        address=status.get("podIP") or "",
        restarts=sum(container.get("restartCount", 0) for container in containers),
        problem=next(_problems(status, containers), "")[:_MAX_PROBLEM],
    )
    yield replica
    if CODEC_CONFIG_ANNOTATION in annotations:
        yield msgspec.structs.replace(replica, component=Component.CODEC, colocated=True)


def _problems(status: Manifest, containers: Iterable[Manifest]) -> Iterator[str]:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        yield _problem(scheduled.get("reason") or "Unschedulable", scheduled.get("message"))
    for container in containers:
        state = container.get("state") or {}
        last = (container.get("lastState") or {}).get("terminated")
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting is not None and waiting.get("reason", "") not in _STARTING:
            message = _exit_message(last) if last and waiting["reason"] == CRASH_LOOP else waiting.get("message")
            yield _problem(waiting["reason"], message)
        if terminated is not None and terminated.get("exitCode"):
            yield _problem("Terminated", _exit_message(terminated))


def _exit_message(terminated: dict[str, Any]) -> str:
    text = f"exit code {terminated.get('exitCode')} ({terminated.get('reason') or 'Error'})"
    # The end of the log (terminationMessagePolicy); its last line has the error.
    lines = (terminated.get("message") or "").strip().splitlines()
    return f"{text}: {_plain(lines[-1])}" if lines else text


class _LogRecord(msgspec.Struct):
    """A line of a log in JSON."""

    message: str
    exception: str = ""


def _plain(line: str) -> str:
    """Returns the error of a log line: of a JSON object its exception, or else its message."""
    try:
        record = msgspec.json.decode(line, type=_LogRecord)
    except msgspec.DecodeError:
        return line
    return record.exception.strip().rpartition("\n")[2] or record.message


def _problem(reason: str, message: str | None) -> str:
    return f"{reason}: {' '.join(message.split())}" if message else reason


def _condition(status: Manifest, kind: str) -> dict[str, Any]:
    return next((each for each in status.get("conditions") or () if each.get("type") == kind), {})


def _parse_problem(replica: Replica) -> tuple[str, str]:
    text = replica.problem.removeprefix("Init:").strip()
    if not text:
        return "", ""
    found = re.match("[A-Z][A-Za-z0-9]{0,100}(?=:|$)", text)
    reason = found[0] if found else "NotRunning"
    return ("", "") if reason in _RESTARTING else (_ALIASES.get(reason, reason), text)
