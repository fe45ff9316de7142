"""Runs canaries: observes their pods and requests, decides, and derives the gateways' route from the decision."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.clock import Now
from syrinx_operator.cluster.objects.state import STAGES, Manifest, Observed, Owner, Replica
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.plan.canary import CanaryPlan, canary_route, forwarded_share
from syrinx_operator.cluster.plan.records import recorded_release
from syrinx_operator.cluster.report import diagnosis
from syrinx_operator.cluster.report.progress import incomplete
from syrinx_operator.cluster.runners.canary import COMMANDS, CanaryInputs, Comparison, compare, decide
from syrinx_operator.cluster.runners.promotion import serves_on, share_by_replicas
from syrinx_operator.cluster.runners.tuning import scrape_snapshot
from syrinx_operator.observed.counters import CounterHistory, Observation
from syrinx_operator.observed.snapshot import Snapshot
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_operator.resource.state.canary_status import CanaryStatus
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.policy import policy_of
from syrinx_stages.contract.stages import Stage

EVALUATION_SECONDS: Final = 5.0
"""Maximum seconds between two reconciles while a canary has pods."""
_NOBODY = Identity(model="", image="", device="")


class CanaryDecision(Struct, frozen=True, kw_only=True):
    """The canary's status to store and the events to emit."""

    status: CanaryStatus | None = None
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    """Seconds until the next reconcile; None if the canary needs none."""


class _Counters(NamedTuple):
    """The counters of the gateways of both versions."""

    target: str
    stable: CounterHistory
    canary: CounterHistory


class CanaryRunner:
    """Decides about the canaries of any number of pipelines. It keeps counters only."""

    def __init__(self, scrape: Callable[[str, Replica], Awaitable[str]]) -> None:
        """`scrape` returns the /metrics of a replica in a namespace, and may raise."""
        self._scrape = scrape
        self._counters: dict[str, _Counters] = {}
        """By namespace and name of the pipeline."""

    async def decide(
        self,
        pipeline: ResolvedPipeline,
        owner: Owner,
        plan: Plan,
        observed: Observed,
        before: CanaryStatus | None,
        tuning: State,
        command: str,
        clock: Now,
    ) -> CanaryDecision:
        """Returns the decision about the canary of a plan; an empty one without a canary."""
        name = f"{owner.namespace}/{owner.name}"
        unknown = _unknown_command(command)
        has_pods = names.canary_key(owner.name, Stage.TALKER) in plan.keep
        promoted = None if before is None else before.promotion_time
        if plan.canary is None:
            self._counters.pop(name, None)
            # Until the release is recorded, the status is what knows that it was promoted.
            is_serving = serves_on(pipeline, owner, plan, observed, promoted, clock())
            is_over = _is_recorded(owner, plan, observed) and not is_serving
            status, seconds = None if is_over else before, EVALUATION_SECONDS if has_pods else None
            return CanaryDecision(status=status, events=unknown, requeue_after=seconds if status is before else 0.0)
        is_followed = before is not None and before.target == plan.canary.candidate.target
        comparison = await self._compare(pipeline, owner, plan.canary, observed, before if is_followed else None, clock)
        now = clock()
        known = "" if unknown else command
        promoting = serves_on(pipeline, owner, plan, observed, promoted, now)
        inputs = _inputs(pipeline, plan, plan.canary, observed, tuning, comparison, known, now, promoting)
        status, events = decide(before, inputs, now)
        course = (status.target, status.phase, status.step, status.weight)
        if before is None or course != (before.target, before.phase, before.step, before.weight):
            requeue_after: float | None = 0.0
        else:
            requeue_after = EVALUATION_SECONDS if plan.canary.is_running or has_pods else None
        return CanaryDecision(status=status, events=(*unknown, *events), requeue_after=requeue_after)

    def forget(self, namespace: str, name: str) -> None:
        """Drops a deleted pipeline."""
        self._counters.pop(f"{namespace}/{name}", None)

    async def _compare(
        self,
        pipeline: ResolvedPipeline,
        owner: Owner,
        canary: CanaryPlan,
        observed: Observed,
        status: CanaryStatus | None,
        clock: Now,
    ) -> Comparison:
        """Reads the gateways' counters. Returns the requests since the start of the canary's current period."""
        if not canary.is_running:
            return Comparison(until=clock())
        name, target = f"{owner.namespace}/{owner.name}", canary.candidate.target
        if name not in self._counters or self._counters[name].target != target:
            self._counters[name] = _Counters(target, CounterHistory(), CounterHistory())
        counters, now = self._counters[name], clock()
        for history, replicas in ((counters.stable, observed.replicas), (counters.canary, observed.canary)):
            gateways = [each for each in replicas if each.component is Stage.GATEWAY and each.address]
            scrapes = (scrape_snapshot(each, lambda one: self._scrape(owner.namespace, one), now) for each in gateways)
            answers = await asyncio.gather(*scrapes)
            found = tuple(each for each in answers if isinstance(each, Snapshot))
            history.observe(Observation(snapshots=found, identity=_NOBODY))
        since = status.period_time if status is not None and status.period_time is not None else now
        policy = policy_of(pipeline)
        stable, candidate = (
            history.evidence(policy.objectives, policy.interval, since, now)
            for history in (counters.stable, counters.canary)
        )
        return compare(stable, candidate)


def command_of(live: Manifest) -> str:
    """Returns the command about the canary in the annotation of a pipeline; empty without one."""
    found: str = (live["metadata"].get("annotations") or {}).get(names.ROLLOUT_ANNOTATION, "")
    return found


