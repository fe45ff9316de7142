"""What to do next: the tuner's one decision function. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from syrinx_operator.resource.knobs import Setting, Stage
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.builder import DecisionBuilder, Event, in_force, stage_of
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.monitor import watch
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.promotion import promote_on, soak_on
from syrinx_operator.tuner.running import try_on
from syrinx_operator.tuner.spec_changes import settle

__all__ = ["Assignment", "Decision", "Event", "assignment", "decide", "window_start"]

OVERRIDE_TTL_SECONDS = 60.0
"""How long a limited setting lasts unless it is renewed; at least three looks."""


class Decision(Struct, frozen=True, kw_only=True):
    """What is to be remembered, told, and when to look again. `assignment` says what settings follow."""

    state: State
    events: tuple[Event, ...] = ()
    requeue_after: float
    """Seconds to the next look."""


class Assignment(Struct, frozen=True, kw_only=True):
    """Which setting each replica shall have in force."""

    base: Setting
    """Of every replica, and of those that start: what the ConfigMap holds."""
    replica_overrides: Mapping[Stage, Mapping[str, Setting]] = {}
    """Replicas with a setting for a limited time, renewed at each look: it ends by itself if nobody renews it."""
    stage_overrides: Mapping[Stage, Setting] = {}
    """The same for every replica of a stage."""

    def override(self, stage: Stage, replica: str) -> Setting | None:
        """A replica's limited setting; None if it has none."""
        return self.replica_overrides.get(stage, {}).get(replica, self.stage_overrides.get(stage))


def decide(policy: Policy, state: State, evidence: Evidence, now: datetime) -> Decision:
    """What follows from what was seen. Never acts on no data; never has two changes in flight.

    `evidence` is of the window that `since(policy, state, now)` asked for, or of as much of it as is known.
    """
    turn = DecisionBuilder(policy, state, evidence, now)
    if settle(turn):
        if turn.state.trial is not None:
            try_on(turn)
        elif turn.state.promotion is not None:
            promote_on(turn)
        elif turn.state.soak is not None:
            soak_on(turn)
        else:
            watch(turn)
    return Decision(state=turn.state, events=tuple(turn.events), requeue_after=turn.requeue_after)


def assignment(policy: Policy, state: State) -> Assignment:
    """The settings that follow from a state. In modes other than Auto: what the resource asks for."""
    base = in_force(policy, state)
    if policy.mode != "Auto" or policy.paused:
        return Assignment(base=base)
    if state.trial is not None:
        stage, period = state.trial.knob.stage, state.trial.period
        if period.all_replicas:
            return Assignment(base=base, stage_overrides={stage: state.trial.candidate})
        return Assignment(
            base=base, replica_overrides={stage: dict.fromkeys(period.candidate_replicas, state.trial.candidate)}
        )
    if state.promotion is not None:
        given = dict.fromkeys(state.promotion.replicas, state.promotion.setting)
        return Assignment(base=base, replica_overrides={stage_of(base, state.promotion.setting): given})
    return Assignment(base=base)


def window_start(policy: Policy, state: State, now: datetime) -> datetime:
    """From when on the next decision wants to know what happened."""
    if state.trial is not None:
        return state.trial.period.counting_since or now
    if state.promotion is not None:
        return state.promotion.last_step_time
    if state.soak is not None:
        return state.soak.start_time
    window = now - timedelta(seconds=min(max(10 * policy.interval, 60.0), 300.0))
    return max(window, state.last_change_time) if state.last_change_time is not None else window
