"""Why pods are not ready: turns pods into replicas, and diagnoses replicas and workloads without pods. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.objects.names import (
    CANARY_PREFIX,
    COLOCATED,
    COMPONENT_LABEL,
    OWN,
    PASSWORD_ANNOTATION,
    TEMPLATE_LABEL,
    canary,
    cell_in,
)
from syrinx_operator.cluster.objects.state import REDIS, STAGES, Component, Manifest, Problem, Replica, component_of
from syrinx_operator.cluster.plan.workload.pods import GATEWAY_STARTUP_SECONDS
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline
from syrinx_stages.contract.stages import Stage

JOB_LABEL = "batch.kubernetes.io/job-name"
CRASH_LOOP = "CrashLoopBackOff"
MISSING_AFTER = timedelta(seconds=60)
"""How long a workload may be short of pods before it is reported; Kubernetes creates pods within seconds."""
UNSCHEDULABLE_AFTER = timedelta(seconds=300)
"""How long a pod may be unschedulable before it is reported; an autoscaler may be adding a node."""
STUCK_AFTER = timedelta(seconds=60)
"""How long after its grace period a terminating pod is stuck."""
_MAX_PROBLEM = 300
"""Characters of a pod's or workload's own message that are repeated."""

_STARTUP_SECONDS = {Stage.GATEWAY: GATEWAY_STARTUP_SECONDS, RedisForm.SINGLE: 120, RedisForm.REPLICATED: 120}

_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
_FINISHED = frozenset({"Failed", "Succeeded"})
_ALIASES = {"ErrImagePull": "ImagePullBackOff", "RegistryUnavailable": "ImagePullBackOff"}
"""Reasons that the kubelet alternates between for the same problem."""
START_ADVICE = {
    "ImagePullBackOff": "check the image name and, for a private registry, spec.imagePullSecrets",
    "InvalidImageName": "correct the image name",
    "ErrImageNeverPull": "spec.imagePullPolicy is Never: the image must already be on the node",
    "CreateContainerConfigError": "a Secret or ConfigMap that it references, or a key in it, does not exist",
}
"""What helps against each reason for which a container does not start."""
_ADVICE = {
    **START_ADVICE,
    CRASH_LOOP: "see `kubectl logs {pod} --previous --all-containers`",
    "Unschedulable": "no node fits: compare its resources, node selector, tolerations and volumes with the nodes",
    "NodeLost": "repair the node, or if it is gone for good delete it: `kubectl delete node {node}`",
    "StuckTerminating": "a finalizer or its node's container runtime keeps it: see `kubectl describe pod {pod}`",
}
_RESTARTING = frozenset({"Terminated", "Error", "Completed"})
"""Reasons of a container that is about to restart; repeated restarts become a crash loop."""


class _StartConfig(Struct):
    generation: str = ""


def replicas(pods: Iterable[Manifest], now: datetime) -> tuple[Replica, ...]:
    """Returns the replicas in a pipeline's pods; finished pods, such as evicted ones, are skipped."""
    components = {*STAGES, *REDIS, *map(canary, STAGES)}
    return tuple(
        replica
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _FINISHED
        and cell_in(pod["metadata"].get("labels", {}).get(COMPONENT_LABEL, ""))[0] in components
        for replica in _pod_replicas(pod, now)
    )


def job_problems(pods: Iterable[Manifest]) -> dict[str, str]:
    """Returns why the newest pod of each Job does not run or has failed, by the Job's name."""
    newest = sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp") or "")
    jobs = {name: pod for pod in newest if (name := pod["metadata"].get("labels", {}).get(JOB_LABEL))}
    found = {
        name: next(_problems(pod, (pod.get("status") or {}).get("containerStatuses") or ()), "")
        for name, pod in jobs.items()
    }
    return {name: problem.removeprefix("Terminated: ")[:_MAX_PROBLEM] for name, problem in found.items() if problem}


def diagnose(
    replica: Replica, limit: timedelta, now: datetime, *, crash_looping: bool = False, since: datetime | None = None
) -> tuple[Problem, bool] | None:
    """Returns why a replica is not ready, and whether waiting does not help; None if it is ready or starting.

    `limit` is the time that it may take to become ready, counted from `since` if that is later than when it became
    unready. `crash_looping` says that the last status reported a crash loop: between two crashes it seems to start.
    """
    if replica.terminating:
        return (_stuck(replica), True) if replica.stuck else None
    if replica.ready:
        return None
    start = parse_time(replica.unready_since)
    waited = timedelta(0) if start is None else now - (start if since is None else max(start, since))
    reason, problem = _parse_problem(replica)
    if not reason and crash_looping and replica.restarts:
        reason, problem = CRASH_LOOP, f"restarted {replica.restarts} times"
    if reason:
        advice = _ADVICE.get(reason, "see `kubectl describe pod {pod}`").format(pod=replica.name, node=replica.node)
        needs_intervention = reason != "Unschedulable" or waited > min(limit, UNSCHEDULABLE_AFTER)
        return Problem(reason, f"{replica.name}: {problem}; {advice}"), needs_intervention
    if waited <= limit:
        return None
    minutes = f"{limit.total_seconds() / 60:g} minutes"
    if replica.waits_for:
        advice = f"see the events in `kubectl describe pod {replica.name}`"
        message = f"{replica.name} has been waiting for its {replica.waits_for} for over {minutes}; {advice}"
        return Problem("NotStarted", message), True
    advice = f"see `kubectl logs {replica.name} --all-containers`"
    reason = f": {replica.unready}" if replica.unready else ""
    return Problem("NotReady", f"{replica.name} has not been ready for over {minutes}{reason}; {advice}"), True


