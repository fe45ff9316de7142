"""Pods as replicas: what a pod's status says, in a line that a person can act on. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from syrinx_operator.cluster.names import COMPONENT_LABEL, CONFIG_ANNOTATION, GUEST_CONFIG_ANNOTATION, TEMPLATE_LABEL
from syrinx_operator.cluster.state import Component, Manifest, Replica
from syrinx_operator.cluster.topology import GUEST

_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
_FINISHED = frozenset({"Failed", "Succeeded"})
_WORDS = 300
"""Characters of a pod's own words that are passed on."""


def replicas(pods: Iterable[Manifest]) -> tuple[Replica, ...]:
    """The replicas among a pipeline's pods. Pods that have ended (evicted ones stay for hours) are none."""
    components = set(Component)
    return tuple(
        replica
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _FINISHED
        and pod["metadata"].get("labels", {}).get(COMPONENT_LABEL) in components
        for replica in _stages_of(pod)
    )


def _stages_of(pod: Manifest) -> Iterator[Replica]:
    own = _replica(pod)
    yield own
    if GUEST_CONFIG_ANNOTATION in pod["metadata"].get("annotations", {}):
        yield msgspec.structs.replace(own, component=GUEST, guest=True)


def _replica(pod: Manifest) -> Replica:
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata["labels"]
    readiness = _condition(status, "Ready")
    ready = readiness.get("status") == "True"
    since = readiness.get("lastTransitionTime") or metadata.get("creationTimestamp") or ""
    return Replica(
        name=metadata["name"],
        component=Component(labels[COMPONENT_LABEL]),
        template=labels.get(TEMPLATE_LABEL, ""),
        model_generation=_model_generation(metadata),
        ready=ready,
        unready_since="" if ready else since,
        terminating="deletionTimestamp" in metadata,
        address=status.get("podIP") or "",
        restarts=sum(container.get("restartCount", 0) for container in _containers(status)),
        problem=next(_problems(status), "")[:_WORDS],
    )


def _model_generation(metadata: Manifest) -> str:
    """What the pod's start configuration says."""
    try:
        generation = json.loads(metadata.get("annotations", {}).get(CONFIG_ANNOTATION, "{}")).get("generation")
    except (ValueError, AttributeError):
        return ""
    return generation if isinstance(generation, str) else ""


def _problems(status: Manifest) -> Iterator[str]:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        yield _sentence(scheduled.get("reason") or "Unschedulable", scheduled.get("message"))
    for container in _containers(status):
        yield from _container_problems(container)


def _containers(status: Manifest) -> list[dict[str, Any]]:
    """What is known of each container, in the order in which they start."""
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _container_problems(container: dict[str, Any]) -> Iterator[str]:
    state = container.get("state") or {}
    last = (container.get("lastState") or {}).get("terminated")
    waiting = state.get("waiting")
    if waiting is not None and waiting.get("reason", "") not in _STARTING:
        words = _ended(last) if last and waiting["reason"] == "CrashLoopBackOff" else waiting.get("message")
        yield _sentence(waiting["reason"], words)
    terminated = state.get("terminated")
    if terminated is not None and terminated.get("exitCode"):
        yield _sentence("Terminated", _ended(terminated))


def _ended(terminated: dict[str, Any]) -> str:
    reason = terminated.get("reason") or "Error"
    words = f"exit code {terminated.get('exitCode')} ({reason})"
    # The end of its log (terminationMessagePolicy); what went wrong is in the last line.
    lines = (terminated.get("message") or "").strip().splitlines()
    return f"{words}: {lines[-1]}" if lines else words


def _sentence(reason: str, message: str | None) -> str:
    return f"{reason}: {' '.join(message.split())}" if message else reason


def _condition(status: Manifest, kind: str) -> dict[str, Any]:
    return next((each for each in status.get("conditions") or () if each.get("type") == kind), {})
