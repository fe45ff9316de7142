"""Mutable working copy of one decision, with the bookkeeping that all phases share."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import Struct

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.stage_config import Stage
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
from syrinx_operator.tuner.evidence import Evidence, similar
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.stats import interval

MAX_EVALUATION_SECONDS = 10.0
"""Longest time between two evaluations while a change is in progress."""
MAX_COOL_DOWN = timedelta(minutes=30)
MAX_QUARANTINE_TIME = timedelta(hours=24)


EventKind = Literal["Normal", "Warning"]


class Event(Struct, frozen=True, kw_only=True):
    """One decision, written as a line of the audit log and as an event of the resource."""

    kind: EventKind = "Normal"
    reason: str
    """CamelCase: TrialStarted, Promoted, RolledBack, ..."""
    message: str
    data: Mapping[str, Any] = {}
    """Inputs of the decision for the audit log. msgspec can encode them as JSON."""


class DecisionBuilder:
    """Builds one decision. The phases replace fields of `state` through `set`."""

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
        """Sets the phase and its message."""
        self.set(phase=phase, message=message[:256])

    def emit(self, reason: str, message: str, *, kind: EventKind = "Normal", trial: Trial | None = None) -> None:
        """Adds an event."""
        data = {"workload": self.state.workload} | ({} if trial is None else {"trial": trial})
        self.events.append(Event(kind=kind, reason=reason, message=message, data=data))

    def seconds_since(self, moment: datetime) -> float:
        """Returns the seconds since a moment."""
        return float((self.now - moment).total_seconds())

    @property
    def trial(self) -> Trial:
        """The trial in progress. Only valid if there is one."""
        assert self.state.trial is not None
        return self.state.trial

    def supersede(self, why: str) -> None:
        """Ends the trial, promotion or soak in progress without a verdict of its own."""
        if self.state.trial is not None:
            self.record_trial(self.state.trial, "Superseded", why)
            self.set(trial=None, last_change_time=self.now)
        if self.state.promotion is not None or self.state.soak is not None:
            self.set(promotion=None, soak=None, last_change_time=self.now)

    def record_trial(self, trial: Trial, verdict: Verdict, reason: str) -> None:
        """Appends the end of a trial to the history and emits an event."""
        overall = trial.overall
        lower, upper = interval(overall.test) if overall.test.pairs else (None, None)
        self.record(
            verdict,
            reason,
            *(trial.knob, trial.baseline, trial.candidate),
            id=trial.id,
            start_time=trial.start_time,
            requests=overall.candidate.requests + overall.baseline.requests,
            baseline_min_good=trial.baseline_min_good,
            difference=overall.test.mean if overall.test.pairs else None,
            lower=lower,
            upper=upper,
        )
        message = f"trial {trial.id}, {format_change(trial.knob, trial.baseline, trial.candidate)}: {reason}"
        self.emit(verdict, message, kind="Warning" if verdict == "RolledBack" else "Normal", trial=trial)

    def record(self, verdict: Verdict, reason: str, knob: Knob, before: Setting, after: Setting, **fields: Any) -> None:
        """Appends to the bounded history. `fields` are further ones of the record."""
        record = TrialRecord(
            time=self.now,
            workload=self.state.workload,
            knob=knob,
            before=format_value(before, knob),
            after=format_value(after, knob),
            verdict=verdict,
            reason=reason[:256],
            **fields,
        )
        self.set(history=(*self.state.history, record)[-MAX_HISTORY:])

    def recorded(self, number: int) -> TrialRecord | None:
        """Returns the latest history record of a trial, or None."""
        return next((record for record in reversed(self.state.history) if record.id == number), None)

    def quarantine(self, setting: Setting, why: str, hours: float = 1.0) -> None:
        """Bars a setting under the current workload for some hours, doubled with each failure."""
        workload = self.state.workload
        if workload is None:
            return
        known = self.state.quarantine
        before = next((q for q in known if q.setting == setting and similar(q.workload, workload)), None)
        failures = before.failures + 1 if before else 1
        until = self.now + min(timedelta(hours=hours) * 2 ** min(failures - 1, 10), MAX_QUARANTINE_TIME)
        added = QuarantinedSetting(setting=setting, workload=workload, reason=why[:256], failures=failures, until=until)
        others = [q for q in known if q is not before]
        self.set(quarantine=(*others, added)[-MAX_QUARANTINE:])

    def cool_down(self, *, failed: bool) -> None:
        """Delays the next trial; the delay doubles with each consecutive failure."""
        base = timedelta(seconds=max(10.0, self.policy.interval))
        harmful = [record.verdict in ("RolledBack", "Regressed") for record in reversed(self.state.history)]
        failures = [*harmful, False].index(False)
        wait = min(base * 2 ** min(failures, 10), MAX_COOL_DOWN) if failed else base
        breaches = max(0, self.state.consecutive_breaches - 1)
        self.set(next_trial_time=self.now + wait, consecutive_breaches=breaches, last_breach_time=self.now)


def in_force(policy: Policy, state: State) -> Setting:
    """Returns the setting in force outside of trials: the chosen one in Auto mode, else the requested one."""
    edited = state.requested is not None and state.requested != policy.requested
    if policy.mode != "Auto" or state.chosen is None or edited:
        return policy.requested
    return state.chosen


def stage_of(base: Setting, setting: Setting) -> Stage:
    """Returns the stage in which two settings differ. A trial changes one knob, so it is never both."""
    differing = base.differing_knobs(setting)
    return differing[0].stage if differing else Stage.CODEC


def format_value(setting: Setting, knob: Knob) -> str:
    """Returns a knob's value as text, at most 256 characters."""
    value = setting.value(knob)
    if knob is Knob.PAIRS:
        return ("[" + ", ".join(f"{shape.rows}x{shape.frames}" for shape in value) + "]")[:256]
    return str(list(value) if isinstance(value, tuple) else value)


def format_change(knob: Knob, before: Setting, after: Setting) -> str:
    """Returns a knob and its values in two settings as text."""
    return f"{knob} {format_value(before, knob)} -> {format_value(after, knob)}"


def format_setting(setting: Setting) -> str:
    """Returns all knobs as text."""
    return ", ".join(f"{knob} {format_value(setting, knob)}" for knob in Knob)
