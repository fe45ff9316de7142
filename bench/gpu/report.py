"""Gathers what was measured on a GPU: `python -m gpu.report` writes `h200.json`, `h200.md` and the plots.

What others have published stands beside it with its source, in columns and tables of its own. What nobody could measure
by a program, why the remaining distance is there and what to try next, is in `h200_notes.md`, which people write.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpu import plots, table
from gpu.gathered import PRIMARY, EngineResult, Gathered, figures, gather
from gpu.options import RESULTS
from gpu.results import ServiceRun
from gpu.targets import QUOTED, TARGETS, Target
from syrinx_operator.local.files import write_atomically

PRECISION = (
    "Against the modules in float32, all fed the same codes (code 0 / codes 1 to 15): the error of the scores, the "
    "codes that are equal when drawn with the same random numbers, and the likeliest codes that are. PyTorch in "
    "bfloat16 shows what the number format alone does."
)


def summary(gathered: Gathered) -> dict[str, Any]:
    """What the JSON file holds: measured figures, and apart from them what is wanted and what is published."""
    talker, codec, run = gathered.talker, gathered.codec, gathered.primary
    told: dict[str, Any] = {
        "gpu": next((item.gpu for item in (run, talker, codec) if item is not None and item.gpu), None),
        "talker_frame_ms": talker.talker_frame_ms if talker else {},
        "talker_floor_ms": talker.floor_ms if talker else {},
        "talker_first_frame_ms": talker.first_frame_ms if talker else {},
        "talker_launch_gap_ms": talker.launch_gap_ms if talker else {},
        "talker_precision": talker.precision if talker else {},
        "codec_4frames_ms": codec.codec_4frames_ms if codec else {},
        "codec_floor_ms": codec.floor_ms if codec else {},
    }
    if run is not None:
        told |= msgspec.to_builtins(figures(run))
        told |= {"revision": run.revision, "driver": run.driver, "created": run.created}
    told["variants"] = {
        name: msgspec.to_builtins(figures(other)) for name, other in gathered.runs.items() if other is not run
    }
    told["targets"] = [_target(target, told) for target in TARGETS]
    return {key: _rounded(value) for key, value in told.items()}


def _rounded(value: Any) -> Any:
    """Four digits tell all that a second run would tell again."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list():
            return [_rounded(item) for item in value]
    return value


def measured(target: Target, told: Mapping[str, Any]) -> float | None:
    """The figure that a target is about; None if it was not measured."""
    value = told.get(target.key)
    if target.entry is not None:
        value = (value or {}).get(target.entry)
    return None if value is None else float(value)


def _target(target: Target, told: Mapping[str, Any]) -> dict[str, Any]:
    value = measured(target, told)
    return {
        "what": target.what,
        "target": f"{target.wanted} {target.shown(target.value)}",
        "measured": value,
        "met": None if value is None else target.met(value),
        "published": target.published,
    }


def markdown(gathered: Gathered, told: Mapping[str, Any], plotted: Sequence[str], notes: str) -> str:
    """The report."""
    parts = ["# Syrinx on one H200", _measured_on(gathered), "## Against the targets", _targets(told)]
    if gathered.primary is not None:
        parts.append(f"The service's figures are those of the run {gathered.named}: {gathered.primary.topology}.")
    for result, name in ((gathered.talker, "Talker"), (gathered.codec, "Codec")):
        if result is not None:
            parts += [f"## {name} engine", _engine(result)]
    for name, run in sorted(gathered.runs.items(), key=lambda item: item[1] is not gathered.primary):
        parts += [f"## Service: {name}", _service(run)]
    parts += [table.CAPTION, table.STAGES_CAPTION] if gathered.runs else []
    parts += [notes.strip()] if notes else []
    parts += ["## Published by others", _quoted()]
    parts += ["## Pictures", "\n".join(f"![{file}]({file})" for file in plotted)] if plotted else []
    return "\n\n".join(parts) + "\n"


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
        lines.append(
            f"The weights are random: the shapes, and so the work, are those of the published checkpoint. "
            f"EOS is never drawn; utterances are as long as the requests say: log-normal, {run.utterance_seconds:g} s "
            "on average, the mean length of Seed-TTS EN (sglang-omni #1635: 38.0 audio s/s at 9.1 requests/s). What is "
            "heard is noise, loud from the first sample on; a real voice begins with about a frame (80 ms) of "
            "near-silence, which the gateway leaves out, as Nari's server does: its first audible sample is in the "
            "frame after that, which has to be made first. The published figures compare with first playable audio "
            "here."
        )
    lines.append(
        "A TTFA begins when a request was due, connecting included, and ends when the first audible sample is heard by "
        "a player that starts with 100 ms of audio. The text is streamed one token a frame (non_streaming_mode false), "
        "as in the published measurements."
    )
    return " ".join(lines)


