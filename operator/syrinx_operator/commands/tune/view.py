"""What a pipeline's tuning does, in plain words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import CaptureShape, TtfaObjective
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning_status import Counts, QuarantinedSetting, State, Stratum, Trial, TrialRecord
from syrinx_operator.tuner.stats import interval
from syrinx_stages.contract.metrics import TTFA_BUCKETS

GOALS = {
    "Listeners": "difference in points",
    "Throughput": "more frames, in %",
    "Work": "less work for a frame, in %",
}
"""What a trial's whole is about, by its goal."""

SHOWN = 8
"""Decisions that are listed, the newest."""
_MET = {"True": "met", "False": "missed", "Unknown": "not known"}


class View(Struct, frozen=True, kw_only=True):
    """What is known of a pipeline's tuning."""

    name: str
    location: str
    """Where it runs, in words."""
    state: State
    requested: Setting
    """What the resource asks for."""
    objectives: Sequence[TtfaObjective] = ()
    slo: Sequence[SloStatus] = ()
    observed_at: datetime | None = None
    """When it was looked at last; None if that is not told."""


def lines(view: View, now: datetime) -> list[str]:
    """All of it, a line each."""
    return [line for part in _parts(view, now) for line in (*part, "")][:-1]


def changes(before: View | None, after: View) -> list[str]:
    """What is new since another view, a line each."""
    state = after.state
    old = before.state if before else None
    found = []
    if old is None or (old.phase, old.message) != (state.phase, state.message):
        found.append(f"{state.phase}: {state.message}")
    if state.trial and (old is None or old.trial is None or old.trial.id != state.trial.id):
        found.append(_trial_head(state.trial))
    known = {(record.id, record.time, record.verdict) for record in old.history} if old else set()
    found += [_decision(each) for each in state.history if (each.id, each.time, each.verdict) not in known]
    if state.recommendation and (old is None or old.recommendation != state.recommendation):
        found.append(_recommendation(state, in_force(after)))
    if before is not None and in_force(before) != in_force(after):
        found.append(f"knobs now: {_differences(in_force(before), in_force(after))}")
    return found


def in_force(view: View) -> Setting:
    """The knobs as they are, trials aside."""
    return view.state.chosen or view.requested


def words(value: Any) -> str:
    """A knob's value."""
    if isinstance(value, tuple):
        parts = [f"{each.rows}x{each.frames}" if isinstance(each, CaptureShape) else str(each) for each in value]
        return ",".join(parts) or "none"
    return str(value)


def _parts(view: View, now: datetime) -> Iterator[list[str]]:
    state = view.state
    seen = f"; looked at {_ago(view.observed_at, now)} ago" if view.observed_at else ""
    yield [
        f"pipeline {view.name} ({view.location}): tuning {state.mode}, phase {state.phase}{seen}",
        f"  {state.message}",
    ]
    yield ["knobs now", *_knobs(view)]
    yield ["objectives", *(_objectives(view) or ["  none; spec.slo.ttfa gives some"])]
    if state.trial:
        yield _trial(state.trial, now)
    if state.promotion:
        promotion = state.promotion
        yield [f"promotion of trial {promotion.id}: {len(promotion.replicas)} replicas have the new setting"]
    if state.soak:
        yield [f"watching what trial {state.soak.id} brought, until {_clock(state.soak.end_time)}"]
    if state.recommendation:
        yield [_recommendation(state, in_force(view))]
    if state.history:
        yield ["decisions, newest last", *(f"  {_decision(each)}" for each in state.history[-SHOWN:])]
    if state.quarantine:
        yield ["not tried for now", *(_quarantined(each, in_force(view)) for each in state.quarantine)]


def _knobs(view: View) -> list[str]:
    now = in_force(view)
    return [
        f"  {knob.value:<19} {words(now.value(knob))}"
        + (
            ""
            if now.value(knob) == view.requested.value(knob)
            else f"   (the resource asks for {_initial(view, knob)})"
        )
        for knob in Knob
    ]


def _initial(view: View, knob: Knob) -> str:
    return words(view.requested.value(knob))


