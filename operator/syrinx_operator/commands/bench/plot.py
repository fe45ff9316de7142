"""A bench run as a plot: TTFA and throughput over load."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from syrinx_operator.commands.bench.report import Report, writing
from syrinx_operator.commands.bench.stats import Loop, Point

_AXIS = {Loop.CLOSED: "concurrent streams (closed loop)", Loop.OPEN: "requests per second (open loop, Poisson)"}


def plot(report: Report, file: Path) -> None:
    """Writes a PNG with a row for each kind of loop: TTFA and throughput. Raises `ReportError`."""
    matplotlib.use("Agg")
    rows = [(loop, points) for loop in Loop if (points := _points(report, loop))]
    figure = Figure(figsize=(10, 3.6 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 2, squeeze=False)
    for (loop, points), (left, right) in zip(rows, axes, strict=True):
        _ttfa(left, points)
        _throughput(right, points)
        for each in (left, right):
            each.set_xlabel(_AXIS[loop])
            each.set_xticks([point.load for point in points], [f"{point.load:g}" for point in points])
            each.margins(y=0.1)
            each.set_ylim(bottom=0)
            each.grid(alpha=0.3)
    figure.suptitle(f"{report.machine.cpu}, {report.machine.cores} cores", fontsize=10)
    with writing(file):
        figure.savefig(file, dpi=120, format="png")


def _points(report: Report, loop: Loop) -> list[Point]:
    return sorted((point for point in report.points if point.loop == loop), key=lambda point: point.load)


def _ttfa(axes: Axes, points: list[Point]) -> None:
    measured = [(point.load, point.ttfa) for point in points if point.ttfa is not None]
    loads = [load for load, _ in measured]
    axes.plot(loads, [ttfa.p50 * 1000 for _, ttfa in measured], marker="o", label="p50")
    axes.plot(loads, [ttfa.p95 * 1000 for _, ttfa in measured], marker="s", label="p95")
    axes.set_ylabel("time to first audio, ms")
    axes.legend()


def _throughput(axes: Axes, points: list[Point]) -> None:
    loads = [point.load for point in points]
    axes.plot(loads, [point.audio_seconds_per_second for point in points], marker="o", color="tab:green")
    axes.set_ylabel("audio seconds per second")
