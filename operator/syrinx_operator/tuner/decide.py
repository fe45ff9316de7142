"""What to do next: the tuner's one decision function. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from syrinx_operator.resource.knobs import Setting, Stage
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.promoting import promote_on, soak_on
from syrinx_operator.tuner.settling import settle
from syrinx_operator.tuner.trying import try_on
from syrinx_operator.tuner.turn import Event, Turn, in_force, stage_of
from syrinx_operator.tuner.watching import watch

__all__ = ["Assignment", "Decision", "Event", "assignment", "decide", "since"]

TRIAL_SETTINGS_SECONDS = 60.0
"""How long a limited setting lasts unless it is renewed; at least three looks."""


class Decision(Struct, frozen=True, kw_only=True):
    """What is to be remembered, told, and when to look again. `assignment` says what settings follow."""

    state: State
    events: tuple[Event, ...] = ()
    look_in: float
    """Seconds to the next look."""


class Assignment(Struct, frozen=True, kw_only=True):
    """Which setting each replica shall have in force."""

    base: Setting
    """Of every replica, and of those that start: what the ConfigMap holds."""
    trial: Mapping[Stage, Mapping[str, Setting]] = {}
    """Replicas with a setting for a limited time, renewed at each look: it ends by itself if nobody renews it."""
    everywhere: Mapping[Stage, Setting] = {}
    """The same for every replica of a stage."""

    def of(self, stage: Stage, replica: str) -> Setting | None:
        """A replica's limited setting; None if it has none."""
        return self.trial.get(stage, {}).get(replica, self.everywhere.get(stage))


def decide(policy: Policy, state: State, evidence: Evidence, now: datetime) -> Decision:
    """What follows from what was seen. Never acts on no data; never has two changes in flight.

    `evidence` is of the window that `since(policy, state, now)` asked for, or of as much of it as is known.
    """
    turn = Turn(policy, state, evidence, now)
    if settle(turn):
        if turn.state.trial is not None:
            try_on(turn)
        elif turn.state.promotion is not None:
            promote_on(turn)
        elif turn.state.soak is not None:
            soak_on(turn)
        else:
            watch(turn)
    return Decision(state=turn.state, events=tuple(turn.events), look_in=turn.look_in)


def assignment(policy: Policy, state: State) -> Assignment:
    """The settings that follow from a state. In modes other than Auto: what the resource asks for."""
    base = in_force(policy, state)
    if policy.mode != "Auto" or policy.paused:
        return Assignment(base=base)
    if state.trial is not None:
        stage, period = state.trial.knob.stage, state.trial.period
        if period.everywhere:
            return Assignment(base=base, everywhere={stage: state.trial.candidate})
        return Assignment(base=base, trial={stage: dict.fromkeys(period.candidates, state.trial.candidate)})
    if state.promotion is not None:
        given = dict.fromkeys(state.promotion.replicas, state.promotion.setting)
        return Assignment(base=base, trial={stage_of(base, state.promotion.setting): given})
    return Assignment(base=base)


def since(policy: Policy, state: State, now: datetime) -> datetime:
    """From when on the next decision wants to know what happened."""
    if state.trial is not None:
        return state.trial.period.counting or now
    if state.promotion is not None:
        return state.promotion.since
    if state.soak is not None:
        return state.soak.since
    window = now - timedelta(seconds=min(max(10 * policy.interval, 60.0), 300.0))
    return max(window, state.changed) if state.changed is not None else window
