"""Plots of load points: TTFA, throughput and underruns over the load."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from syrinx_operator.commands.bench.overload import Load, OverloadReport
from syrinx_operator.commands.bench.report import Report, writing
from syrinx_operator.commands.bench.stats import Loop, Point

_AXIS: Mapping[Loop, str] = {
    "closed": "concurrent streams (closed loop)",
    "open": "requests per second (open loop, Poisson)",
    "live": "listeners",
    "burst": "requests at once",
}


def plot(report: Report, file: Path) -> None:
    """Writes a PNG with a row for each kind of loop: TTFA and throughput. Raises `ReportError`."""
    loops = [loop for loop in _AXIS if any(point.loop == loop for point in report.points)]
    figure = Figure(figsize=(10, 3.6 * len(loops)), layout="constrained")
    for loop, (left, right) in zip(loops, figure.subplots(len(loops), 2, squeeze=False), strict=True):
        points = {"": [point for point in report.points if point.loop == loop]}
        draw_ttfa(left, loop, points)
        draw_throughput(right, loop, points)
    figure.suptitle(f"{report.machine.cpu}, {report.machine.cores} cores", fontsize=10)
    with writing(file):
        figure.savefig(file, dpi=120, format="png")


def plot_overload(report: OverloadReport, file: Path) -> None:
    """Writes a PNG of an overload report: throughput, TTFA and underruns over the load. Raises `ReportError`."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels: Sequence[tuple[str, Callable[[Load], float | None]]] = (
        ("throughput, % of the peak", lambda load: 100 * load.throughput_share),
        ("time to first audio, p95, ms", lambda load: load.ttfa_p95_ms),
        ("streams with an underrun, %", lambda load: None if load.underruns is None else 100 * load.underruns),
    )
    for axes, (label, value) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for run in report.runs:
            loads = [load for load in report.loads if load.machine == run.machine]
            known = [(load.over_capacity, found) for load in loads if (found := value(load)) is not None]
            axes.plot([over for over, _ in known], [found for _, found in known], "o-", label=run.machine)
        axes.set_ylabel(label)
        _format(axes, "load, multiples of the capacity", {load.over_capacity for load in report.loads})
    figure.axes[0].legend(fontsize=8)
    with writing(file):
        figure.savefig(file, dpi=120, format="png")


Runs = Mapping[str, Sequence[Point]]
"""Load points of one loop by the name of their run."""


def draw_ttfa(axes: Axes, loop: Loop, runs: Runs) -> None:
    """Plots the TTFA over the load."""
    _draw(axes, loop, runs, "-", "p95", lambda point: None if point.ttfa is None else 1000 * point.ttfa.p95)
    _draw(axes, loop, runs, ":", "p50", lambda point: None if point.ttfa is None else 1000 * point.ttfa.p50)
    axes.set_ylabel("time to first audio, ms")


def draw_throughput(axes: Axes, loop: Loop, runs: Runs) -> None:
    """Plots the throughput over the load."""
    _draw(axes, loop, runs, "-", "", lambda point: point.audio_seconds_per_second)
    axes.set_ylabel("audio seconds per second")


def _draw(axes: Axes, loop: Loop, runs: Runs, style: str, label: str, value: Callable[[Point], float | None]) -> None:
    for number, (name, points) in enumerate(runs.items()):
        known = sorted((point.load, found) for point in points if (found := value(point)) is not None)
        axes.plot(
            [load for load, _ in known],
            [found for _, found in known],
            f"C{number}o{style}",
            label=f"{name} {label}".strip(),
        )
    loads = {point.load for points in runs.values() for point in points}
    _format(axes, _AXIS[loop], loads if loop != "live" else ())
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)


def _format(axes: Axes, label: str, loads: Collection[float]) -> None:
    """Sets the load axis: logarithmic with a tick at each of `loads`, or linear without any."""
    if loads:
        axes.set_xscale("log")
        axes.set_xticks(sorted(loads), [f"{load:g}" for load in sorted(loads)])
        axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
