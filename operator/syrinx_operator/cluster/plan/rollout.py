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
from syrinx_stages.contract.stages import WORKERS, Stage

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

    A pod is confirmed once all stages in it are. Replicas of an old model generation are needed while a gateway of it
    is ready, or ends and serves its last streams. Without a ready gateway all old ones are needed.
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
    gateways = observed.replicas_of(Stage.GATEWAY)
    # The streams of a stuck gateway have ended with its grace period.
    served = {each.model_generation for each in gateways if each.ready or (each.terminating and not each.stuck)}
    is_served = any(each.ready for each in gateways)
    old = (pod for pod in pods if pod.model_generation != release.generation)
    return rollout(
        desired.count,
        release.templates[stage].hash,
        pods,
        settings_generation=live[stage].generation,
        needed=frozenset(pod.name for pod in old if pod.model_generation in served or not is_served),
        surge=pipeline.spec.update_strategy == "Surge",
        fixed=desired.is_autoscaled,
    )


def may_gateways_follow(release: Release, observed: Observed) -> bool:
    """Returns whether the gateways may get the release's model generation.

    They wait until no stage has more ready replicas for the present gateways than for the new ones. New gateways wait
    for their first replicas by themselves, so a single old replica does not hold them back; and gateways of several
    generations, of an earlier roll-out, have no common one to wait for.
    """
    served = {gateway.model_generation for gateway in observed.live(Stage.GATEWAY) if gateway.ready}
    if len(served) != 1:
        return True
    (present,), new = served, release.generation
    ready = [[pod.model_generation for pod in observed.live(stage) if pod.ready] for stage in WORKERS]
    return all(each.count(present) <= max(each.count(new), 1) for each in ready)


def rollout(
    desired: int,
    template: str,
    pods: Sequence[Replica],
    *,
    settings_generation: int,
    needed: AbstractSet[str] = frozenset(),
    surge: bool = False,
    fixed: bool = False,
) -> Rollout:
    """Returns how a StatefulSet of `desired` replicas continues toward `template`.

    Kubernetes replaces the highest outdated ordinal at or above the partition. The result permits no replacement while
    a pod of `template` is not settled (ready, with settings of `settings_generation` in force), and one otherwise: a
    template whose pods never settle stops at its first pod. Pods of earlier templates block nothing, ready or not, so
    the next edit still rolls out. Of the outdated pods named in `needed`, as many of each model generation are kept
    as pods of `template` have settled: half of them, or the last one.

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
        replicas = max(replicas, _with_surge(template, live, stuck, needed))
    kept = {number for number, pod in live.items() if pod.name in needed and pod.template != template}
    if kept and not fixed:
        replicas = max(replicas, min((number for number in kept if _is_serving(live[number])), default=0) + 1)
    ordinals = [number for number in range(replicas) if number not in stuck]
    old = [number for number in ordinals if number in live and live[number].template != template]
    if not old:
        return Rollout(replicas, 0)
    highest = max(old)
    is_recreating = any(number not in live for number in ordinals if number >= highest)
    alike = [number for number in old if live[number].model_generation == live[highest].model_generation]
    is_returning = any(number not in live for number in ordinals)
    is_kept = highest in kept and len(kept.intersection(alike)) <= max(len(settled), is_returning)
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


def _with_surge(template: str, live: Pods, stuck: AbstractSet[int], needed: AbstractSet[str]) -> int:
    """Returns the pod count with which the last outdated pod that serves is replaced after a new pod has settled."""
    serving = sorted(number for number, pod in live.items() if _is_serving(pod) and pod.template != template)
    if own := [number for number in serving if live[number].name in needed]:
        # Those are replaced first.
        generation = live[own[-1]].model_generation
        serving = [number for number in own if live[number].model_generation == generation]
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
