"""Plots of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpu.gathered import EngineResult, Gathered, Kernel
from gpu.results import ServiceRun
from syrinx_operator.commands.bench.stats import Point

MAX_KERNELS = 16
"""Further kernels are combined into one bar."""
MAX_NAME = 48
"""Characters of a kernel's name."""

Value = Callable[[Point], float | None]


def draw(gathered: Gathered, directory: Path, prefix: str) -> list[Path]:
    """Writes the plots of all available results and returns the files. Raises `OSError`."""
    matplotlib.use("Agg")
    engines = {"talker": (gathered.talker, "one frame"), "codec": (gathered.codec, "four frames")}
    figures = {
        name: draw_engine(result, f"{name}: {what} of every row")
        for name, (result, what) in engines.items()
        if result.measured_ms
    }
    for name, (result, _) in engines.items():
        if result.kernels:
            figures[f"{name}_kernels"] = _kernels(result.kernels, f"{name}: time by kernel, batch 32")
    if gathered.runs:
        for name, plotted in SERVICE_PLOTS.items():
            figures[name] = _loads(gathered.runs, *plotted)
    files = []
    for name, figure in figures.items():
        files.append(directory / f"{prefix}_{name}.png")
        figure.savefig(files[-1], dpi=120, format="png")
    return files


def _figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def draw_engine(result: EngineResult, title: str) -> Figure:
    """Returns a plot of measured times, graphs alone and the lower bound over the batch size."""
    figure, axes = _figure(f"{title} ({result.model}, {result.gpu or 'GPU'})", "batch", "ms")
    for values, label, style in (
        (result.measured_ms, "measured", "C0o-"),
        (result.graphs_alone_ms, "graphs alone", "C0:"),
        (result.floor_ms, "floor: memory or arithmetic", "C7--"),
    ):
        if values:
            loads = sorted(values, key=float)
            axes.plot([float(load) for load in loads], [values[load] for load in loads], style, label=label)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _kernels(kernels: Sequence[Kernel], title: str) -> Figure:
    figure, axes = _figure(title, "ms", "")
    shown = [(f"{kernel.name[:MAX_NAME]} x {kernel.count}", kernel.ms) for kernel in kernels[:MAX_KERNELS]]
    if rest := kernels[MAX_KERNELS:]:
        shown.append((f"{len(rest)} others", sum(kernel.ms for kernel in rest)))
    axes.barh([name for name, _ in reversed(shown)], [ms for _, ms in reversed(shown)])
    axes.tick_params(axis="y", labelsize=7)
    return figure


def _loads(
    runs: Mapping[str, ServiceRun], loop: str, title: str, x: str, y: str, curves: Mapping[str, Value]
) -> Figure:
    """Returns a plot of values over the load, with curves of all runs."""
    figure, axes = _figure(title, x, y)
    for number, (name, run) in enumerate(runs.items()):
        points = sorted((point for point in run.points if point.load == loop), key=lambda point: point.amount)
        for (label, value), style in zip(curves.items(), ("-", ":"), strict=False):
            known = [(point.amount, found) for point in points if (found := value(point.stats)) is not None]
            loads, values = [load for load, _ in known], [found for _, found in known]
            axes.plot(loads, values, f"C{number}o{style}", label=f"{name} {label}")
    if loop != "live":
        loads = sorted({point.amount for run in runs.values() for point in run.points if point.load == loop})
        axes.set_xscale("log")
        axes.set_xticks(loads, [f"{load:g}" for load in loads])
        axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return figure


def _ttfa(quantile: str) -> Value:
    return lambda point: None if point.ttfa is None else 1000 * getattr(point.ttfa, quantile)


def _throughput(point: Point) -> float:
    return point.audio_seconds_per_second


def _underruns(point: Point) -> float | None:
    return None if point.underrun_share is None else 100 * point.underrun_share


SERVICE_PLOTS: Mapping[str, tuple[str, str, str, str, Mapping[str, Value]]] = {
    "ttfa": (
        *("open", "time to first audio, open loop", "requests per second", "ms"),
        {"p95": _ttfa("p95"), "p50": _ttfa("p50")},
    ),
    "throughput": (
        *("closed", "throughput, closed loop", "concurrent clients", "audio seconds per second"),
        {"": _throughput},
    ),
    "live": ("live", "live listeners: utterances with a gap", "listeners", "%", {"": _underruns}),
}
"""Loop, title, labels of the axes, and curves of each plot of the service runs."""
