"""Reads the tuner's audit log, and plots trials (both arms and the evidence) and the settings over time."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec import Struct

from syrinx_operator.commands.bench.report import writing
from syrinx_operator.commands.tune.view import TuneError
from syrinx_operator.resource.knobs import Knob, Setting, StatusStruct, format_change, format_value
from syrinx_operator.resource.state.tuning_status import Served, Timestamp, Trial
from syrinx_operator.tuner.betting import CERTAIN

MAX_TRIALS = 12
"""Number of plotted trials, the newest."""
_CHANGES = {
    "Promoted": "tab:green",
    "PutInForce": "tab:green",
    "RolledBack": "tab:red",
    "Regressed": "tab:red",
    "Inconclusive": "tab:gray",
    "Superseded": "tab:gray",
}
_ARMS = {"candidate": "tab:orange", "baseline": "tab:blue"}
_BETS = {"better": "tab:green", "worse": "tab:red", "harm": "tab:purple"}


class _Data(StatusStruct, frozen=True, kw_only=True):
    trial: Trial | None = None


class _After(StatusStruct, frozen=True, kw_only=True):
    base: Setting | None = None


class AuditEntry(StatusStruct, frozen=True, kw_only=True):
    """One decision, or one completed pair of periods."""

    time: Timestamp
    pipeline: str
    """NAME, or NAMESPACE/NAME."""
    reason: str
    message: str = ""
    after: _After = _After()
    """`base` is the setting in force afterwards, outside of trials."""
    data: _Data = _Data()
    """`trial` is the trial as it was at that time."""


class _Wrapped(Struct):
    message: str


class Pair(NamedTuple):
    """Requests of one pair of periods."""

    time: datetime
    candidate: Served
    baseline: Served


def read_audit(files: Iterable[Path | None], pipeline: str | None) -> list[AuditEntry]:
    """Returns a pipeline's entries in order. None as a file is standard input. Raises TuneError without entries."""
    entries = [entry for file in files for text in _lines(file) if (entry := _parse(text)) is not None]
    found = [entry for entry in entries if pipeline in (None, entry.pipeline)]
    if not found and entries:
        others = ", ".join(sorted({entry.pipeline for entry in entries}))
        raise TuneError(f"the log has no decisions about {pipeline}, only about {others}")
    if not found:
        raise TuneError("the log has no decisions yet")
    return found


def _lines(file: Path | None) -> Iterator[str]:
    if file is None:
        yield from sys.stdin
        return
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            yield from stream
    except OSError as error:
        raise TuneError(f"{file}: {error.strerror}") from None


def _parse(text: str) -> AuditEntry | None:
    """Parses a log line. The entry may follow a prefix, or be the `message` of a JSON log record."""
    line = text[text.find("{") :]
    for unwrap in (False, True):
        try:
            entry = msgspec.json.decode(line, type=_Wrapped).message if unwrap else line
            return msgspec.json.decode(entry, type=AuditEntry)
        except msgspec.MsgspecError:
            pass
    return None


