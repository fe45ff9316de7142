"""Tuning on Kubernetes: the tuner's inputs from a pipeline's state, and the settings that follow from its decisions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.conditions import incomplete
from syrinx_operator.cluster.measure import MetricsReader, window
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.plan.settings import recorded_tuning
from syrinx_operator.cluster.state import Component, Metrics, Observed, Owner, Problem, Replica
from syrinx_operator.resource import knobs
from syrinx_operator.resource.knobs import Identity, Setting, Stage, live_settings
from syrinx_operator.resource.rules import cluster_violations, violations
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import engine_suffix
from syrinx_operator.resource.status import read
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.counters import Observation
from syrinx_operator.tuner.decide import OVERRIDE_TTL_SECONDS, Assignment, Decision, assignment
from syrinx_operator.tuner.evidence import ReplicaStats
from syrinx_operator.tuner.policy import Policy, policy_of
from syrinx_operator.tuner.runner import Tuner
from syrinx_operator.tuner.telemetry import TunerTelemetry

STAGES: Mapping[Component, Stage] = {Component.TALKER: Stage.TALKER, Component.CODEC: Stage.CODEC}
RENEW_SECONDS: Final = OVERRIDE_TTL_SECONDS / 3
"""Maximum seconds between two reconciles while a replica has overrides."""
TRIAL_METRICS_SECONDS: Final = 1.0
"""Minimum seconds between two readings of the metrics during a trial."""


class Tuning(Struct, frozen=True, kw_only=True):
    """A pipeline's tuning state and the settings that follow from it."""

    policy: Policy
    state: State
    assignment: Assignment

    @property
    def has_overrides(self) -> bool:
        """Whether any replica has overrides."""
        return self.assignment.has_overrides

    def overrides_for(self, replica: Replica) -> dict[str, Any] | None:
        """Returns a replica's overrides in the format of `PUT /settings`; None if it has none."""
        stage = STAGES.get(replica.component)
        setting = stage and self.assignment.override(stage, replica.name)
        return live_settings(setting, stage) if stage and setting else None


def tuner_state(status: Mapping[str, Any], owner: Owner, observed: Observed) -> State:
    """Returns the tuner's state from the live status, or from its backup if the status was lost."""
    return read(status).tuning or recorded_tuning(owner, observed)


def tuning_of(pipeline: TTSPipeline, state: State) -> Tuning:
    """Returns the tuning for a state. If an edit of the spec made its settings invalid, the spec's settings apply."""
    policy = policy_of(pipeline.spec)
    assigned = assignment(policy, state)
    settings = (assigned.base, assigned.candidate if assigned.has_overrides else None)
    tuned = [with_setting(pipeline, setting) for setting in settings if setting is not None]
    if any(violations(each) or cluster_violations(each) for each in tuned):
        assigned = Assignment(base=policy.requested)
    return Tuning(policy=policy, state=state, assignment=assigned)


def with_setting(pipeline: TTSPipeline, setting: Setting) -> TTSPipeline:
    """Returns the pipeline with a tuned setting in its spec."""
    return msgspec.structs.replace(pipeline, spec=knobs.with_setting(pipeline.spec, setting))


def requeue_after(pipeline: TTSPipeline, before: Tuning, decision: Decision, resync_seconds: float) -> float:
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
        for component, stage in STAGES.items()
        for replica in observed.live(component)
    )


def change_in_progress(
    plan: Plan, observed: Observed, problems: Sequence[Problem], observed_generation: int | None, owner: Owner
) -> str:
    """Returns what else is changing, which would distort a trial; empty if nothing is.

    `observed_generation` is the generation of the resource that was applied last.
    """
    if problems:
        return problems[0].message
    if observed_generation != owner.generation:
        return "the resource was edited"
    for component in plan.templates:
        if terminating := [pod.name for pod in observed.replicas_of(component) if pod.terminating]:
            return f"{component}: {', '.join(terminating)} terminating"
        if (difference := incomplete(plan, observed, component)) is not None:
            return difference.message
    return ""


def identity(
    pipeline: TTSPipeline, plan: Plan, observed: Observed, devices: Mapping[str, str], before: Identity | None
) -> Identity:
    """Returns the model, image and devices that tuning results are valid for.

    `devices` has the device that each replica reports, by name. While some replicas have not reported theirs, the
    identity `before` stays valid for the same image and model; without one the device is empty.
    """
    image = pipeline.spec.image or plan.release.image
    reported = {component: {devices.get(pod.name, "") for pod in observed.live(component)} for component in STAGES}
    if all(found and "" not in found for found in reported.values()):
        text = "; ".join(f"{component}: {', '.join(sorted(found))}" for component, found in reported.items())
        return Identity(model=plan.generation, image=image, device=f"{text}{engine_suffix(pipeline.spec)}"[:256])
    if before is not None and (before.model, before.image) == (plan.generation, image):
        return before
    return Identity(model=plan.generation, image=image, device="")


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
        pipeline: TTSPipeline,
        owner: Owner,
        tuning: Tuning,
        plan: Plan,
        before: Observed,
        observed: Observed,
        disruption: str,
        clock: Callable[[], datetime],
    ) -> tuple[Decision, Metrics]:
        """Returns the tuner's decision, and the metrics for the status.

        `before` is the state before this reconcile pushed settings. The decision is stored in the status; the next
        reconcile applies it.
        """
        name, policy, state = f"{owner.namespace}/{owner.name}", tuning.policy, tuning.state
        is_changing = state.trial is not None or state.promotion is not None
        reading = await self._reader.read(
            pipeline,
            owner,
            observed.replicas,
            lambda replica: self._scrape(owner.namespace, replica),
            max_age=TRIAL_METRICS_SECONDS if is_changing else None,
            tuned=None if state.trial is None else state.trial.knob.stage,
        )
        now = clock()
        observation = Observation(
            snapshots=reading.snapshots,
            scrape_interval=reading.scrape_interval,
            problem=reading.problem,
            # Counters until now were produced under the settings from before this reconcile.
            replicas=replica_stats(before),
            identity=identity(pipeline, plan, observed, self._tuner.devices(name), state.identity),
            disruption=disruption,
        )
        decision = self._tuner.step(name, policy, state, observation, now)
        gateway_times = (each.time for each in reading.snapshots if each.stage == Component.GATEWAY)
        self._telemetry.update(
            (owner.namespace, owner.name),
            base=tuning.assignment.base,
            state=decision.state,
            events=decision.events,
            metrics_until=max(gateway_times, default=None),
        )
        # They change with new metrics and not with the clock.
        if reading.snapshots or reading.problem or name not in self._metrics:
            evidence = self._tuner.evidence(name, policy, None, now - timedelta(seconds=window(policy)), now)
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
