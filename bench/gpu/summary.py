"""What `gpu.json` has of one GPU: its measured figures, beside targets and published figures."""

import csv
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from gpu.plan import LOOPS, is_gap_free
from gpu.results import PRIMARY, Gathered, ServiceRun
from syrinx_operator.commands.bench.stats import Point

OVER_ONE = {"two_over_one": "2_gpus", "four_over_one": "4_gpus_4_cells"}
"""Ratios to one GPU of the same machine, with the end of the run's name."""
WORST: Mapping[str, Callable[..., float]] = {
    "open_loop_ttfa_p50_ms": max,
    "open_loop_ttfa_p95_ms": max,
    "open_loop_first_playable_p95_ms": max,
    "open_loop_underrun_share": max,
    "closed_loop_audio_s_per_s": min,
    "closed_loop_ttfa_p95_ms": max,
    "live_streams": min,
    "burst128_p99_ms": max,
}
"""Which value of several runs is the worst."""
CLIENTS_A_GPU = 64
"""Fewer concurrent clients do not load several GPUs."""


class Target(Struct, frozen=True):
    """The target of one figure: `key` of the summary, with `entry` if that is a mapping."""

    what: str
    key: str
    entry: str
    comparison: Literal["at most", "at least", "less than"]
    value: float
    unit: str
    """`%` for shares, which are stored as fractions."""
    published: str
    """Value, hardware and source."""

    def format(self, value: float) -> str:
        """Returns a value with its unit."""
        return f"{100 * value:.3g} %" if self.unit == "%" else f"{value:.4g} {self.unit}".strip()

    def is_met(self, measured: float) -> bool:
        """Returns whether a measured value meets the target."""
        if self.comparison == "at least":
            return measured >= self.value
        return measured < self.value if self.comparison == "less than" else measured <= self.value


def read_csv(name: str) -> list[dict[str, str]]:
    """Returns the rows of a file beside this module."""
    with Path(__file__).with_name(name).open(newline="") as file:
        return list(csv.DictReader(file))


TARGETS = msgspec.convert(read_csv("targets.csv"), list[Target], strict=False)


def figures(run: ServiceRun) -> dict[str, Any]:
    """Returns the figures of a service run."""
    opened, closed, _, burst = (
        {f"{point.amount:g}": point.stats for point in run.points if point.load == loop and point.voice != "new"}
        for loop in LOOPS
    )
    gap_free = listeners(run)
    one, four = (closed[clients].ttfa if clients in closed else None for clients in ("1", "4"))
    shares = {rate: point.underrun_share for rate, point in opened.items() if point.underrun_share is not None}
    return {
        "system": run.system,
        "model": run.model,
        "topology": run.topology,
        "complete": run.complete,
        "open_loop_ttfa_p50_ms": _milliseconds(opened, "ttfa", "p50"),
        "open_loop_ttfa_p95_ms": _milliseconds(opened, "ttfa", "p95"),
        "open_loop_first_playable_p95_ms": _milliseconds(opened, "first_playable", "p95"),
        "open_loop_underrun_share": shares,
        "closed_loop_audio_s_per_s": {clients: point.audio_seconds_per_second for clients, point in closed.items()},
        "closed_loop_ttfa_p95_ms": _milliseconds(closed, "ttfa", "p95"),
        "live_streams": min(gap_free, default=None),
        "live_streams_by_search": gap_free,
        "burst128_p99_ms": _milliseconds(burst, "first_byte", "p99").get("128"),
        "ttfa_c4_over_c1": four.p50 / one.p50 if one and four else None,
    }