def route_overrides(plan: Plan, pipeline: ResolvedPipeline, observed: Observed, replica: Replica) -> dict[str, Any]:
    """Returns the overrides of a gateway while a canary has a share; empty for other replicas."""
    if replica.component is not Stage.GATEWAY or replica.canary:
        return {}
    route = canary_route(pipeline.spec, _share(plan, observed, replica), observed)
    return {} if route is None else {"canary": msgspec.to_builtins(route)}


def _share(plan: Plan, observed: Observed, gateway: Replica) -> float:
    """Returns the share of the requests that a gateway should forward."""
    if plan.is_promoting:
        return share_by_replicas(gateway, observed)
    return plan.canary.weight / 100 if plan.canary is not None else 0.0


def _is_recorded(owner: Owner, plan: Plan, observed: Observed) -> bool:
    recorded = recorded_release(owner, observed)
    hashes = {component: template.hash for component, template in recorded.all_templates.items()} if recorded else {}
    return all(hashes.get(each) == template.hash for each, template in plan.release.all_templates.items())


def _unknown_command(command: str) -> tuple[Event, ...]:
    if not command or command in COMMANDS:
        return ()
    message = f"annotation {names.ROLLOUT_ANNOTATION}: {command[:60]!r} is none of {', '.join(COMMANDS)}"
    return (Event(kind="Warning", reason="UnknownCommand", message=message),)


def _inputs(
    pipeline: ResolvedPipeline,
    plan: Plan,
    canary: CanaryPlan,
    observed: Observed,
    tuning: State,
    comparison: Comparison,
    command: str,
    now: datetime,
    promoting: bool,
) -> CanaryInputs:
    pods = [pod for pod in observed.canary if not pod.terminating and not pod.colocated]
    hashes = {stage: template.hash for stage, template in canary.candidate.pods.items()}
    current = [pod for pod in pods if isinstance(pod.component, Stage) and pod.template == hashes[pod.component]]
    route = canary_route(pipeline.spec, canary.weight / 100, observed)
    gateways = [pod for pod in observed.live(Stage.GATEWAY) if pod.ready]
    return CanaryInputs(
        spec=canary.spec,
        target=canary.candidate.target,
        image=canary.image,
        unready=_unready(canary, current),
        can_serve=all(any(pod.ready for pod in current if pod.component is stage) for stage in canary.replicas),
        problem=_problem(pipeline, current, now),
        restarts=sum(pod.restarts for pod in current),
        last_exit=_last_exit(current),
        is_routed=route is not None and all(forwarded_share(pod) == route.weight for pod in gateways),
        is_serving=all(any(pod.ready for pod in observed.live(stage)) for stage in STAGES),
        is_promoting=promoting,
        waits_for=_other_change(plan, canary, observed, tuning),
        blocked=_problem(pipeline, _starting(plan, observed), now),
        deadline=timedelta(seconds=pipeline.progress_deadline),
        comparison=comparison,
        command=command,
    )


def _unready(canary: CanaryPlan, pods: list[Replica]) -> str:
    """Returns the stage that the canary waits for; talkers and codecs come first because gateways wait for both."""
    for stage in sorted(canary.replicas, key=lambda each: each is Stage.GATEWAY):
        count = canary.awaited[stage]
        own = [pod for pod in pods if pod.component is stage]
        if sum(pod.ready for pod in own) < count:
            problems = [f"{pod.name}: {pod.problem}" for pod in own if pod.problem]
            ready = f"its {stage}: {sum(pod.ready for pod in own)} of {count} pods are ready"
            return "; ".join([ready, *problems])
    return ""


def _rollouts(plan: Plan, observed: Observed) -> dict[Stage, str]:
    """Returns the stages of the running version that are being rolled out, with what is missing."""
    found = {stage: incomplete(plan, observed, stage) for stage in STAGES}
    return {stage: each.message for stage, each in found.items() if each is not None and each.reason == "RollingOut"}


def _starting(plan: Plan, observed: Observed) -> list[Replica]:
    """Returns the pods to which the running version is being rolled out, and which are not ready."""
    live = (pod for stage in _rollouts(plan, observed) for pod in observed.live(stage))
    return [pod for pod in live if pod.template == plan.templates[pod.component] and not pod.ready]


def _problem(pipeline: ResolvedPipeline, pods: list[Replica], now: datetime) -> str:
    """Returns the first problem of the pods that waiting does not help; for a node they wait until the deadline."""
    limit = timedelta(seconds=pipeline.progress_deadline)
    for pod in pods:
        found = diagnosis.diagnose(pod, limit, now)
        if found is not None and found[1] and found[0].reason != "Unschedulable":
            return found[0].message
    return ""


def _last_exit(pods: list[Replica]) -> str:
    """Returns how a container of the pod with the most restarts ended; empty if none has, or it is unknown."""
    pod = max(pods, key=lambda each: each.restarts, default=None)
    return f"{pod.name}: {pod.last_exit}" if pod is not None and pod.last_exit else ""


def _other_change(plan: Plan, canary: CanaryPlan, observed: Observed, tuning: State) -> str:
    """Returns what must end before the canary gets requests; empty if nothing."""
    if tuning.trial is not None:
        return f"the end of the tuner's trial {tuning.trial.id}"
    missing = next(iter(_rollouts(plan, observed).values()), "")
    if missing or canary.waits:
        return ": ".join(["the roll-out of the running version", *([missing] if missing else [])])
    return ""