def _objectives(view: View) -> list[str]:
    seen = {each.task_type: each for each in view.slo}
    wanted = {each.task_type: each for each in view.objectives}
    return [
        f"  {task_type:<12} {_wanted(wanted.get(task_type))}: {_how(seen.get(task_type))}"
        for task_type in dict.fromkeys([*wanted, *seen])
    ]


def _wanted(objective: TtfaObjective | None) -> str:
    if objective is None:
        return "no objective"
    return f"{objective.target:.4g} of the requests heard within {objective.ttfa_p95_ms} ms"


def _how(report: SloStatus | None) -> str:
    if report is None or not report.requests:
        return "no request lately"
    within = "" if report.within is None else f", {report.within:.1%} within"
    p95 = "" if report.ttfa_p95_ms is None else f", 95th percentile {_milliseconds(report.ttfa_p95_ms)}"
    return f"{_MET[report.met]} lately, {report.requests} requests{within}{p95}"


def _milliseconds(value: int) -> str:
    last = round(1000 * TTFA_BUCKETS[-1])
    return f"{last} ms or more" if value >= last else f"{value} ms"


def _trial_head(trial: Trial) -> str:
    before, after = words(trial.baseline.value(trial.knob)), words(trial.candidate.value(trial.knob))
    return f"trial {trial.id}: {trial.knob.value} {after} against {before}: {trial.rationale}"


def _trial(trial: Trial, now: datetime) -> list[str]:
    pairs = trial.strata[0].test.pairs if trial.strata else 0
    how = "on different replicas at once" if trial.design == "Parallel" else "in turns on every replica"
    wasted = f", {trial.discarded_periods} periods of no use" if trial.discarded_periods else ""
    return [
        _trial_head(trial),
        f"  since {_clock(trial.start_time)} ({_ago(trial.start_time, now)}), {how}; {pairs} pairs of periods compared{wasted}",  # noqa: E501
        f"  now: {_arms(trial)}",
        *(_cell(trial, cell) for cell in trial.strata if cell.candidate.requests or cell.baseline.requests),
    ]


def _arms(trial: Trial) -> str:
    period = trial.period
    state = "" if period.counting_since else "; not counted yet"
    if trial.design == "Switchback":
        return f"every replica has the {'candidate' if period.all_replicas else 'baseline'}{state}"
    return f"the candidate on {', '.join(period.candidate_replicas)}, compared with {', '.join(period.baseline_replicas)}{state}"  # noqa: E501


def _cell(trial: Trial, cell: Stratum) -> str:
    low, high = interval(cell.test)
    whole = cell.task_type == "all"
    what = GOALS[trial.goal] if whole else GOALS["Listeners"]
    return (
        f"  {'all' if whole else cell.task_type:<12} candidate {_counts(cell.candidate)}, baseline "
        f"{_counts(cell.baseline)}; {what}: {_points(cell.test.mean)} ({_points(low)} to {_points(high)})"
    )


def _counts(counts: Counts) -> str:
    if not counts.requests:
        return "no request"
    return f"{counts.good} of {counts.requests} served well ({counts.good / counts.requests:.0%})"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _recommendation(state: State, now: Setting) -> str:
    found = state.recommendation
    assert found is not None
    before, after = words(now.value(found.knob)), words(found.setting.value(found.knob))
    return f"recommendation: {found.knob.value} {before} -> {after}: {found.rationale}"


def _decision(record: TrialRecord) -> str:
    what = f"{record.knob.value} {record.before} -> {record.after}"
    return f"{_clock(record.time)}  trial {record.id}: {what}: {record.verdict}: {record.reason}"


def _quarantined(each: QuarantinedSetting, now: Setting) -> str:
    times = "once" if each.failures == 1 else f"{each.failures} times"
    return f"  {_differences(now, each.setting)}, until {_clock(each.until)} (failed {times}): {each.reason}"


def _differences(before: Setting, after: Setting) -> str:
    found = [f"{knob.value} {words(after.value(knob))}" for knob in after.differing_knobs(before)]
    return ", ".join(found) or "what is in force"


def _clock(when: datetime) -> str:
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _ago(when: datetime, now: datetime) -> str:
    seconds = max(0, round((now - when).total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
