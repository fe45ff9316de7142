"""Formats a pipeline's tuning state as text for `syrinx tune`. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning import TtfaObjective
from syrinx_operator.resource.tuning_status import Counts, State, Stratum, Trial, TrialRecord
from syrinx_operator.tuner.stats import METRICS, format_effect
from syrinx_stages.contract.metrics import TTFA_BUCKETS

MAX_DECISIONS = 8
"""Number of listed decisions, the newest."""
_MET = {"True": "met", "False": "missed", "Unknown": "unknown"}


class TuneError(Exception):
    """There is nothing to show. The message says what to do."""


class View(Struct, frozen=True, kw_only=True):
    """Everything that `syrinx tune` shows of a pipeline."""

    name: str
    location: str
    """URL or namespace."""
    admin_url: str = ""
    """URL of the gateway's metrics; empty if it cannot be reached from here."""
    state: State
    requested: Setting
    """Setting in `spec`."""
    objectives: Sequence[TtfaObjective] = ()
    slo: Sequence[SloStatus] = ()
    observed_at: datetime | None = None
    """Time of the last evaluation; None if unknown."""

    @property
    def in_force(self) -> Setting:
        """The setting in force outside of trials."""
        return self.state.chosen or self.requested


def lines(view: View, now: datetime) -> list[str]:
    """Returns the full view, one string per line."""
    return [line for section in _sections(view, now) for line in (*section, "")][:-1]


def changes(before: View | None, after: View) -> list[str]:
    """Returns what changed since another view, one string per line."""
    state = after.state
    old = before.state if before else None
    found = []
    if old is None or (old.phase, old.message) != (state.phase, state.message):
        found.append(f"{state.phase}: {state.message}")
    if state.trial and (old is None or old.trial is None or old.trial.id != state.trial.id):
        found.append(_trial_title(state.trial))
    known = {(record.id, record.time, record.verdict) for record in old.history} if old else set()
    found += [_decision(each) for each in state.history if (each.id, each.time, each.verdict) not in known]
    if old is None or old.recommendation != state.recommendation:
        found += _recommendation(after)
    if before is not None and before.in_force != after.in_force:
        found.append(f"settings in force: {_differences(before.in_force, after.in_force)}")
    return found


def format_knob(value: Any) -> str:
    """Returns a knob's value as text."""
    if isinstance(value, tuple):
        parts = [f"{each.rows}x{each.frames}" if isinstance(each, CaptureShape) else str(each) for each in value]
        return ",".join(parts) or "none"
    return str(value)


def _sections(view: View, now: datetime) -> Iterator[list[str]]:
    state = view.state
    age = f"; evaluated {_ago(view.observed_at, now)} ago" if view.observed_at else ""
    yield [
        f"pipeline {view.name} ({view.location}): tuning {state.mode}, phase {state.phase}{age}",
        f"  {state.message}",
    ]
    yield ["settings in force", *(_knob(view, knob) for knob in Knob)]
    yield ["objectives", *(_objectives(view) or ["  none; set spec.slo.ttfa"])]
    if state.trial:
        yield _trial(state.trial, now)
    if state.promotion:
        promotion = state.promotion
        yield [f"promoting trial {promotion.id}: {len(promotion.replicas)} replicas have the new setting"]
    if state.soak:
        yield [f"soaking trial {state.soak.id} until {_clock(state.soak.end_time)}"]
    if state.recommendation:
        yield _recommendation(view)
    if state.history:
        yield ["decisions, newest last", *(f"  {_decision(each)}" for each in state.history[-MAX_DECISIONS:])]
    if state.quarantine:
        yield ["quarantined settings", *_quarantined(view)]


def _knob(view: View, knob: Knob) -> str:
    value, requested = view.in_force.value(knob), view.requested.value(knob)
    note = "" if value == requested else f"   (spec: {format_knob(requested)})"
    return f"  {knob.value:<19} {format_knob(value)}{note}"


