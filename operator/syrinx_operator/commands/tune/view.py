"""Formats a pipeline's tuning state as text for `syrinx tune`. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from syrinx_operator.resource.fields.tuning import TtfaObjective
from syrinx_operator.resource.knobs import ROWS_LADDER, Knob, Setting, format_change, format_value
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_operator.resource.state.status import SloStatus
from syrinx_operator.resource.state.tuning_status import (
    Bet,
    Forecast,
    Measured,
    Replicas,
    Served,
    Soak,
    State,
    Trial,
    TrialRecord,
    Tried,
)
from syrinx_operator.tuner.account import account
from syrinx_operator.tuner.betting import CERTAIN
from syrinx_operator.tuner.model.captures import call_times
from syrinx_operator.tuner.model.curves import step_seconds
from syrinx_operator.tuner.replicas import able, summary
from syrinx_operator.tuner.trial import runs_candidate
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
    admin_urls: tuple[str, ...] = ()
    """URLs of the gateways' metrics; none if they cannot be reached from here."""
    state: State
    requested: Setting
    """Setting in `spec`."""
    objectives: Sequence[TtfaObjective] = ()
    slo: Sequence[SloStatus] = ()
    observed_at: datetime | None = None
    """Time of the last evaluation; None if unknown."""
    pipeline: ResolvedPipeline | None = None
    """None of a local pipeline whose resource cannot be read."""
    talkers: int = 1
    codecs: int = 1

    @property
    def in_force(self) -> Setting:
        """The setting in force outside of trials."""
        return self.state.chosen or self.requested


def lines(view: View, now: datetime) -> list[str]:
    """Returns the full view, one string per line."""
    return [line for section in _sections(view, now) if section for line in (*section, "")][:-1]


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
        found.append(f"settings in force: {format_change(before.in_force, after.in_force)}")
    return found


def _sections(view: View, now: datetime) -> Iterator[list[str]]:
    state = view.state
    age = f"; evaluated {_ago(view.observed_at, now)} ago" if view.observed_at else ""
    yield [
        f"pipeline {view.name} ({view.location}): tuning {state.mode}, phase {state.phase}{age}",
        f"  {account(state)}",
    ]
    yield ["settings in force", *(_knob(view, knob) for knob in Knob)]
    yield ["objectives", *(_objectives(view) or ["  none; set spec.slo.ttfa"])]
    if state.trial:
        yield _trial(state.trial, now)
    if state.soak:
        yield _soak(state.soak, now)
    yield _recommendation(view)
    if state.forecast:
        yield _forecast(view.in_force, state.forecast)
    if state.replicas:
        yield _replicas(state.replicas)
    if state.measured.is_known:
        yield _engine_times(state.measured, view.in_force, state.forecast.setting if state.forecast else view.in_force)
    if state.history:
        yield ["decisions, newest last", *(f"  {_decision(each)}" for each in state.history[-MAX_DECISIONS:])]
    if avoided := [each for each in state.tried if each.until > now]:
        yield ["not tried again for now, at a similar load", *(f"  {_tried(each)}" for each in avoided)]


def _knob(view: View, knob: Knob) -> str:
    value, requested = format_value(view.in_force, knob), format_value(view.requested, knob)
    return f"  {knob.value:<19} {value}" + ("" if value == requested else f"   (spec: {requested})")


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


# What is in progress ------------------------------------------------------------------------------------------------


def _trial_title(trial: Trial) -> str:
    return f"trial {trial.id}: {format_change(trial.baseline, trial.candidate)}: {trial.why}"


def _trial(trial: Trial, now: datetime) -> list[str]:
    discarded = f", {trial.discarded} discarded" if trial.discarded else ""
    arm = "candidate" if runs_candidate(trial) else "baseline"
    waiting = "" if trial.counting_time else ", not counted yet"
    return [
        _trial_title(trial),
        f"  since {_clock(trial.start_time)} ({_ago(trial.start_time, now)}): {trial.better.count} pairs of periods of "
        f"{trial.period_seconds:.0f} s{discarded}; now the {arm}{waiting}",
        f"  candidate {_served(trial.candidate_served)}, baseline {_served(trial.baseline_served)}; "
        f"mean difference {_points(trial.better.mean)}",
        f"  evidence: better {_evidence(trial.better)}, worse {_evidence(trial.worse)}, harm "
        f"{_evidence(trial.guard.bet)}; 100% ends the trial",
    ]