def _stuck(replica: Replica) -> Problem:
    """Returns the problem of a pod that does not end."""
    if not replica.node_lost:
        advice = _ADVICE["StuckTerminating"].format(pod=replica.name)
        return Problem("StuckTerminating", f"{replica.name} has not ended within its grace period; {advice}")
    advice = _ADVICE["NodeLost"].format(node=replica.node)
    return Problem("NodeLost", f"{replica.name} cannot end because its node {replica.node} does not respond; {advice}")


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


def startup_limit(pipeline: ResolvedPipeline, component: Component) -> timedelta:
    """Returns how long a replica may take to become ready before it is diagnosed as failing."""
    if component is Stage.TALKER or component is Stage.CODEC:
        seconds = (pipeline.talker if component is Stage.TALKER else pipeline.codec).spec.startup_seconds
    else:
        seconds = _STARTUP_SECONDS[component]
    return timedelta(seconds=seconds + 30)


def parse_time(text: str) -> datetime | None:
    """Returns an RFC 3339 time; None if `text` is none."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None


def _pod_replicas(pod: Manifest, now: datetime) -> Iterator[Replica]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, annotations = metadata["labels"], metadata.get("annotations", {})
    component, cell = cell_in(labels[COMPONENT_LABEL])
    readiness = _condition(status, "Ready")
    is_ready = readiness.get("status") == "True"
    created = metadata.get("creationTimestamp") or ""
    initialized = _condition(status, "Initialized")
    since = readiness.get("lastTransitionTime") or created
    is_initialized = initialized.get("status") == "True"
    # Before that it could not become ready.
    able_since = (initialized.get("lastTransitionTime") or "") if is_initialized else ""
    init, own = status.get("initContainerStatuses") or [], status.get("containerStatuses") or []
    containers = [*init, *own]
    # The time at which a deleted pod must be gone at the latest.
    gone_by, asked = parse_time(metadata.get("deletionTimestamp") or ""), ""
    if gone_by is not None:
        grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
        asked = (gone_by - grace).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        start_config = msgspec.json.decode(annotations.get(OWN.annotation, "{}"), type=_StartConfig)
    except msgspec.MsgspecError:
        start_config = _StartConfig()
    replica = Replica(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        component=component_of(component.removeprefix(CANARY_PREFIX)),
        cell=cell,
        canary=labels[COMPONENT_LABEL].startswith(CANARY_PREFIX),
        template=labels.get(TEMPLATE_LABEL, ""),
        model_generation=start_config.generation,
        password_uid=annotations.get(PASSWORD_ANNOTATION, ""),
        ready=is_ready,
        started=bool(own) and all(each.get("started") and "running" in (each.get("state") or {}) for each in own),
        initializing=bool(init) and not is_initialized,
        created=created,
        changed=max(created, since, asked),
        unready_since="" if is_ready else max(since, able_since),
        terminating="deletionTimestamp" in metadata,
        stuck=gone_by is not None and now - gone_by > STUCK_AFTER,
        node=pod["spec"].get("nodeName") or "",
        node_lost=_is_node_lost(pod),
        address=status.get("podIP") or "",
        restarts=sum(container.get("restartCount", 0) for container in containers),
        last_exit=_last_exit(containers)[:_MAX_PROBLEM],
        problem=next(_problems(pod, containers), "")[:_MAX_PROBLEM],
        waits_for="" if is_ready else _waits_for(status, init, own),
    )
    yield replica
    if COLOCATED.annotation in annotations:
        yield msgspec.structs.replace(replica, component=Stage.CODEC, colocated=True)


def _is_node_lost(pod: Manifest) -> bool:
    """Returns whether the cluster has lost contact with a pod's node."""
    status = pod.get("status") or {}
    if status.get("reason") == "NodeLost":
        return True
    disrupted = _condition(status, "DisruptionTarget")
    if "deletionTimestamp" in pod["metadata"] and disrupted.get("reason") == "DeletionByTaintManager":
        return True
    # Only a kubelet changes both; the node controller changes Ready alone, and readiness gates may keep it False.
    is_unready = _condition(status, "Ready").get("status") == "False"
    return (
        is_unready
        and _condition(status, "ContainersReady").get("status") == "True"
        and not pod["spec"].get("readinessGates")
    )


def _waits_for(status: Manifest, init: Sequence[Manifest], own: Sequence[Manifest]) -> str:
    """Returns what the start of a pod's containers waits for; empty if they have started or it is unknown."""
    if _condition(status, "PodReadyToStartContainers").get("status") == "False":
        return "volumes or network"
    waiting = [(each.get("state") or {}).get("waiting") or {} for each in (*init, *own)]
    if any(each.get("reason") == "ContainerCreating" for each in waiting):
        return "image or volumes"
    running = (each for each in init if "running" in (each.get("state") or {}))
    return next((f"init container {each.get('name')}" for each in running), "")


def _problems(pod: Manifest, containers: Iterable[Manifest]) -> Iterator[str]:
    if _is_node_lost(pod):
        yield _problem("NodeLost", f"its node {pod['spec'].get('nodeName')} does not respond")
    scheduled = _condition(pod.get("status") or {}, "PodScheduled")
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


def _last_exit(containers: Sequence[Manifest]) -> str:
    """Returns how the container with the most restarts ended before the last one; empty without restarts."""
    most = max(containers, key=lambda each: each.get("restartCount", 0), default={})
    terminated = (most.get("lastState") or {}).get("terminated") if most.get("restartCount") else None
    return _exit_message(terminated) if terminated else ""


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
