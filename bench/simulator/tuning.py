"""Measures the tuner and writes bench/results/tuning.{json,md,png}: regret and harm over workloads, and A/A tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from simulator import aa_test
from simulator.aa_test import AaResult
from simulator.cases import RESULTS
from simulator.regret import Result, measure_all
from simulator.workloads import workloads
from syrinx_operator.resource.knobs import Setting

COMMAND = "PYTHONPATH=bench python -m simulator tuning"


class Report(Struct, frozen=True, kw_only=True):
    """All measurements."""

    command: str
    workloads: tuple[Result, ...]
    aa: AaResult


def main(runs: int) -> None:
    """Measures and writes the results. Takes about a quarter of an hour on two cores."""
    processes = os.cpu_count() or 1
    results = []
    for result in measure_all(workloads(), processes):
        print(_row(result), flush=True)
        results.append(result)
    report = Report(command=COMMAND, workloads=tuple(results), aa=aa_test.measure(runs, processes))
    (RESULTS / "tuning.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    write_table(RESULTS / "tuning.json", RESULTS / "tuning.md")
    plot(results, RESULTS / "tuning.png")


def write_table(source: Path, target: Path) -> None:
    """Writes the JSON results as a Markdown page."""
    report = msgspec.json.decode(source.read_bytes(), type=Report)
    worst = max(report.workloads, key=lambda result: result.regret)
    aa = report.aa
    target.write_text(
        "\n".join(
            [
                "# What the tuner finds, and what it costs listeners",
                "",
                f"Made by `{report.command}` ({len(report.workloads)} workloads of one simulated day each, "
                f"{aa.runs} A/A runs). A good request meets the TTFA objective and never "
                "underran. Rows are `talker.maxNumSeqs / codec.maxNumSeqs, first chunk's frames`.",
                "",
                "Best is the best setting within the bounds, found by brute force with the same requests. Regret is "
                "the loss of goodput of the final setting against it. Harm is the ratio of the day's requests that "
                "trials made bad, compared with a run of the same requests without the trial.",
                "",
                "| workload | requests/s | start | good | best | good | found | good | regret | "
                "trials to it (all day) | hours | harm |",
                "|---|---|---|---|---|---|---|---|---|---|---|---|",
                *map(_row, report.workloads),
                "",
                f"Largest regret: {worst.regret:.1%} ({worst.name}). "
                f"Largest harm: {max(result.harm for result in report.workloads):.2%}.",
                "",
                f"A/A: {aa.runs} runs of {aa_test.HOURS:g} hours in which no knob has an effect and an objective is "
                f"always missed; {aa.trials} trials; {aa.false_promotions} runs had a false promotion "
                f"({aa.false_promotions / aa.runs:.1%}).",
                "",
                "![Ratio of good requests: start, best, found](tuning.png)",
                "",
            ]
        )
    )


def plot(results: Sequence[Result], target: Path) -> None:
    """Plots start, found and best setting side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    height = 0.27
    for offset, (label, values) in enumerate(
        (
            ("start", [min(1.0, result.goodput_start / result.asked) for result in results]),
            ("found by the tuner", [min(1.0, result.goodput_chosen / result.asked) for result in results]),
            ("best, by brute force", [min(1.0, result.goodput_best / result.asked) for result in results]),
        )
    ):
        axes.barh([row + offset * height for row in range(len(results))], values, height, label=label)
    axes.set_yticks([row + height for row in range(len(results))], [result.name for result in results])
    axes.invert_yaxis()
    axes.set_xlabel("ratio of good requests")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def _row(result: Result) -> str:
    asked = result.asked
    cells = [
        result.name,
        f"{asked:g}",
        _short(result.start),
        f"{min(1.0, result.goodput_start / asked):.1%}",
        _short(result.best),
        f"{min(1.0, result.goodput_best / asked):.1%}",
        _short(result.chosen),
        f"{min(1.0, result.goodput_chosen / asked):.1%}",
        f"{result.regret:.1%}",
        f"{result.trials_to_choice} ({result.trials})",
        f"{result.hours_to_choice:.1f}",
        f"{result.harm:.2%}",
    ]
    return f"| {' | '.join(cells)} |"


def _short(setting: Setting) -> str:
    return f"{setting.talker_max_num_seqs} / {setting.codec_max_num_seqs}, {setting.chunk_ramp[0]}"
