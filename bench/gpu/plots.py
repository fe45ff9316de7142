"""Plots of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpu.gathered import EngineResult, Gathered, Kernel
from gpu.results import ServicePoint, ServiceRun

MAX_KERNELS = 16
"""Further kernels are combined into one bar."""
MAX_NAME = 48
"""Characters of a kernel's name."""


def draw(gathered: Gathered, directory: Path, prefix: str) -> list[Path]:
    """Writes the plots of all available results and returns the files. Raises `OSError`."""
    matplotlib.use("Agg")
    figures: dict[str, Figure] = {}
    if gathered.talker is not None:
        figures["talker"] = _engine(gathered.talker, gathered.talker.talker_frame_ms, "talker: one frame of every row")
    if gathered.codec is not None:
        figures["codec"] = _engine(gathered.codec, gathered.codec.codec_4frames_ms, "codec: four frames of every row")
    for name, result in (("talker_kernels", gathered.talker), ("codec_kernels", gathered.codec)):
        if result is not None and result.kernels:
            figures[name] = _kernels(result.kernels, f"{result.benchmark}: time by kernel, batch 32")
    if gathered.runs:
        figures["ttfa"] = _ttfa(gathered.runs)
        figures["throughput"] = _throughput(gathered.runs)
        figures["live"] = _live(gathered.runs)
    files = []
    for name, figure in figures.items():
        files.append(directory / f"{prefix}_{name}.png")
        figure.savefig(files[-1], dpi=120, format="png")
    return files


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    return figure, axes


def _engine(result: EngineResult, measured: Mapping[str, float], title: str) -> Figure:
    figure, axes = _figure(f"{title} ({result.model}, {result.gpu or 'GPU'})")
    _line(axes, measured, "measured", marker="o")
    _line(axes, result.graphs_alone_ms, "graphs alone", linestyle=":", color="C0")
    _line(axes, result.floor_ms, "floor: memory or arithmetic", linestyle="--", color="tab:gray")
    axes.set_xlabel("batch")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _line(axes: Axes, values: Mapping[str, float], label: str, **style: str) -> None:
    if values:
        loads = sorted(values, key=float)
        axes.plot([float(load) for load in loads], [values[load] for load in loads], label=label, **style)  # type: ignore[arg-type]


def _kernels(kernels: Sequence[Kernel], title: str) -> Figure:
    figure, axes = _figure(title)
    shown = [(f"{kernel.name[:MAX_NAME]} x {kernel.count}", kernel.ms) for kernel in kernels[:MAX_KERNELS]]
    if rest := kernels[MAX_KERNELS:]:
        shown.append((f"{len(rest)} others", sum(kernel.ms for kernel in rest)))
    axes.barh([name for name, _ in reversed(shown)], [ms for _, ms in reversed(shown)])
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("ms")
    return figure


def _points(run: ServiceRun, load: str) -> list[ServicePoint]:
    return sorted((point for point in run.points if point.load == load), key=lambda point: point.amount)


def _ttfa(runs: Mapping[str, ServiceRun]) -> Figure:
    figure, axes = _figure("time to first audio, open loop")
    for number, (name, run) in enumerate(runs.items()):
        measured = [(point.amount, point.stats.ttfa) for point in _points(run, "open") if point.stats.ttfa]
        for quantile, style in (("p95", "-"), ("p50", ":")):
            values = [1000 * getattr(ttfa, quantile) for _, ttfa in measured]
            axes.plot(
                [load for load, _ in measured],
                values,
                style,
                color=f"C{number}",
                marker="o",
                label=f"{name} {quantile}",
            )
    axes.set_xscale("log")
    axes.set_xlabel("requests per second")
    _ticks(axes, [point for run in runs.values() for point in _points(run, "open")])
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return figure


def _throughput(runs: Mapping[str, ServiceRun]) -> Figure:
    figure, axes = _figure("throughput, closed loop")
    for name, run in runs.items():
        points = _points(run, "closed")
        values = [point.stats.audio_seconds_per_second for point in points]
        axes.plot([point.amount for point in points], values, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("concurrent clients")
    _ticks(axes, [point for run in runs.values() for point in _points(run, "closed")])
    axes.set_ylabel("audio seconds per second")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return figure


def _live(runs: Mapping[str, ServiceRun]) -> Figure:
    figure, axes = _figure("live listeners: utterances with a gap")
    for name, run in runs.items():
        measured = [(point.amount, point.stats.underrun_share) for point in _points(run, "live")]
        known = [(amount, share) for amount, share in measured if share is not None]
        axes.plot([amount for amount, _ in known], [100 * share for _, share in known], marker="o", label=name)
    axes.set_xlabel("listeners")
    axes.set_ylabel("%")
    axes.set_ylim(bottom=-1)
    axes.legend(fontsize=8)
    return figure


def _ticks(axes: Axes, points: Sequence[ServicePoint]) -> None:
    loads = sorted({point.amount for point in points})
    axes.set_xticks(loads, [f"{load:g}" for load in loads])
    axes.minorticks_off()
