"""Tuning on Kubernetes: reads the stages' counters, runs the tuner, and derives settings from its decisions."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.clock import Now, utc_now
from syrinx_operator.cluster.objects.state import STAGES, Metrics, Observed, Owner, Problem, Replica
from syrinx_operator.cluster.objects.tuner_telemetry import TunerTelemetry
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.plan.tuning_record import decode_tuning, recorded_tuning
from syrinx_operator.cluster.report.progress import incomplete
from syrinx_operator.cluster.report.scaling import permitted
from syrinx_operator.cluster.runners.prometheus_reader import PrometheusReader, Reading
from syrinx_operator.observed.counters import Observation
from syrinx_operator.observed.evidence import Evidence, ReplicaStats
from syrinx_operator.observed.snapshot import Snapshot, parse_metrics
from syrinx_operator.resource import knobs
from syrinx_operator.resource.checks.rules import cluster_violations, violations
from syrinx_operator.resource.fields.tuning import TuningSpec
from syrinx_operator.resource.knobs import Identity, Setting, live_settings
from syrinx_operator.resource.resolve import ResolvedPipeline, resolve
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import engine_suffix
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS, Event
from syrinx_operator.tuner.decide import Assignment, Decision, assignment
from syrinx_operator.tuner.policy import Policy, policy_of
from syrinx_operator.tuner.replicas import LOOK_SECONDS
from syrinx_operator.tuner.runner import Tuner
from syrinx_stages.contract.stages import WORKERS, Stage

RENEW_SECONDS: Final = OVERRIDE_TTL_SECONDS / 3
"""Maximum seconds between two reconciles while replicas have overrides."""
TRIAL_METRICS_SECONDS: Final = 1.0
"""Minimum seconds between two readings of the metrics while a change is tried or watched."""

WINDOW = 300.0
"""Measurement window in seconds; two tuning intervals if that is longer."""
SCRAPE_SECONDS = 10.0

Scrape = Callable[[Replica], Awaitable[str]]


class Tuning(Struct, frozen=True, kw_only=True):
    """A pipeline's tuning state and the settings that follow from it."""

    policy: Policy
    state: State
    assignment: Assignment

    def applied_to(self, pipeline: ResolvedPipeline) -> ResolvedPipeline:
        """Returns the pipeline with the setting of replicas without overrides in its spec."""
        return resolve(_with_setting(pipeline, self.assignment.base))

    @property
    def has_overrides(self) -> bool:
        """Whether replicas have overrides, which must be renewed."""
        return self.assignment.candidate is not None or self.assignment.label != ""

    def overrides_for(self, replica: Replica) -> dict[str, Any]:
        """Returns a replica's overrides in the format of `PUT /settings/STAGE`; empty if it has none.

        All talkers and codecs run the candidate, and all gateways label their requests. A canary takes no part.
        """
        candidate, label, stage = self.assignment.candidate, self.assignment.label, replica.component
        if replica.canary or not isinstance(stage, Stage):
            return {}
        if stage is Stage.GATEWAY:
            return {"arm": label} if label else {}
        return live_settings(candidate, stage) if candidate else {}


def tuner_state(status: Mapping[str, Any], owner: Owner, observed: Observed) -> tuple[State, str]:
    """Returns the tuner's state, and what is lost of it; empty if nothing is.

    The ConfigMap decides. The live status replaces one that is missing or unreadable.
    """
    return decode_tuning(recorded_tuning(owner, observed), status.get("tuning") or {})


def lost_event(owner: Owner, lost: str) -> Event:
    """Returns the Event of a state that is lost in part."""
    message = f"ConfigMap {names.tuning_record(owner.name)} {lost}: tuning goes on with what is known from the status"
    return Event(kind="Warning", reason="TuningStateLost", message=message)


def tuning_of(pipeline: ResolvedPipeline, state: State) -> Tuning:
    """Returns the tuning for a state. If an edit of the spec made its settings invalid, the spec's settings apply."""
    policy = policy_of(pipeline)
    assigned = assignment(policy, state)
    settings = (assigned.base, assigned.candidate)
    tuned = [_with_setting(pipeline, setting) for setting in settings if setting is not None]
    if any(violations(each) or cluster_violations(each) for each in tuned):
        assigned = Assignment(base=policy.requested)
    return Tuning(policy=policy, state=state, assignment=assigned)


def _with_setting(pipeline: ResolvedPipeline, setting: Setting) -> TTSPipeline:
    return msgspec.structs.replace(pipeline.resource, spec=knobs.with_setting(pipeline.spec, setting))


def requeue_after(pipeline: ResolvedPipeline, before: Tuning, decision: Decision, resync_seconds: float) -> float:
    """Returns the seconds until the next reconcile: 0 if settings changed, and in time to renew overrides."""
    after = tuning_of(pipeline, decision.state)
    if after.assignment != before.assignment:
        return 0.0
    return min(resync_seconds, decision.requeue_after, *([RENEW_SECONDS] if after.has_overrides else []))