def _targets(told: Mapping[str, Any]) -> str:
    rows = []
    for target, row in zip(TARGETS, told["targets"], strict=True):
        value = row["measured"]
        shown = "-" if value is None else target.shown(value)
        met = {None: "-", True: "yes", False: "no"}[row["met"]]
        rows.append([target.what, shown, str(row["target"]), met, target.published])
    return table.markdown(["what", "measured", "target", "met", "best published elsewhere"], rows)


def _engine(result: EngineResult) -> str:
    values = result.talker_frame_ms or result.codec_4frames_ms
    what = "ms a frame" if result.talker_frame_ms else "ms for 4 frames"
    columns = [(what, values), ("graphs alone ms", result.graphs_alone_ms), ("floor ms", result.floor_ms)]
    columns += [("device idle between frames ms", result.launch_gap_ms), ("p99", result.launch_gap_p99_ms)]
    columns.append(("first frame ms", result.first_frame_ms))
    columns += [(f"{frames} frames ms", timed) for frames, timed in result.codec_ms.items()]
    columns = [column for column in columns if column[1]]
    rows = [[load, *(_cell(column.get(load)) for _, column in columns)] for load in sorted(values, key=float)]
    parts = [table.markdown(["batch", *(name for name, _ in columns)], rows)]
    for batch, kernels in (("1", result.kernels_batch_1), ("32", result.kernels)):
        if kernels:
            rows = [[kernel.name, str(kernel.count), f"{kernel.ms:.3f}"] for kernel in kernels[: plots.KERNELS]]
            parts.append(table.markdown([f"kernel, batch {batch}", "times", "ms in all"], rows))
    if result.precision:
        parts += [PRECISION, _precision(result.precision)]
    return "\n\n".join(parts)


def _precision(compared: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    rows = []
    for model, variants in compared.items():
        for variant, told in variants.items():
            errors = [f"{told[name]:.1e}" for name in ("code0_error", "residual_error")]
            shares = [f"{100 * told[f'{name}_equal']:.1f}" for name in ("code0", "residual")]
            shares += [f"{100 * told[f'{name}_best_equal']:.1f}" for name in ("code0", "residual")]
            rows.append([model, variant, " / ".join(errors), " / ".join(shares[:2]), " / ".join(shares[2:])])
    return table.markdown(["model", "variant", "error of scores", "equal codes, %", "equal best codes, %"], rows)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _service(run: ServiceRun) -> str:
    setup = run.setup
    lines = [f"{run.system}, {run.model}; {run.topology}; `{run.command}`."]
    if setup is not None:
        lines.append(
            f"Settings: talker rows {setup.talker_rows}, codec rows {setup.codec_rows}, {setup.gateways} gateways, "
            f"captured calls {list(setup.capture_rows)} rows x {list(setup.capture_frames)} frames; the chunk ramp is "
            "in the table."
        )
    if not run.complete:
        lines.append(f"The run did not end: {run.failure or 'it was stopped'}.")
    if run.deaths:
        lines.append(f"Processes that died: {', '.join(run.deaths)}.")
    live = figures(run).live_streams
    if live is not None:
        lines.append(f"Listeners without a gap: {live}.")
    parts = [" ".join(lines), table.of_points(run.points)]
    if any(point.watched.stages for point in run.points):
        parts.append(table.of_stages(run.points))
    return "\n\n".join(parts)


def _quoted() -> str:
    rows = [list(row) for row in QUOTED]
    return "Quoted, not measured here.\n\n" + table.markdown(["who", "figures", "what on what", "source"], rows)


def main() -> int:
    """Writes the report. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu.report", description="Gather the results of a GPU.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--prefix", default="h200", help="of the files' names")
    parser.add_argument("--primary", default=PRIMARY, help="service run that is held against the targets (1b7)")
    given = parser.parse_args()
    try:
        gathered = gather(given.results, given.prefix, given.primary)
        told = summary(gathered)
        notes = given.results / f"{given.prefix}_notes.md"
        plotted = [file.name for file in plots.draw(gathered, given.results, given.prefix)]
        text = markdown(gathered, told, plotted, notes.read_text("utf-8") if notes.exists() else "")
        data = msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n"
        write_atomically(given.results / f"{given.prefix}.json", data)
        write_atomically(given.results / f"{given.prefix}.md", text.encode())
    except (OSError, msgspec.DecodeError) as error:
        print(f"gpu.report: {error}", file=sys.stderr)
        return 1
    print(_targets(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