def worst(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the worst figures of several runs and, as `ranges`, the least and the largest by figure and load."""
    found: dict[str, Any] = {"ranges": {}}
    for key, choose in WORST.items():
        by_load = [each[key] if isinstance(each[key], Mapping) else {"": each[key]} for each in runs]
        values = {
            load: [each[load] for each in by_load if each.get(load) is not None] for load in dict(ChainMap(*by_load))
        }
        known = {load: choose(each) for load, each in values.items() if each}
        found[key] = known.get("") if "" in values else known
        found["ranges"] |= {f"{key} {load}".strip(): [min(each), max(each)] for load, each in values.items() if each}
    return found


def step_over_alone(run: ServiceRun, frame_ms: Mapping[str, float]) -> float | None:
    """Returns the ratio of a talker step in service, at the most concurrent clients, to one of as many rows alone."""
    closed = [point for point in run.points if point.load == "closed"]
    work = closed[-1].usage.stages.get("talker-0") if closed else None
    step_ms, step_rows = (work["step_ms"], work["frames_per_step"]) if work else (None, None)
    if not frame_ms or step_ms is None or step_rows is None:
        return None
    rows, times = zip(*sorted((float(rows), ms) for rows, ms in frame_ms.items()), strict=True)
    return step_ms / float(np.interp(step_rows, rows, times))


def listeners(run: ServiceRun) -> list[int]:
    """Returns the largest number of listeners without a gap in each search that came to its end; 0 without any."""
    found: dict[int, int] = {}
    for point in run.points:
        if point.load == "live":
            level = int(point.amount) if is_gap_free(point.stats) else 0
            found[point.search] = max(found.get(point.search, 0), level)
    return list(found.values())[: None if run.complete else -1]


def _ttfa_of_voice(run: ServiceRun, voice: str) -> dict[str, float]:
    """Returns the TTFA p95 in milliseconds of a Base checkpoint's open loops, by requests per second."""
    points = {f"{point.amount:g}": point.stats for point in run.points if point.voice == voice and point.load == "open"}
    return _milliseconds(points, "ttfa", "p95")


def gpus_over_one(runs: Mapping[str, ServiceRun], named: str, gpus: str) -> dict[str, float]:
    """Returns by load what a run on several GPUs reaches of the same one on one GPU of the machine; empty without both.

    The runs are `gpu.service --gpus 1` and the one whose name ends with `gpus`. Closed loops: audio seconds per second.
    """
    one, several = (runs.get(f"{named}_{suffix}") for suffix in ("1_gpu", gpus))
    if one is None or several is None or _place(one) != _place(several):
        return {}
    before, after = figures(one), figures(several)
    audio = "closed_loop_audio_s_per_s"
    least = CLIENTS_A_GPU * int(gpus.partition("_")[0])
    loads = [n for n in before[audio] if n in after[audio] and int(n) >= least]
    found = {f"{n} at once": after[audio][n] / before[audio][n] for n in loads}
    if before["live_streams"] and after["live_streams"]:
        found["listeners"] = after["live_streams"] / before["live_streams"]
    return found


def _place(run: ServiceRun) -> object:
    """Returns what runs on several GPUs of a machine have in common."""
    return run.revision, run.machine, set((run.gpu or "").split(", "))


def _milliseconds(points: Mapping[str, Point], times: str, quantile: str) -> dict[str, float]:
    spreads = {load: getattr(point, times) for load, point in points.items()}
    return {load: 1000 * getattr(spread, quantile) for load, spread in spreads.items() if spread is not None}


def summarize(gathered: Gathered) -> dict[str, Any]:
    """Returns the contents of the JSON file: measured figures, and separately the targets with published figures."""
    talker, codec, run = gathered.talker, gathered.codec, gathered.primary
    result: dict[str, Any] = {
        "gpu": next((item.gpu for item in (run, talker, codec) if item is not None and item.gpu), None),
        "talker_frame_ms": talker.talker_frame_ms,
        "talker_floor_ms": talker.floor_ms,
        "talker_first_frame_ms": talker.first_frame_ms,
        "talker_launch_gap_ms": talker.launch_gap_ms,
        "codec_4frames_ms": codec.codec_4frames_ms,
        "codec_floor_ms": codec.floor_ms,
        "padding": codec.padding,
    }
    if run is not None:
        result |= figures(run) | {"revision": run.revision, "driver": run.driver, "created": run.created}
        runs = [run, *(each for name, each in gathered.runs.items() if name.startswith(f"{PRIMARY}_again"))]
        result |= {"runs": len(runs)} | (worst([figures(each) for each in runs]) if len(runs) > 1 else {})
        result["step_in_service_over_alone"] = step_over_alone(run, talker.talker_frame_ms)
    if gathered.speech:
        result["asr_under_load"] = {each.name: each.identified for each in gathered.speech}
    if gathered.worth:
        result["worth"] = gathered.worth.ratios()
    if gathered.kills:
        result["crash_stall_s"] = max(each.longest_stall for each in gathered.kills)
        result["crash_refused"] = sum(each.refused for each in gathered.kills)
    if quiet := gathered.runs.get(f"{PRIMARY}_quiet"):
        result["quiet_ttfa_p95_ms"] = figures(quiet)["open_loop_ttfa_p95_ms"]
    if base := gathered.runs.get(f"{PRIMARY}_base"):
        result |= {f"base_{voice}_ttfa_p95_ms": _ttfa_of_voice(base, voice) for voice in ("kept", "new")}
    for key, gpus in OVER_ONE.items():
        if ratios := gpus_over_one(gathered.runs, PRIMARY, gpus):
            result |= {key: min(ratios.values()), f"{key}_by_load": ratios}
    result["variants"] = {name: figures(other) for name, other in gathered.runs.items() if other is not run}
    result["targets"] = [_target(target, result) for target in TARGETS]
    rounded: dict[str, Any] = _rounded(result)
    return rounded


def _rounded(value: Any) -> Any:
    """Rounds to four digits; further digits do not reproduce between runs."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list():
            return [_rounded(item) for item in value]
    return value


def _target(target: Target, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a target with the measured figure, which is None if it was not measured."""
    value = summary.get(target.key)
    if target.entry:
        value = (value or {}).get(target.entry)
    return {
        "what": target.what,
        "target": f"{target.comparison} {target.format(target.value)}",
        "measured": None if value is None else float(value),
        "met": None if value is None else target.is_met(value),
        "published": target.published,
    }