def replica_stats(observed: Observed) -> tuple[ReplicaStats, ...]:
    """Returns the talkers and codecs, without their counters."""
    return tuple(
        ReplicaStats(
            name=replica.name,
            stage=stage,
            ready=replica.ready,
            restarts=replica.restarts,
            settings=replica.reported.settings if replica.reported else None,
        )
        for stage in WORKERS
        for replica in observed.live(stage)
    )


def disruption_of(
    plan: Plan, observed: Observed, problems: Sequence[Problem], applied_generation: int | None, owner: Owner
) -> str:
    """Returns what else is changing, which would distort a trial; empty if nothing is."""
    if problems:
        return problems[0].message
    if applied_generation != owner.generation:
        return "the resource was edited"
    if plan.canary is not None and plan.canary.is_running:
        return "a canary is in progress"
    for component in plan.templates:
        if terminating := [pod.name for pod in observed.replicas_of(component) if pod.terminating]:
            return f"{component}: {', '.join(terminating)} terminating"
        if (difference := incomplete(plan, observed, component)) is not None:
            return difference.message
    return ""


def identity(
    pipeline: ResolvedPipeline, plan: Plan, observed: Observed, devices: Mapping[str, str], before: Identity | None
) -> Identity:
    """Returns the model, image and devices that tuning results are valid for.

    `devices` has the device that each replica reports, by name. While some replicas have not reported theirs, the
    identity `before` stays valid for the same image and model; without one the device is empty.
    """
    image = plan.image
    reported = {stage: {devices.get(pod.name, "") for pod in observed.live(stage)} for stage in WORKERS}
    device = ""
    if all(found and "" not in found for found in reported.values()):
        text = "; ".join(f"{stage}: {', '.join(sorted(found))}" for stage, found in reported.items())
        device = f"{text}{engine_suffix(pipeline.spec)}"[:256]
    elif before is not None and (before.model, before.image) == (plan.generation, image):
        return before
    return Identity(model=plan.generation, image=image, device=device)


class _Memory(Struct):
    tuning: TuningSpec
    gateways: frozenset[str]
    """Names of the gateways that were ready."""
    read_at: datetime
    reading: Reading
    """The last reading without its snapshots."""
    newest_at: datetime | None


class MetricsReader:
    """Reads each pipeline's metrics at most once per interval; in between it repeats the last result."""

    def __init__(self, prometheus: PrometheusReader, clock: Now = utc_now) -> None:
        self._prometheus = prometheus
        self._clock = clock
        self._memory: dict[str, _Memory] = {}
        """By the pipeline's UID."""

    async def read(
        self,
        pipeline: ResolvedPipeline,
        owner: Owner,
        replicas: Sequence[Replica],
        scrape: Scrape,
        *,
        max_age: float | None = None,
    ) -> Reading:
        """Returns the stages' counters; none with tuning Off. Failures are part of the result and never raise.

        Another ready gateway is read at once.

        `scrape` returns a replica's /metrics and may raise. `max_age` (seconds) shortens the interval.
        """
        spec, now = pipeline.spec, self._clock()
        # Pipelines that are no longer read are dropped.
        self._memory = {
            uid: memory
            for uid, memory in self._memory.items()
            if (now - memory.read_at).total_seconds() <= 2 * max(memory.tuning.interval_seconds, WINDOW)
        }
        if spec.tuning.mode == "Off":
            self._memory.pop(owner.uid, None)
            return Reading(source="")
        before = self._memory.get(owner.uid)
        seconds = spec.tuning.interval_seconds if max_age is None else min(max_age, spec.tuning.interval_seconds)
        gateways = frozenset(each.name for each in replicas if each.component is Stage.GATEWAY and each.ready)
        is_same = before is not None and (before.tuning, before.gateways) == (spec.tuning, gateways)
        if before and is_same and 0 <= (now - before.read_at).total_seconds() < seconds:
            return before.reading
        if spec.tuning.prometheus is None:
            reading = await self._scrape_all([each for each in replicas if each.component in STAGES], scrape, now)
        else:
            span = WINDOW if before is None or before.newest_at is None else (now - before.newest_at).total_seconds()
            reading = await self._prometheus.read(pipeline, owner, min(span, WINDOW))
        newest_at = max((each.time for each in reading.snapshots), default=before.newest_at if before else None)
        without_snapshots = msgspec.structs.replace(reading, snapshots=())
        self._memory[owner.uid] = _Memory(spec.tuning, gateways, now, without_snapshots, newest_at)
        return reading

    async def _scrape_all(self, replicas: Sequence[Replica], scrape: Scrape, now: datetime) -> Reading:
        targets = [replica for replica in replicas if replica.address]
        answers = await asyncio.gather(*(scrape_snapshot(replica, scrape, now) for replica in targets))
        found = tuple(answer for answer in answers if isinstance(answer, Snapshot))
        if any(each.stage == Stage.GATEWAY for each in found):
            return Reading(source="gateways", snapshots=found)
        pairs = zip(targets, answers, strict=True)
        errors = [answer for replica, answer in pairs if replica.component is Stage.GATEWAY and replica.ready]
        if not errors:
            return Reading(source="gateways", snapshots=found, reason="Missing", problem="no gateway is ready")
        problem = f"cannot read the metrics of any gateway: {errors[0]}"
        return Reading(source="gateways", snapshots=found, reason="Error", problem=problem)


