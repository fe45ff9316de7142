"""Rolling updates of talkers and codecs: pod count, partition, and pods to delete. Pure.

A rolling update replaces one replica at a time and stops at the first that does not become ready. Everything follows
from the observed pods, so an operator may stop at any step and another one may go on.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count, islice

from msgspec import Struct, structs

from syrinx_operator.cluster.objects.state import Observed, Replica, Settings
from syrinx_operator.cluster.plan.records import Release
from syrinx_operator.cluster.plan.workload.workloads import ReplicaCount
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_stages.contract.stages import Stage

Pods = Mapping[int, Replica]
"""Pods by ordinal."""


class Rollout(Struct, frozen=True):
    """The state of a StatefulSet during a rolling update, or after it."""

    replicas: int
    """Number of pods. It exceeds the desired number while a pod stands in for one that is being replaced or stuck."""
    partition: int
    """Pods of this ordinal and above get the new template, those below keep theirs."""
    delete: tuple[Replica, ...] = ()
    """Outdated pods that the StatefulSet controller does not replace because it waits for a stuck pod above them."""


def stage_rollout(
    pipeline: ResolvedPipeline,
    stage: Stage,
    release: Release,
    live: Mapping[Stage, Settings],
    desired: ReplicaCount,
    observed: Observed,
) -> Rollout:
    """Returns the rollout of a stage. `live` are the settings of all stages.

    A pod is confirmed once all stages in it are. The last replica of an old model generation stays while a gateway of
    another generation exists (even a terminating one, whose streams it serves) or no gateway of the new generation is
    ready.
    """
    unconfirmed = {
        replica.name
        for member in pipeline.in_pod(stage)
        for replica in observed.replicas_of(member)
        if not replica.has_confirmed(live[member].generation)
    }
    pods = [
        structs.replace(pod, reported=None) if pod.name in unconfirmed else pod for pod in observed.replicas_of(stage)
    ]
    # The streams of a stuck gateway have ended with its grace period.
    gateways = [gateway for gateway in observed.replicas_of(Stage.GATEWAY) if not gateway.stuck]
    has_old_replica = any(replica.model_generation != release.generation for replica in pods)
    has_new_gateway = any(gateway.ready and gateway.model_generation == release.generation for gateway in gateways)
    has_old_gateway = any(gateway.model_generation != release.generation for gateway in gateways)
    return rollout(
        desired.count,
        release.templates[stage].hash,
        pods,
        settings_generation=live[stage].generation,
        keep_last_old=has_old_replica and (has_old_gateway or not has_new_gateway),
        surge=pipeline.spec.update_strategy == "Surge",
        fixed=desired.is_autoscaled,
    )


def rollout(
    desired: int,
    template: str,
    pods: Sequence[Replica],
    *,
    settings_generation: int,
    keep_last_old: bool,
    surge: bool = False,
    fixed: bool = False,
) -> Rollout:
    """Returns how a StatefulSet of `desired` replicas continues toward `template`.

    Kubernetes replaces the highest outdated ordinal at or above the partition. The result permits no replacement while
    a pod of `template` is not settled (ready, with settings of `settings_generation` in force), and one otherwise: a
    template whose pods never settle stops at its first pod. Pods of earlier templates block nothing, ready or not, so
    the next edit still rolls out. `keep_last_old` keeps the last outdated pod if there are two or more.

    With `surge` the only pod that serves is replaced only once another pod, of the new template, has settled. A stuck
    pod is passed over once another pod stands in for it. If the count is `fixed`, because an autoscaler owns it,
    neither is possible.
    """
    by_ordinal = {number: pod for pod in pods if (number := ordinal(pod)) >= 0}
    stuck = frozenset() if fixed else frozenset(number for number, pod in by_ordinal.items() if pod.stuck)
    live = {number: pod for number, pod in by_ordinal.items() if not pod.terminating}
    settled = {
        number
        for number, pod in live.items()
        if pod.template == template and pod.ready and pod.has_confirmed(settings_generation)
    }
    replicas = desired if fixed else _with_stand_ins(desired, template, live, stuck)
    if surge and not fixed and not settled:
        replicas = max(replicas, _with_surge(template, live, stuck))
    if keep_last_old and not fixed:
        serving_old = [number for number, pod in live.items() if pod.template != template and _is_serving(pod)]
        replicas = max(replicas, min(serving_old, default=0) + 1)
    ordinals = [number for number in range(replicas) if number not in stuck]
    old = [number for number in ordinals if number in live and live[number].template != template]
    if not old:
        return Rollout(replicas, 0)
    highest = max(old)
    is_recreating = any(number not in live for number in ordinals if number >= highest)
    is_kept = keep_last_old and len(ordinals) > 1 and len(old) == 1
    is_settled = all(number in settled for number in ordinals if number in live and number not in old)
    if is_recreating or is_kept or not is_settled:
        return Rollout(replicas, highest + 1)
    is_blocked = any(highest < number < replicas for number in stuck)
    return Rollout(replicas, highest, (live[highest],) if is_blocked else ())


def _with_stand_ins(desired: int, template: str, live: Pods, stuck: AbstractSet[int]) -> int:
    """Returns the pod count with which `desired` pods are not stuck, and no stand-in ends before it can be spared."""
    own = list(islice((number for number in count() if number not in stuck), desired))
    base = own[-1] + 1
    pods = [live.get(number) for number in own]
    needed = (number for number, pod in live.items() if number >= base and _stands_in(pod, pods, template))
    return max((base, *(number + 1 for number in needed)))


def _stands_in(pod: Replica, own: Sequence[Replica | None], template: str) -> bool:
    """Returns whether a pod above the desired ones, `own`, serves instead of one that is being replaced."""
    is_new = pod.template == template
    if not _is_serving(pod) and (pod.problem or not is_new):
        return False
    return any(
        each is None
        # An older one that does not serve is not being replaced: the user scales down, and the pod is not needed.
        or (not _is_serving(each) and each.created > pod.created)
        or (is_new and each.template != template)
        for each in own
    )


def _with_surge(template: str, live: Pods, stuck: AbstractSet[int]) -> int:
    """Returns the pod count with which the last outdated pod that serves is replaced after a new pod has settled."""
    serving = sorted(number for number, pod in live.items() if _is_serving(pod) and pod.template != template)
    if len(serving) != 1:
        return serving[1] + 1 if serving else 0
    return next(number for number in count(serving[0] + 1) if number not in stuck) + 1


def _is_serving(pod: Replica) -> bool:
    """Returns whether a pod is ready, or has been since its container started: it may be again in a moment."""
    return pod.ready or pod.started


def ordinal(pod: Replica) -> int:
    """Returns the number of a StatefulSet's pod; -1 for other pods."""
    digits = pod.name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else -1
