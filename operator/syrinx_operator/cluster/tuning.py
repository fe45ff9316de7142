"""Tuning on Kubernetes: what the tuner is shown of a pipeline, and what follows of its state for replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.conditions import Problem, incomplete, live_pods
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.plan.tuning import restored
from syrinx_operator.cluster.state import Component, Observed, Owner, Replica
from syrinx_operator.cluster.transitions import MAX_MESSAGE, Transition
from syrinx_operator.resource.knobs import Identity, Setting, Stage, live_settings, with_setting
from syrinx_operator.resource.rules import cluster_violations, violations
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import engine_suffix
from syrinx_operator.resource.status import read
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.decide import OVERRIDE_TTL_SECONDS, Assignment, Decision, Event, assignment
from syrinx_operator.tuner.evidence import ReplicaStats
from syrinx_operator.tuner.policy import Policy, policy_of

STAGES: Mapping[Component, Stage] = {Component.TALKER: Stage.TALKER, Component.CODEC: Stage.CODEC}
RENEW_SECONDS = OVERRIDE_TTL_SECONDS / 3
"""Between two looks at most while a replica has settings for a limited time."""


class Tuning(Struct, frozen=True, kw_only=True):
    """What holds for a pipeline from one decision to the next."""

    policy: Policy
    state: State
    assignment: Assignment

    @property
    def limited(self) -> bool:
        """Whether some replica has settings for a limited time."""
        return any(self.assignment.replica_overrides.values()) or bool(self.assignment.stage_overrides)

    def settings_of(self, replica: Replica) -> dict[str, Any] | None:
        """A replica's settings for a limited time, as `PUT /settings` names them; None if it has none."""
        stage = STAGES.get(replica.component)
        setting = None if stage is None else self.assignment.override(stage, replica.name)
        return None if stage is None or setting is None else live_settings(setting, stage)


def remembered(status: Mapping[str, Any], owner: Owner, observed: Observed) -> State:
    """What the tuner remembers: the live status says it, or the copy of the most of it if the status is lost."""
    return read(status).tuning or restored(owner, observed)


def tuning(pipeline: TTSPipeline, state: State) -> Tuning:
    """What follows from a state. Settings that an edit of other fields made impossible give way to the resource's."""
    policy = policy_of(pipeline.spec)
    follows = assignment(policy, state)
    settings = [follows.base, *follows.stage_overrides.values()]
    settings += [setting for replicas in follows.replica_overrides.values() for setting in replicas.values()]
    if not all(_possible(pipeline, setting) for setting in settings):
        follows = Assignment(base=policy.requested)
    return Tuning(policy=policy, state=state, assignment=follows)


def as_tuned(pipeline: TTSPipeline, setting: Setting) -> TTSPipeline:
    """The pipeline as if its user asked for a setting."""
    return msgspec.structs.replace(pipeline, spec=with_setting(pipeline.spec, setting))


def _possible(pipeline: TTSPipeline, setting: Setting) -> bool:
    wanted = as_tuned(pipeline, setting)
    return not [*violations(wanted), *cluster_violations(wanted)]


def transitions_of(events: Iterable[Event]) -> Iterator[Transition]:
    """What was decided, as events of the resource."""
    for event in events:
        yield Transition(event.kind, event.reason, event.message[:MAX_MESSAGE])


def look_in(pipeline: TTSPipeline, before: Tuning, decision: Decision, period: float) -> float:
    """Seconds to the next look: none if something else follows now; soon enough to renew what is limited."""
    after = tuning(pipeline, decision.state)
    if after.assignment != before.assignment:
        return 0.0
    return min(period, decision.requeue_after, *([RENEW_SECONDS] if after.limited else []))


def workers(observed: Observed) -> tuple[ReplicaStats, ...]:
    """The talkers and codecs, without their counts."""
    return tuple(
        _worker(replica, stage) for component, stage in STAGES.items() for replica in live_pods(observed, component)
    )


def _worker(replica: Replica, stage: Stage) -> ReplicaStats:
    reported = replica.reported
    return ReplicaStats(
        name=replica.name,
        stage=stage,
        ready=replica.ready,
        restarts=replica.restarts,
        settings=None if reported is None else reported.settings,
        supports_overrides=reported is None or reported.can_try,
    )


def moving(
    plan: Plan, observed: Observed, problems: Sequence[Problem], observed_generation: int | None, owner: Owner
) -> str:
    """What else changes, so that this is no time for trials; empty if nothing does.

    `observed_generation` is that of the resource that was carried out last.
    """
    if problems:
        return problems[0].message
    if observed_generation != owner.generation:
        return "the resource was edited"
    for component in plan.templates:
        if going := [pod.name for pod in observed.of(component) if pod.terminating]:
            return f"{component}: {', '.join(going)} ending"
        for _, words in incomplete(plan, observed, component):
            return words
    return ""


def identity(
    pipeline: TTSPipeline, plan: Plan, observed: Observed, devices: Mapping[str, str], before: Identity | None
) -> Identity:
    """What knowledge holds for. `devices` is where replicas say that they compute, by name, as far as they were asked.

    While some did not say, what was known of the same image and model goes on to hold; else the device is empty.
    """
    image = pipeline.spec.image or plan.release.image
    live = {component: live_pods(observed, component) for component in STAGES}
    said = {component: {devices.get(pod.name, "") for pod in pods} for component, pods in live.items()}
    if all(where and "" not in where for where in said.values()):
        words = "; ".join(f"{component}: {', '.join(sorted(where))}" for component, where in said.items())
        return Identity(model=plan.generation, image=image, device=f"{words}{engine_suffix(pipeline.spec)}"[:256])
    if before is not None and (before.model, before.image) == (plan.generation, image):
        return before
    return Identity(model=plan.generation, image=image, device="")
