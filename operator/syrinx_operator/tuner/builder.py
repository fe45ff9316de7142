"""Working copy of one decision, and what all phases do to it."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import Struct

from syrinx_operator.observed.evidence import Evidence, alike
from syrinx_operator.resource.knobs import Setting, format_setting
from syrinx_operator.resource.state.tuning_status import (
    MAX_HISTORY,
    MAX_TRIED,
    Capacity,
    Phase,
    Replicas,
    State,
    TrialRecord,
    Tried,
    Verdict,
)
from syrinx_operator.tuner.model.plan import Answer, Question
from syrinx_operator.tuner.policy import Policy

OVERRIDE_TTL_SECONDS = 60.0
"""Lifetime of a settings override that is not renewed. Covers at least three evaluations."""

EventKind = Literal["Normal", "Warning", "Audit"]
"""Audit: for the audit log alone."""
Look = Callable[[datetime, datetime], Evidence]
"""Returns what is known of a window."""
Ask = Callable[[Question], Answer | None]
"""Returns the best setting for this question, or for one asked shortly before; None while it is not known yet."""
AskCapacity = Callable[[Question, float], Capacity | None]
"""Returns the capacity of replicas, for a ratio of requests to serve well, as `Ask` does."""


class Event(Struct, frozen=True, kw_only=True):
    """One decision, written as a line of the audit log and as an event of the resource."""

    kind: EventKind = "Normal"
    reason: str
    """CamelCase: TrialStarted, Promoted, RolledBack, ..."""
    message: str
    data: Mapping[str, Any] = {}
    """Inputs of the decision for the audit log. msgspec can encode them as JSON."""


class DecisionBuilder(Struct):
    """Builds one decision. The phases replace fields of `state` through `set`."""

    policy: Policy
    state: State
    look: Look
    ask: Ask
    ask_capacity: AskCapacity
    now: datetime
    requeue_after: float
    events: list[Event] = []

    def set(self, **fields: Any) -> None:
        """Replaces fields of the state."""
        self.state = msgspec.structs.replace(self.state, **fields)

    @property
    def replicas(self) -> Replicas:
        """What is known about the number of replicas."""
        assert self.state.replicas is not None
        return self.state.replicas

    @property
    def predicted(self) -> float | None:
        """Returns the difference that the model predicted at its last run."""
        forecast = self.state.forecast
        return None if forecast is None else forecast.best - forecast.current

    def set_phase(self, phase: Phase, message: str) -> None:
        """Sets the phase and its message."""
        self.set(phase=phase, message=message[:256])

    def emit(self, reason: str, message: str, *, kind: EventKind = "Normal", **data: Any) -> None:
        """Adds an event."""
        self.events.append(Event(kind=kind, reason=reason, message=message, data=data))

    def seconds_since(self, moment: datetime) -> float:
        """Returns the seconds since a moment."""
        return float((self.now - moment).total_seconds())

    def record(self, verdict: Verdict, reason: str, before: Setting, after: Setting, **fields: Any) -> None:
        """Appends to the bounded history. `fields` are further ones of the record."""
        knobs = before.differing_knobs(after)
        record = TrialRecord(
            time=self.now,
            before=format_setting(before, knobs)[:256],
            after=format_setting(after, knobs)[:256],
            verdict=verdict,
            reason=reason[:256],
            **fields,
        )
        self.set(history=(*self.state.history, record)[-MAX_HISTORY:])

    def remember(
        self, setting: Setting, baseline: Setting, difference: float, error: float, rate: float, hours: float
    ) -> None:
        """Remembers what a comparison has shown. The setting is not tried again for some hours."""
        until = self.now + timedelta(hours=hours)
        added = Tried(
            setting=setting, baseline=baseline, difference=difference, error=min(error, 1.0), rate=rate, until=until
        )
        others = [
            e for e in self.state.tried if (e.setting, e.baseline) != (setting, baseline) or not alike(e.rate, rate)
        ]
        self.set(tried=(*others, added)[-MAX_TRIED:])


def in_force(policy: Policy, state: State) -> Setting:
    """Returns the setting in force outside of trials: the chosen one in Auto mode, else the requested one."""
    edited = state.requested is not None and state.requested != policy.requested
    if policy.mode != "Auto" or state.chosen is None or edited:
        return policy.requested
    return state.chosen
