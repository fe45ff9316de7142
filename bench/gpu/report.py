"""Generates the reports of all GPUs with results: `python -m gpu.report` writes `gpu.json`, and `h200.md` for an H200.

The targets are in `targets.csv`; figures published by others, on other machines with other load generators, in
`published.csv`, and they have columns and tables of their own. The analysis is in `h200_notes.md`, which is written by
hand and included in the report.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpu import RESULTS
from gpu.results import (
    COLUMNS,
    PRIMARY,
    TEXTS,
    EngineResult,
    Gathered,
    ServiceRun,
    gather,
    speech_table,
    stages_table,
)
from gpu.summary import TARGETS, figures, read_csv, summarize
from syrinx_operator.commands.bench.report import markdown, points_table
from syrinx_operator.local.files import write_atomically


def report(gathered: Gathered, summary: Mapping[str, Any], notes: str) -> str:
    """Returns the report."""
    parts = [
        f"# Syrinx on one {_device(gathered)}",
        _measured_on(gathered),
        "## Against the targets",
        _targets(summary),
    ]
    if gathered.primary is not None:
        parts.append(f"The service's figures are those of the run {PRIMARY}: {gathered.primary.topology}.")
    for result, name in ((gathered.talker, "Talker"), (gathered.codec, "Codec")):
        if result.measured_ms:
            parts += [f"## {name} engine", _engine(result)]
    if gathered.kills:
        parts += ["## Processes killed in front of listeners", "\n".join(f"- {each}." for each in gathered.kills)]
    if gathered.speech:
        parts += ["## Speech of the bundled voice under load", speech_table(gathered.speech)]
    if gathered.worth:
        parts += [
            "## What each technique is worth",
            TEXTS["worth"].format(gathered.worth.revision),
            gathered.worth.table(),
        ]
    for name, run in sorted(gathered.runs.items(), key=lambda item: item[1] is not gathered.primary):
        parts += [f"## Service: {name}", _service(run)]
    parts += [TEXTS["points"], TEXTS["stages"]] if gathered.runs else []
    parts += [notes.strip()] if notes else []
    quoted = read_csv("published.csv")
    parts += ["## Other services", TEXTS["others"]]
    parts += [markdown(quoted[0], [list(row.values()) for row in quoted])]
    return "\n\n".join(parts) + "\n"


def _device(gathered: Gathered) -> str:
    return gathered.primary.gpu if gathered.primary and gathered.primary.gpu else "GPU"


def _measured_on(gathered: Gathered) -> str:
    run = gathered.primary
    if run is None:
        return "The service was not measured."
    packages = ", ".join(f"{name} {version}" for name, version in run.machine.packages.items())
    lines = [
        f"{run.gpu or 'no GPU'}, driver {run.driver or '-'}; {run.machine.cpu}, {run.machine.cores} cores; "
        f"Python {run.machine.python}; {packages}; revision {run.revision or '-'}."
    ]
    if run.random_weights:
        lines.append(TEXTS["weights"].format(run.utterance_seconds))
    lines.append(TEXTS["ttfa"])
    return " ".join(lines)


def _targets(summary: Mapping[str, Any]) -> str:
    rows = []
    for target, row in zip(TARGETS, summary["targets"], strict=True):
        value = row["measured"]
        formatted = "-" if value is None else target.format(value)
        met = {None: "-", True: "yes", False: "no"}[row["met"]]
        rows.append([target.what, formatted, str(row["target"]), met, target.published])
    return markdown(["what", "measured", "target", "met", "best published elsewhere"], rows)


def _engine(result: EngineResult) -> str:
    values = result.measured_ms
    what = "ms per frame" if result.talker_frame_ms else "ms for 4 frames"
    columns = [(what, values), ("graphs alone ms", result.graphs_alone_ms), ("floor ms", result.floor_ms)]
    columns += [("device idle between frames ms", result.launch_gap_ms), ("p99", result.launch_gap_p99_ms)]
    columns.append(("first frame ms", result.first_frame_ms))
    columns += [(f"{frames} frames ms", timed) for frames, timed in result.codec_ms.items()]
    columns = [column for column in columns if column[1]]
    rows = [[load, *(_cell(column.get(load)) for _, column in columns)] for load in sorted(values, key=float)]
    return markdown(["batch", *(name for name, _ in columns)], rows)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _service(run: ServiceRun) -> str:
    lines = [f"{run.system}, {run.model}; {run.topology}; `{run.command}`."]
    if not run.complete:
        lines.append(f"The run is incomplete: {run.failure or 'it was stopped'}.")
    if run.deaths:
        lines.append(f"Processes that died: {', '.join(run.deaths)}.")
    if live := figures(run)["live_streams_by_search"]:
        every = f", the worst of {len(live)} searches: {', '.join(map(str, live))}" if len(live) > 1 else ""
        lines.append(f"Listeners without a gap: {min(live)}{every}.")
    parts = [" ".join(lines), points_table(run.points, COLUMNS)]
    if any(point.usage.stages for point in run.points):
        parts.append(stages_table(run.points))
    return "\n\n".join(parts)


def main() -> int:
    """Writes the reports; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu.report", description="Generate the reports of GPUs' results.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    summaries: dict[str, Any] = {}
    try:
        for card in sorted({file.name.partition("_")[0] for file in args.results.glob(f"*_{PRIMARY}_service.json")}):
            gathered = gather(args.results, card)
            summaries[card] = summarize(gathered)
            notes = args.results / f"{card}_notes.md"
            text = report(gathered, summaries[card], notes.read_text("utf-8") if notes.exists() else "")
            write_atomically(args.results / f"{card}.md", text.encode())
            print(f"{card}\n\n{_targets(summaries[card])}\n")
        data = msgspec.json.format(msgspec.json.encode(summaries), indent=1) + b"\n"
        write_atomically(args.results / "gpu.json", data)
    except (OSError, msgspec.DecodeError) as error:
        print(f"gpu.report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