def _objectives(view: View) -> list[str]:
    reports = {each.task_type: _report(each) for each in view.slo}
    objectives = {
        each.task_type: f"TTFA within {each.ttfa_p95_ms} ms for {each.target:.4g} of the requests"
        for each in view.objectives
    }
    return [
        f"  {name:<12} {objectives.get(name, 'no objective')}: {reports.get(name, 'no recent requests')}"
        for name in dict.fromkeys([*objectives, *reports])
    ]


def _report(report: SloStatus) -> str:
    if not report.requests:
        return "no recent requests"
    within = "" if report.within is None else f", {report.within:.1%} within"
    p95, last = "", round(1000 * TTFA_BUCKETS[-1])
    if report.ttfa_p95_ms is not None:
        p95 = f", p95 {last} ms or more" if report.ttfa_p95_ms >= last else f", p95 {report.ttfa_p95_ms} ms"
    return f"{_MET[report.met]}; {report.requests} recent requests{within}{p95}"


def _trial_title(trial: Trial) -> str:
    return f"trial {trial.id}: {_change(trial.knob, trial.baseline, trial.candidate)}: {trial.rationale}"


def _trial(trial: Trial, now: datetime) -> list[str]:
    discarded = f", {trial.discarded_periods} periods discarded" if trial.discarded_periods else ""
    return [
        _trial_title(trial),
        f"  since {_clock(trial.start_time)} ({_ago(trial.start_time, now)}), {trial.design}, "
        f"compares {METRICS[trial.goal]}; {trial.overall.test.pairs} pairs of periods{discarded}",
        f"  now: {_arms(trial)}",
        *(_stratum(trial, each) for each in trial.strata if each.candidate.requests or each.baseline.requests),
    ]


def _arms(trial: Trial) -> str:
    period = trial.period
    state = "" if period.counting_since else "; waiting for confirmation"
    if trial.design == "Switchback":
        return f"all replicas run the {'candidate' if period.all_replicas else 'baseline'}{state}"
    candidate, baseline = ", ".join(period.candidate_replicas), ", ".join(period.baseline_replicas)
    return f"candidate on {candidate}, compared with {baseline}{state}"


def _stratum(trial: Trial, stratum: Stratum) -> str:
    goal = trial.goal if stratum.task_type == "all" else "GoodRequests"
    return (
        f"  {stratum.task_type:<12} candidate {_counts(stratum.candidate)}, baseline {_counts(stratum.baseline)}; "
        f"{METRICS[goal]}: {format_effect(stratum.test, goal)}"
    )


def _counts(counts: Counts) -> str:
    if not counts.requests:
        return "no requests"
    return f"{counts.good} of {counts.requests} good ({counts.good_ratio:.0%})"


def _recommendation(view: View) -> list[str]:
    found = view.state.recommendation
    if found is None:
        return []
    return [f"recommendation: {_change(found.knob, view.in_force, found.setting)}: {found.rationale}"]


def _decision(record: TrialRecord) -> str:
    what = f"{record.knob.value} {record.before} -> {record.after}"
    return f"{_clock(record.time)}  trial {record.id}: {what}: {record.verdict}: {record.reason}"


def _quarantined(view: View) -> Iterator[str]:
    for each in view.state.quarantine:
        times = "1 failure" if each.failures == 1 else f"{each.failures} failures"
        yield f"  {_differences(view.in_force, each.setting)}, until {_clock(each.until)} ({times}): {each.reason}"


def _change(knob: Knob, before: Setting, after: Setting) -> str:
    return f"{knob.value} {format_knob(before.value(knob))} -> {format_knob(after.value(knob))}"


def _differences(before: Setting, after: Setting) -> str:
    found = [f"{knob.value} {format_knob(after.value(knob))}" for knob in after.differing_knobs(before)]
    return ", ".join(found) or "the setting in force"


def _clock(when: datetime) -> str:
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _ago(when: datetime, now: datetime) -> str:
    seconds = max(0, round((now - when).total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
