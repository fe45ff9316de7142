"""Trials as a picture: how many were served well under both arms as a trial went on, and the knobs over time."""

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
from syrinx_operator.commands.tune.view import GOALS, words
from syrinx_operator.resource.knobs import Knob
from syrinx_operator.resource.tuning_status import Counts, Stratum, Trial
from syrinx_operator.tuner.stats import interval

MOST_TRIALS = 12
"""Drawn at once, the newest."""
_VERDICTS = {
    "Promoted": "tab:green",
    "RolledBack": "tab:red",
    "Regressed": "tab:red",
    "Inconclusive": "tab:gray",
    "Superseded": "tab:gray",
}
_ARMS = {"candidate": "tab:orange", "baseline": "tab:blue"}


def plot(lines: Sequence[AuditEntry], file: Path, only: int | None = None) -> None:
    """Writes a PNG. Raises `TuneError` if there is no (such) trial, `ReportError` if it cannot be written."""
    matplotlib.use("Agg")
    trials = _trials(lines, only)
    knobs = [] if only else [knob for knob in Knob if _moves(lines, knob)]
    rows = len(trials) + len(knobs)
    figure = Figure(figsize=(10, 0.6 + 2.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2, width_ratios=(3, 2))
    for row, knob in enumerate(knobs):
        _knob(figure.add_subplot(grid[row, :]), lines, knob)
    for row, steps in enumerate(trials, start=len(knobs)):
        _shares(figure.add_subplot(grid[row, 0]), steps)
        _difference(figure.add_subplot(grid[row, 1]), steps)
    figure.suptitle(f"tuning of {lines[-1].pipeline}", fontsize=10)
    with writing(file):
        figure.savefig(file, dpi=110, format="png")


def _trials(lines: Sequence[AuditEntry], only: int | None) -> list[list[AuditEntry]]:
    """The lines of each trial that compared something. A pipeline that began anew counts its trials anew."""
    found: dict[tuple[int, object], list[AuditEntry]] = {}
    for line in lines:
        if line.trial is not None:
            found.setdefault((line.trial.id, line.trial.start_time), []).append(line)
    numbers = sorted({number for number, _ in found})
    wanted = [steps for (number, _), steps in found.items() if only in (None, number)]
    if not wanted:
        there = f"there are {numbers[0]} to {numbers[-1]}" if numbers else "none was made yet"
        raise TuneError(f"no trial {only}: {there}" if only else "no trial was made yet: there is nothing to draw")
    return wanted[-MOST_TRIALS:]


def _shares(axes: Axes, steps: Sequence[AuditEntry]) -> None:
    """Share served well so far, by arm, over time."""
    trial = _trial(steps[-1])
    for arm, colour in _ARMS.items():
        cells = [(_minutes(steps, line.time), cell) for line in steps if (cell := _whole(line)) is not None]
        counted = [(at, share) for at, cell in cells if (share := _good(getattr(cell, arm))) is not None]
        label = f"{arm} {words(getattr(trial, arm).value(trial.knob))}"
        axes.plot([at for at, _ in counted], [share for _, share in counted], marker=".", color=colour, label=label)
    axes.set_title(f"trial {trial.id}: {trial.knob.value}, {steps[-1].reason}", fontsize=9)
    axes.set_ylabel("served well, share so far")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(fontsize=8)
    _clock(axes, steps)


def _difference(axes: Axes, steps: Sequence[AuditEntry]) -> None:
    """The difference of the arms with its confidence sequence, pair by pair."""
    tests = {cell.test.pairs: cell.test for line in steps if (cell := _whole(line)) is not None and cell.test.pairs}
    pairs = sorted(tests)
    bounds = [interval(tests[count]) for count in pairs]
    axes.axhline(0, color="black", linewidth=0.8)
    axes.fill_between(pairs, [low for low, _ in bounds], [high for _, high in bounds], alpha=0.2, color="tab:orange")
    axes.plot(pairs, [tests[count].mean for count in pairs], marker=".", color="tab:orange")
    axes.set_xlabel("pairs of periods")
    axes.set_ylabel(f"{GOALS[_trial(steps[-1]).goal]}, 95 %")
    axes.grid(alpha=0.3)


def _knob(axes: Axes, lines: Sequence[AuditEntry], knob: Knob) -> None:
    """A knob's value over time, with the verdicts about it."""
    known = [(line.time, words(line.setting.value(knob))) for line in lines if line.setting is not None]
    values = sorted({value for _, value in known}, key=lambda value: (len(value), value))
    axes.step([_minutes(lines, at) for at, _ in known], [values.index(value) for _, value in known], where="post")
    axes.set_yticks(range(len(values)), values)
    for line in lines:
        if line.reason in _VERDICTS and line.trial is not None and line.trial.knob is knob:
            at = _minutes(lines, line.time)
            axes.axvline(at, color=_VERDICTS[line.reason], linewidth=0.8)
            axes.annotate(
                f"{line.trial.id} {line.reason}",
                (at, 1),
                xycoords=("data", "axes fraction"),
                rotation=90,
                va="top",
                fontsize=7,
                color=_VERDICTS[line.reason],
            )
    axes.set_title(knob.value, fontsize=9)
    axes.margins(y=0.2)
    _clock(axes, lines)


def _moves(lines: Sequence[AuditEntry], knob: Knob) -> bool:
    """Whether a knob was changed, or tried."""
    tried = any(line.trial is not None and line.trial.knob is knob for line in lines)
    return tried or len({line.setting.value(knob) for line in lines if line.setting is not None}) > 1


def _minutes(lines: Sequence[AuditEntry], at: datetime) -> float:
    return (at - lines[0].time).total_seconds() / 60


def _clock(axes: Axes, lines: Sequence[AuditEntry]) -> None:
    axes.set_xlabel(f"minutes since {lines[0].time.astimezone():%Y-%m-%d %H:%M:%S}")
    axes.grid(alpha=0.3)


def _trial(line: AuditEntry) -> Trial:
    assert line.trial is not None
    return line.trial


def _whole(line: AuditEntry) -> Stratum | None:
    """The evidence on all task types together."""
    cells = _trial(line).strata
    return cells[0] if cells else None


def _good(counts: Counts) -> float | None:
    return counts.good / counts.requests if counts.requests else None