def paused_metrics(now: datetime) -> Metrics:
    """Returns the metrics of a paused pipeline, which are not read."""
    unknown = Identity(model="", image="", device="")
    evidence = Evidence(since=now, until=now, identity=unknown, problem="spec.paused is set: metrics are not read")
    return Metrics(source="", evidence=evidence)


def window(policy: Policy) -> float:
    """Returns the measurement window in seconds."""
    return max(WINDOW, 2 * policy.interval)


async def scrape_snapshot(replica: Replica, scrape: Scrape, at: datetime) -> Snapshot | str:
    """Returns a replica's counters at time `at`, which all scrapes of a reading share; or an error message."""
    try:
        async with asyncio.timeout(SCRAPE_SECONDS):
            text = await scrape(replica)
            return await asyncio.to_thread(parse_metrics, replica.name, replica.component.value, at, text)
    except Exception as error:
        # One unreachable replica must not hide the others, whatever the transport raises.
        return f"{replica.name}: {type(error).__name__}: {str(error)[:200]}"


class TuningRunner:
    """Reads metrics and runs the tuner. It keeps counters only; lost ones are collected again within minutes."""

    def __init__(
        self,
        reader: MetricsReader,
        tuner: Tuner,
        telemetry: TunerTelemetry,
        scrape: Callable[[str, Replica], Awaitable[str]],
    ) -> None:
        """`scrape` returns the /metrics of a replica in a namespace, and may raise."""
        self._reader = reader
        self._tuner = tuner
        self._telemetry = telemetry
        self._scrape = scrape
        self._metrics: dict[str, Metrics] = {}

    async def decide(
        self,
        pipeline: ResolvedPipeline,
        owner: Owner,
        tuning: Tuning,
        plan: Plan,
        observed: Observed,
        disruption: str,
        clock: Now,
    ) -> tuple[Decision, Metrics]:
        """Returns the tuner's decision, and the metrics for the status.

        The caller stores the decision's state; the next reconcile applies it.
        """
        name, policy, state = f"{owner.namespace}/{owner.name}", tuning.policy, tuning.state
        policy = permitted(policy, owner, observed)
        is_changing = state.trial is not None or state.soak is not None
        reading = await self._reader.read(
            pipeline,
            owner,
            observed.replicas,
            lambda replica: self._scrape(owner.namespace, replica),
            max_age=TRIAL_METRICS_SECONDS if is_changing else LOOK_SECONDS if policy.scales else None,
        )
        now = clock()
        observation = Observation(
            snapshots=reading.snapshots,
            scrape_interval=reading.scrape_interval,
            problem=reading.problem,
            replicas=replica_stats(observed),
            identity=identity(pipeline, plan, observed, self._tuner.devices(name), state.identity),
            disruption=disruption,
        )
        decision = self._tuner.step(name, policy, state, observation, now)
        gateway_times = (each.time for each in reading.snapshots if each.stage == Stage.GATEWAY)
        self._telemetry.update(
            (owner.namespace, owner.name),
            base=tuning.assignment.base,
            state=decision.state,
            events=decision.events,
            metrics_until=max(gateway_times, default=None),
        )
        # They change with new metrics and not with the clock.
        if reading.snapshots or reading.problem or name not in self._metrics:
            evidence = self._tuner.evidence(name, policy, now - timedelta(seconds=window(policy)), now)
            self._metrics[name] = Metrics(source=reading.source, evidence=evidence, reason=reading.reason or "Stale")
        return decision, self._metrics[name]

    def forget(self, namespace: str, name: str) -> None:
        """Drops a deleted pipeline."""
        self._tuner.forget(f"{namespace}/{name}")
        self._metrics.pop(f"{namespace}/{name}", None)
        self.drop_metrics(namespace, name)

    def drop_metrics(self, namespace: str, name: str) -> None:
        """Stops exporting metrics of a pipeline, which another operator exports or which is deleted."""
        self._telemetry.forget((namespace, name))
