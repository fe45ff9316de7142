"""Reads the tuner's audit log, and plots trials (good ratio of both arms, and their difference) and the knobs."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec import Struct

from syrinx_operator.commands.bench.report import writing
from syrinx_operator.commands.tune.view import TuneError, format_knob
from syrinx_operator.resource.knobs import Knob, Setting, StatusStruct
from syrinx_operator.resource.tuning_status import Timestamp, Trial
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
    tried = {entry.data.trial.knob for entry in entries if entry.data.trial is not None}
    knobs = [] if only else [k for k in Knob if k in tried or len({setting.value(k) for _, setting in known}) > 1]
    rows = len(trials) + len(knobs)
    figure = Figure(figsize=(10, 0.6 + 2.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2, width_ratios=(3, 2))
    for row, knob in enumerate(knobs):
        axes = figure.add_subplot(grid[row, :])
        values = [(_minutes(entries, entry), format_knob(setting.value(knob))) for entry, setting in known]
        _plot_knob(axes, entries, knob, values)
    for row, steps in enumerate(trials, start=len(knobs)):
        _plot_good_ratios(figure.add_subplot(grid[row, 0]), steps)
        plot_difference(figure.add_subplot(grid[row, 1]), [trial for _, trial in steps])
    figure.suptitle(f"tuning of {entries[-1].pipeline}", fontsize=10)
    with writing(file):
        figure.savefig(file, dpi=110, format="png")


def plot_difference(axes: Axes, steps: Sequence[Trial]) -> None:
    """Plots the mean difference of a trial and its 95 % confidence sequence over the pairs, in percent."""
    tests = {trial.overall.test.pairs: trial.overall.test for trial in steps}
    pairs = sorted(count for count in tests if count)
    bounds = [interval(tests[count]) for count in pairs]
    lower, upper = [100 * low for low, _ in bounds], [100 * high for _, high in bounds]
    axes.axhline(0, color="black", linewidth=0.8)
    axes.fill_between(pairs, lower, upper, alpha=0.2, color="tab:orange")
    axes.plot(pairs, [100 * tests[count].mean for count in pairs], marker=".", color="tab:orange")
    axes.set_xlabel("pairs of periods")
    axes.set_ylabel(_DIFFERENCES[steps[-1].goal], fontsize=8)
    axes.grid(alpha=0.3)


def _trials(entries: Sequence[AuditEntry], only: int | None) -> list[list[tuple[AuditEntry, Trial]]]:
    """Returns the entries of each trial. A pipeline whose state was reset numbers its trials from 1 again."""
    found: dict[tuple[int, datetime], list[tuple[AuditEntry, Trial]]] = {}
    for entry in entries:
        if (trial := entry.data.trial) is not None:
            found.setdefault((trial.id, trial.start_time), []).append((entry, trial))
    numbers = sorted({number for number, _ in found})
    selected = [steps for (number, _), steps in found.items() if only in (None, number)]
    if not selected:
        known = f"the log has {numbers[0]} to {numbers[-1]}" if numbers else "the log has no trials yet"
        raise TuneError(f"no trial {only}: {known}" if only else "the log has no trials yet")
    return selected[-MAX_TRIALS:]


def _plot_good_ratios(axes: Axes, steps: Sequence[tuple[AuditEntry, Trial]]) -> None:
    entries = [entry for entry, _ in steps]
    trial = steps[-1][1]
    for arm, color in _ARMS.items():
        counts = [(_minutes(entries, entry), getattr(each.overall, arm)) for entry, each in steps]
        points = [(at, each.good_ratio) for at, each in counts if each.requests]
        label = f"{arm} {format_knob(getattr(trial, arm).value(trial.knob))}"
        axes.plot([at for at, _ in points], [ratio for _, ratio in points], marker=".", color=color, label=label)
    axes.set_title(f"trial {trial.id}: {trial.knob.value}, {entries[-1].reason}", fontsize=9)
    axes.set_ylabel("good requests, cumulative ratio")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(fontsize=8)
    _time_axis(axes, entries)


def _plot_knob(axes: Axes, entries: Sequence[AuditEntry], knob: Knob, known: Sequence[tuple[float, str]]) -> None:
    values = sorted({value for _, value in known}, key=lambda value: (len(value), value))
    axes.step([at for at, _ in known], [values.index(value) for _, value in known], where="post")
    axes.set_yticks(range(len(values)), values)
    for entry in entries:
        trial, color = entry.data.trial, _VERDICTS.get(entry.reason)
        if trial is not None and trial.knob is knob and color is not None:
            at = _minutes(entries, entry)
            axes.axvline(at, color=color, linewidth=0.8)
            text, position = f"{trial.id} {entry.reason}", axes.get_xaxis_transform()
            axes.text(at, 1, text, transform=position, rotation=90, va="top", fontsize=7, color=color)
    axes.set_title(knob.value, fontsize=9)
    axes.margins(y=0.2)
    _time_axis(axes, entries)


def _minutes(entries: Sequence[AuditEntry], entry: AuditEntry) -> float:
    return (entry.time - entries[0].time).total_seconds() / 60


def _time_axis(axes: Axes, entries: Sequence[AuditEntry]) -> None:
    axes.set_xlabel(f"minutes since {entries[0].time.astimezone():%Y-%m-%d %H:%M:%S}")
    axes.grid(alpha=0.3)