def plot(entries: Sequence[AuditEntry], file: Path, only: int | None = None) -> None:
    """Writes a PNG. Raises TuneError if there is no (such) trial, ReportError if the file cannot be written."""
    trials = _trials(entries, only)
    known = [(entry, entry.after.base) for entry in entries if entry.after.base is not None]
    knobs = [] if only else [knob for knob in Knob if len({setting.value(knob) for _, setting in known}) > 1]
    rows = len(trials) + len(knobs)
    figure = Figure(figsize=(10, 0.6 + 2.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    for row, knob in enumerate(knobs):
        values = [(_minutes(entries, entry), format_value(setting, knob)) for entry, setting in known]
        _plot_knob(figure.add_subplot(grid[row, :]), entries, knob, values)
    for row, steps in enumerate(trials, start=len(knobs)):
        plot_arms(figure.add_subplot(grid[row, 0]), steps)
        plot_evidence(figure.add_subplot(grid[row, 1]), steps)
    figure.suptitle(f"tuning of {entries[-1].pipeline}", fontsize=10)
    with writing(file):
        figure.savefig(file, dpi=110, format="png")


def _trials(entries: Sequence[AuditEntry], only: int | None) -> list[list[AuditEntry]]:
    """Returns the entries of each trial. A pipeline whose state was reset numbers its trials from 1 again."""
    found: dict[tuple[int, datetime], list[AuditEntry]] = {}
    for entry in entries:
        if (trial := entry.data.trial) is not None:
            found.setdefault((trial.id, trial.start_time), []).append(entry)
    numbers = sorted({number for number, _ in found})
    selected = [steps for (number, _), steps in found.items() if only in (None, number)]
    if not selected:
        known = f"the log has {numbers[0]} to {numbers[-1]}" if numbers else "the log has no trials yet"
        raise TuneError(f"no trial {only}: {known}" if only else "the log has no trials yet")
    return selected[-MAX_TRIALS:]


def pairs(steps: Sequence[AuditEntry]) -> list[Pair]:
    """Returns the pairs of a trial, from the requests that its entries count in total."""
    found = []
    for before, after in pairwise(steps):
        old, new = before.data.trial, after.data.trial
        assert old is not None and new is not None
        candidate, baseline = (
            Served(requests=now.requests - then.requests, bad=now.bad - then.bad)
            for now, then in (
                (new.candidate_served, old.candidate_served),
                (new.baseline_served, old.baseline_served),
            )
        )
        if candidate.requests and baseline.requests:
            found.append(Pair(after.time, candidate, baseline))
    return found


def plot_arms(axes: Axes, steps: Sequence[AuditEntry]) -> None:
    """Plots the ratio of requests served well in both arms of each pair."""
    trial, start = steps[-1].data.trial, steps[0].time
    assert trial is not None
    compared = pairs(steps)
    times = [(pair.time - start).total_seconds() / 60 for pair in compared]
    for arm, color in _ARMS.items():
        ratios = [1 - getattr(pair, arm).bad_ratio for pair in compared]
        axes.plot(times, ratios, marker=".", color=color, label=arm)
    change = format_change(trial.baseline, trial.candidate)
    axes.set_title(f"trial {trial.id}: {change}: {steps[-1].reason}", fontsize=8, wrap=True)
    axes.set_ylabel("served well, by pair")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(fontsize=8)
    _time_axis(axes, steps)


def plot_evidence(axes: Axes, steps: Sequence[AuditEntry]) -> None:
    """Plots the log wealth of a trial's bets. The line is where one decides."""
    times = [_minutes(steps, entry) for entry in steps]
    trials = [entry.data.trial for entry in steps if entry.data.trial is not None]
    bets = {
        "better": [trial.better for trial in trials],
        "worse": [trial.worse for trial in trials],
        "harm": [trial.guard.bet for trial in trials],
    }
    for name, color in _BETS.items():
        axes.plot(times, [bet.log_wealth for bet in bets[name]], marker=".", color=color, label=name)
    axes.axhline(CERTAIN, color="black", linewidth=0.8, linestyle="--")
    axes.set_ylabel("log wealth of the bets")
    axes.legend(fontsize=8)
    _time_axis(axes, steps)


def _plot_knob(axes: Axes, entries: Sequence[AuditEntry], knob: Knob, known: Sequence[tuple[float, str]]) -> None:
    values = sorted({value for _, value in known}, key=lambda value: (len(value), value))
    axes.step([at for at, _ in known], [values.index(value) for _, value in known], where="post")
    axes.set_yticks(range(len(values)), values)
    for entry in entries:
        if color := _CHANGES.get(entry.reason):
            at = _minutes(entries, entry)
            axes.axvline(at, color=color, linewidth=0.8)
            position = axes.get_xaxis_transform()
            axes.text(at, 1, entry.reason, transform=position, rotation=90, va="top", fontsize=7, color=color)
    axes.set_title(knob.value, fontsize=9)
    axes.margins(y=0.2)
    _time_axis(axes, entries)


def _minutes(entries: Sequence[AuditEntry], entry: AuditEntry) -> float:
    return (entry.time - entries[0].time).total_seconds() / 60


def _time_axis(axes: Axes, entries: Sequence[AuditEntry]) -> None:
    axes.set_xlabel(f"minutes since {entries[0].time.astimezone():%Y-%m-%d %H:%M:%S}")
    axes.grid(alpha=0.3)