def _soak(soak: Soak, now: datetime) -> list[str]:
    guard = soak.guard
    return [
        f"change {soak.id} is in force since {_clock(soak.start_time)} ({_ago(soak.start_time, now)}) and watched",
        f"  {_served(guard.seen)}, expected {1 - guard.expected_bad:.1%}; evidence of harm {_evidence(guard.bet)}; "
        "100% takes it back",
    ]


def _served(served: Served) -> str:
    if not served.requests:
        return "no requests"
    return f"{1 - served.bad_ratio:.1%} of {served.requests} served well"


def _evidence(bet: Bet) -> str:
    """Returns the log wealth of a bet, in percent of what decides."""
    return f"{min(max(bet.log_wealth / CERTAIN, 0.0), 1.0):.0%}"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points"


# What is known ------------------------------------------------------------------------------------------------------


def _recommendation(view: View) -> list[str]:
    found = view.state.recommendation
    if found is None:
        return []
    return [f"recommendation: {format_change(view.in_force, found.setting)}: {found.rationale}"]


def _forecast(in_force: Setting, forecast: Forecast) -> list[str]:
    change = format_change(in_force, forecast.setting) or "the setting in force"
    return [
        f"forecast of {_clock(forecast.time)}, for {forecast.rate:.3g} requests/s",
        f"  served well: {forecast.observed:.1%} observed, {forecast.current:.1%} according to the model",
        f"  best: {forecast.best:.1%} with {change}",
    ]


def _replicas(memory: Replicas) -> list[str]:
    found = [f"replicas: {summary(memory)}"]
    for stage, part in memory.stages.items() if memory.capacity else ():
        able_to, worth = f"{part.count} serve {able(memory, stage):.3g} requests/s", f"{part.worth.usual:.0%}"
        found.append(f"  {stage}: {able_to}, {part.wanted} are needed; each is worth {worth} of what the model says")
    return found


def _engine_times(measured: Measured, setting: Setting, best: Setting) -> list[str]:
    """Returns a table of milliseconds by rows, up to those of the setting in force and of the best one."""
    most = max(rows for each in (setting, best) for rows in (each.talker_max_num_seqs, each.codec_max_num_seqs))
    rows = [each for each in ROWS_LADDER if each <= most]
    steps, calls = step_seconds(measured, rows[-1]), call_times(measured.calls, setting.capture_pairs)
    table = {"rows": [str(each) for each in rows], "talker step": [_ms(steps[each]) for each in rows]}
    for frames in sorted({setting.chunk_ramp[0], max(setting.chunk_ramp)}):
        table[f"codec call, {frames} frames"] = [_ms(calls.at(each, frames)) for each in rows]
    for each in measured.prepares:
        table[f"prepare, {each.task_type}"] = [_ms(each.seconds / each.count)]
    if measured.prefills:
        table["prefill"] = [_ms(measured.prefill_seconds / measured.prefills)]
    largest = measured.steps[-1].rows
    note = f"; steps of more than {largest} rows are extrapolated" if largest < rows[-1] else ""
    cells = (f"  {name:<22}" + "".join(f"{value:>7}" for value in values) for name, values in table.items())
    return [f"engine times in ms{note}", *cells]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:.0f}"


def _decision(record: TrialRecord) -> str:
    shown = "" if record.difference is None else f", measured {_points(record.difference)}"
    model = "" if record.forecast is None else f" (forecast {_points(record.forecast)}{shown})"
    return (
        f"{_clock(record.time)}  change {record.id}: {record.before} -> {record.after}: {record.verdict}: "
        f"{record.reason}{model}"
    )


def _tried(tried: Tried) -> str:
    return (
        f"{format_change(tried.baseline, tried.setting)}, until {_clock(tried.until)}: {_points(tried.difference)} "
        f"at {tried.rate:.3g} requests/s"
    )


def _clock(when: datetime) -> str:
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _ago(when: datetime, now: datetime) -> str:
    seconds = max(0, round((now - when).total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
