"""Plots trials (good ratio of both arms, and their difference) and the knobs over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from syrinx_operator.commands.bench.report import writing
from syrinx_operator.commands.tune.audit import AuditEntry
from syrinx_operator.commands.tune.source import TuneError
from syrinx_operator.commands.tune.view import format_knob
from syrinx_operator.resource.knobs import Knob
from syrinx_operator.resource.tuning_status import Stratum, Trial
from syrinx_operator.tuner.stats import interval

MAX_TRIALS = 12
"""Number of plotted trials, the newest."""
_DIFFERENCES = {
    "GoodRequests": "good requests: difference in points",
    "Throughput": "frames per replica second:\ndifference in % of the larger arm",
    "EngineTime": "engine time per frame saved:\nin % of the larger arm",
}
_VERDICTS = {
    "Promoted": "tab:green",
    "RolledBack": "tab:red",
    "Regressed": "tab:red",
    "Inconclusive": "tab:gray",
    "Superseded": "tab:gray",
}
_ARMS = {"candidate": "tab:orange", "baseline": "tab:blue"}


def plot(entries: Sequence[AuditEntry], file: Path, only: int | None = None) -> None:
    """Writes a PNG. Raises TuneError if there is no (such) trial, ReportError if the file cannot be written."""
    matplotlib.use("Agg")
    trials = _trials(entries, only)
    knobs = [] if only else [knob for knob in Knob if _changes(entries, knob)]
    rows = len(trials) + len(knobs)
    figure = Figure(figsize=(10, 0.6 + 2.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2, width_ratios=(3, 2))
    for row, knob in enumerate(knobs):
        _plot_knob(figure.add_subplot(grid[row, :]), entries, knob)
    for row, steps in enumerate(trials, start=len(knobs)):
        _plot_good_ratios(figure.add_subplot(grid[row, 0]), steps)
        plot_difference(figure.add_subplot(grid[row, 1]), steps)
    figure.suptitle(f"tuning of {entries[-1].pipeline}", fontsize=10)
    with writing(file):
        figure.savefig(file, dpi=110, format="png")


def plot_difference(axes: Axes, steps: Sequence[AuditEntry]) -> None:
    """Plots the mean difference of a trial and its 95 % confidence sequence over the pairs, in percent."""
    tests = {each.test.pairs: each.test for step in steps if (each := _overall(step)) is not None and each.test.pairs}
    pairs = sorted(tests)
    bounds = [interval(tests[count]) for count in pairs]
    lower, upper = [100 * low for low, _ in bounds], [100 * high for _, high in bounds]
    axes.axhline(0, color="black", linewidth=0.8)
    axes.fill_between(pairs, lower, upper, alpha=0.2, color="tab:orange")
    axes.plot(pairs, [100 * tests[count].mean for count in pairs], marker=".", color="tab:orange")
    axes.set_xlabel("pairs of periods")
    axes.set_ylabel(_DIFFERENCES[_trial(steps[-1]).goal], fontsize=8)
    axes.grid(alpha=0.3)


def _trials(entries: Sequence[AuditEntry], only: int | None) -> list[list[AuditEntry]]:
    """Returns the entries of each trial. A pipeline whose state was reset numbers its trials from 1 again."""
    found: dict[tuple[int, object], list[AuditEntry]] = {}
    for entry in entries:
        if entry.trial is not None:
            found.setdefault((entry.trial.id, entry.trial.start_time), []).append(entry)
    numbers = sorted({number for number, _ in found})
    selected = [steps for (number, _), steps in found.items() if only in (None, number)]
    if not selected:
        known = f"the log has {numbers[0]} to {numbers[-1]}" if numbers else "the log has no trials yet"
        raise TuneError(f"no trial {only}: {known}" if only else "the log has no trials yet")
    return selected[-MAX_TRIALS:]


def _plot_good_ratios(axes: Axes, steps: Sequence[AuditEntry]) -> None:
    """Plots the cumulative ratio of good requests of both arms over time."""
    trial = _trial(steps[-1])
    for arm, color in _ARMS.items():
        counts = [(_minutes(steps, step.time), getattr(each, arm)) for step in steps if (each := _overall(step))]
        points = [(at, each.good / each.requests) for at, each in counts if each.requests]
        label = f"{arm} {format_knob(getattr(trial, arm).value(trial.knob))}"
        axes.plot([at for at, _ in points], [ratio for _, ratio in points], marker=".", color=color, label=label)
    axes.set_title(f"trial {trial.id}: {trial.knob.value}, {steps[-1].reason}", fontsize=9)
    axes.set_ylabel("good requests, cumulative ratio")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(fontsize=8)
    _time_axis(axes, steps)


def _plot_knob(axes: Axes, entries: Sequence[AuditEntry], knob: Knob) -> None:
    """Plots a knob's value over time, with the verdicts of its trials."""
    known = [(entry.time, format_knob(entry.setting.value(knob))) for entry in entries if entry.setting is not None]
    values = sorted({value for _, value in known}, key=lambda value: (len(value), value))
    axes.step([_minutes(entries, at) for at, _ in known], [values.index(value) for _, value in known], where="post")
    axes.set_yticks(range(len(values)), values)
    for entry in entries:
        if entry.reason in _VERDICTS and entry.trial is not None and entry.trial.knob is knob:
            at = _minutes(entries, entry.time)
            axes.axvline(at, color=_VERDICTS[entry.reason], linewidth=0.8)
            axes.annotate(
                f"{entry.trial.id} {entry.reason}",
                (at, 1),
                xycoords=("data", "axes fraction"),
                rotation=90,
                va="top",
                fontsize=7,
                color=_VERDICTS[entry.reason],
            )
    axes.set_title(knob.value, fontsize=9)
    axes.margins(y=0.2)
    _time_axis(axes, entries)


def _changes(entries: Sequence[AuditEntry], knob: Knob) -> bool:
    """Returns whether a knob was changed or tried."""
    tried = any(entry.trial is not None and entry.trial.knob is knob for entry in entries)
    return tried or len({entry.setting.value(knob) for entry in entries if entry.setting is not None}) > 1


def _minutes(entries: Sequence[AuditEntry], at: datetime) -> float:
    return (at - entries[0].time).total_seconds() / 60


def _time_axis(axes: Axes, entries: Sequence[AuditEntry]) -> None:
    axes.set_xlabel(f"minutes since {entries[0].time.astimezone():%Y-%m-%d %H:%M:%S}")
    axes.grid(alpha=0.3)


def _trial(entry: AuditEntry) -> Trial:
    assert entry.trial is not None
    return entry.trial


def _overall(entry: AuditEntry) -> Stratum | None:
    strata = _trial(entry).strata
    return strata[0] if strata else None
