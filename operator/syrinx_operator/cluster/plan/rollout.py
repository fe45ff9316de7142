"""Rolling update of talkers and codecs: one replica at a time, stopping at the first that does not become ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from syrinx_operator.cluster.plan.release import FrozenTemplate
from syrinx_operator.cluster.state import Component, Observed, Replica


def stage_partition(
    stage: Component,
    template: FrozenTemplate,
    replicas: int,
    observed: Observed,
    *,
    generation: str,
    settings_generations: Mapping[Component, int],
) -> int:
    """Returns the partition of a stage's StatefulSet: pods of this ordinal and above get the new template.

    `settings_generations` has every stage in the pod; a pod is confirmed once all of its stages are. The last replica
    of an old model generation stays while a gateway of another generation exists (even a terminating one, whose
    streams it serves) or no gateway of the new generation is ready.
    """
    unconfirmed = {
        replica.name
        for member, desired in settings_generations.items()
        for replica in observed.replicas_of(member)
        if replica.reported is None or replica.reported.generation < desired
    }
    pods = [
        msgspec.structs.replace(pod, reported=None) if pod.name in unconfirmed else pod
        for pod in observed.replicas_of(stage)
    ]
    gateways = observed.replicas_of(Component.GATEWAY)
    has_old_replica = any(replica.model_generation != generation for replica in pods)
    has_new_gateway = any(gateway.ready and gateway.model_generation == generation for gateway in gateways)
    has_old_gateway = any(gateway.model_generation != generation for gateway in gateways)
    return partition(
        replicas,
        template.hash,
        pods,
        settings_generation=settings_generations[stage],
        keep_last_old=has_old_replica and (has_old_gateway or not has_new_gateway),
    )


def partition(
    replicas: int,
    template: str,
    pods: Sequence[Replica],
    *,
    settings_generation: int,
    keep_last_old: bool,
) -> int:
    """Returns a StatefulSet's partition: pods of this ordinal and above get `template`, those below keep theirs.

    Kubernetes replaces the highest outdated ordinal at or above the partition. The result permits no replacement while
    a pod of `template` is not settled (ready, with settings of `settings_generation` in force), and one otherwise: a
    template whose pods never settle stops at its first pod. Pods of earlier templates block nothing, ready or not, so
    the next edit still rolls out. `keep_last_old` keeps the last outdated pod if there are two replicas or more.
    """
    live = {number: pod for pod in pods if not pod.terminating and (number := _ordinal(pod)) in range(replicas)}
    old = [number for number, pod in live.items() if pod.template != template]
    if not old:
        return 0
    highest = max(old)
    new = [pod for pod in live.values() if pod.template == template]
    is_recreating = any(number not in live for number in range(highest, replicas))
    is_kept = keep_last_old and replicas > 1 and len(old) == 1
    if is_recreating or is_kept or not all(_is_settled(pod, settings_generation) for pod in new):
        return highest + 1
    return highest


def _is_settled(pod: Replica, settings_generation: int) -> bool:
    return pod.ready and pod.reported is not None and pod.reported.generation >= settings_generation


def _ordinal(pod: Replica) -> int:
    """Returns the pod's StatefulSet ordinal; -1 if its name has none."""
    digits = pod.name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else -1
