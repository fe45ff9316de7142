"""Plots of the results."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpu.gathered import EngineResult, Gathered, Kernel
from syrinx_operator.commands.bench.plot import draw_throughput, draw_ttfa, draw_underruns
from syrinx_operator.commands.bench.stats import Loop

MAX_KERNELS = 16
"""Further kernels are combined into one bar."""
MAX_NAME = 48
"""Characters of a kernel's name."""


def draw(gathered: Gathered, directory: Path, prefix: str) -> list[Path]:
    """Writes the plots of all available results and returns the files. Raises `OSError`."""
    engines = {"talker": (gathered.talker, "one frame"), "codec": (gathered.codec, "four frames")}
    figures = {
        name: draw_engine(result, f"{name}: {what} of every row")
        for name, (result, what) in engines.items()
        if result.measured_ms
    }
    for name, (result, _) in engines.items():
        if result.kernels:
            figures[f"{name}_kernels"] = _kernels(result.kernels, f"{name}: time by kernel, batch 32")
    services: dict[str, tuple[Loop, Callable[..., None]]] = {
        "ttfa": ("open", draw_ttfa),
        "throughput": ("closed", draw_throughput),
        "live": ("live", draw_underruns),
    }
    for name, (loop, draw_runs) in services.items() if gathered.runs else ():
        figures[name], axes = _figure(f"service, {loop}")
        runs = {
            run: [point.stats for point in measured.points if point.load == loop]
            for run, measured in gathered.runs.items()
        }
        draw_runs(axes, loop, runs)
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


def draw_engine(result: EngineResult, title: str) -> Figure:
    """Returns a plot of measured times, graphs alone and the lower bound over the batch size."""
    figure, axes = _figure(f"{title} ({result.model}, {result.gpu or 'GPU'})")
    for values, label, style in (
        (result.measured_ms, "measured", "C0o-"),
        (result.graphs_alone_ms, "graphs alone", "C0:"),
        (result.floor_ms, "floor: memory or arithmetic", "C7--"),
    ):
        if values:
            loads = sorted(values, key=float)
            axes.plot([float(load) for load in loads], [values[load] for load in loads], style, label=label)
    axes.set_xlabel("batch")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _kernels(kernels: Sequence[Kernel], title: str) -> Figure:
    figure, axes = _figure(title)
    shown = [(f"{kernel.name[:MAX_NAME]} x {kernel.count}", kernel.ms) for kernel in reversed(kernels[:MAX_KERNELS])]
    if rest := kernels[MAX_KERNELS:]:
        shown.insert(0, (f"{len(rest)} others", sum(kernel.ms for kernel in rest)))
    axes.barh([name for name, _ in shown], [ms for _, ms in shown])
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("ms")
    return figure
