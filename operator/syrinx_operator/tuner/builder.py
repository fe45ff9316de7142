"""One decision in the making: what it starts from, what it leaves behind, and the bookkeeping that all phases share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import Struct

from syrinx_operator.resource.knobs import Knob, Setting, Stage
from syrinx_operator.resource.tuning_status import (
    MAX_HISTORY,
    MAX_QUARANTINE,
    Phase,
    QuarantinedSetting,
    State,
    Trial,
    TrialRecord,
    Verdict,
)
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.stats import interval
from syrinx_operator.tuner.workload import similar

LONGEST_COOL_DOWN = timedelta(minutes=30)
LONGEST_QUARANTINE = timedelta(hours=24)


class Event(Struct, frozen=True, kw_only=True):
    """Something decided: one line of the audit log, and one event of the resource."""

    kind: Literal["Normal", "Warning"] = "Normal"
    reason: str
    """In one CamelCase word: TrialStarted, Promoted, RolledBack, ..."""
    message: str
    data: Mapping[str, Any] = {}
    """For the audit log: what the decision was made from, JSON-encodable by msgspec."""


class DecisionBuilder:
    """One decision. The phases (`settling`, `watching`, `trying`, `promoting`) change `state` through `set`."""

    def __init__(self, policy: Policy, state: State, evidence: Evidence, now: datetime) -> None:
        self.policy = policy
        self.state = state
        self.evidence = evidence
        self.now = now
        self.events: list[Event] = []
        self.requeue_after = policy.interval

    def set(self, **fields: Any) -> None:
        """Replaces fields of the state."""
        self.state = msgspec.structs.replace(self.state, **fields)

    def set_phase(self, phase: Phase, message: str) -> None:
        """Says what the tuner does now."""
        self.set(phase=phase, message=message[:256])

    def emit(
        self, reason: str, message: str, *, kind: Literal["Normal", "Warning"] = "Normal", trial: Trial | None = None
    ) -> None:
        """Adds an event."""
        data: dict[str, Any] = {"context": self.state.workload}
        if trial is not None:
            data["trial"] = trial
        self.events.append(Event(kind=kind, reason=reason, message=message, data=data))

    def seconds_since(self, moment: datetime) -> float:
        """Seconds since a moment."""
        return float((self.now - moment).total_seconds())

    def trial(self) -> Trial:
        """The trial under way; there is one."""
        assert self.state.trial is not None
        return self.state.trial

    def supersede(self, why: str) -> None:
        """Ends what is under way, without a verdict."""
        if self.state.trial is not None:
            self.record_trial(self.state.trial, "Superseded", why)
            self.set(trial=None, last_change_time=self.now)
        if self.state.promotion is not None or self.state.soak is not None:
            self.set(promotion=None, soak=None, last_change_time=self.now)

    def record_trial(self, trial: Trial, verdict: Verdict, reason: str) -> None:
        """Writes the end of a trial into the history, and tells it."""
        whole = trial.strata[0] if trial.strata else None
        compared = whole is not None and whole.test.pairs > 0
        lower, upper = interval(whole.test) if whole is not None and compared else (None, None)
        record = TrialRecord(
            id=trial.id,
            time=self.now,
            start_time=trial.start_time,
            workload=self.state.workload,
            knob=trial.knob,
            before=format_value(trial.baseline, trial.knob),
            after=format_value(trial.candidate, trial.knob),
            verdict=verdict,
            reason=reason[:256],
            requests=whole.candidate.requests + whole.baseline.requests if whole else 0,
            baseline_min_good=min(
                (cell.baseline_min_good for cell in trial.strata if cell.baseline_min_good is not None), default=None
            ),
            difference=whole.test.mean if whole and compared else None,
            lower=lower,
            upper=upper,
        )
        self.add_record(record)
        what = f"trial {trial.id}, {trial.knob}: {record.after} instead of {record.before}: {reason}"
        self.emit(verdict, what, kind="Warning" if verdict == "RolledBack" else "Normal", trial=trial)

    def add_record(self, record: TrialRecord) -> None:
        """Adds to the bounded history."""
        self.set(history=(*self.state.history, record)[-MAX_HISTORY:])

    def quarantine(self, setting: Setting, why: str, hours: float = 1.0) -> None:
        """Not again under this workload, for some hours; each time twice as many."""
        if self.state.workload is None:
            return
        here = self.state.workload
        before = next((q for q in self.state.quarantine if q.setting == setting and similar(q.workload, here)), None)
        failures = before.failures + 1 if before else 1
        until = self.now + min(timedelta(hours=hours) * 2 ** min(failures - 1, 10), LONGEST_QUARANTINE)
        added = QuarantinedSetting(setting=setting, workload=here, reason=why[:256], failures=failures, until=until)
        others = [q for q in self.state.quarantine if q is not before]
        self.set(quarantine=(*others, added)[-MAX_QUARANTINE:])

    def cool_down(self, *, failed: bool) -> None:
        """Some time between two trials, doubled after each failure in a row."""
        base = timedelta(seconds=max(10.0, self.policy.interval))
        failures = 0
        for record in reversed(self.state.history):
            if record.verdict not in ("RolledBack", "Regressed"):
                break
            failures += 1
        wait = min(base * 2 ** min(failures, 10), LONGEST_COOL_DOWN) if failed else base
        self.set(
            next_trial_time=self.now + wait,
            consecutive_breaches=max(0, self.state.consecutive_breaches - 1),
            last_breach_time=self.now,
        )


def in_force(policy: Policy, state: State) -> Setting:
    """What is in force, trials aside: with an edited resource, or in a mode other than Auto, what it asks for."""
    edited = state.requested is not None and state.requested != policy.requested
    if policy.mode != "Auto" or state.chosen is None or edited:
        return policy.requested
    return state.chosen


def stage_of(base: Setting, setting: Setting) -> Stage:
    """The stage in which two settings differ: never both, as trials change one knob."""
    differing = base.differing_knobs(setting)
    return differing[0].stage if differing else Stage.CODEC


def format_value(setting: Setting, knob: Knob) -> str:
    """A knob's value for people."""
    value = setting.value(knob)
    if knob is Knob.PAIRS:
        return ("[" + ", ".join(f"{shape.rows}x{shape.frames}" for shape in value) + "]")[:256]
    return str(list(value) if isinstance(value, tuple) else value)


def format_setting(setting: Setting) -> str:
    """All knobs for people."""
    return ", ".join(f"{knob} {format_value(setting, knob)}" for knob in Knob)
