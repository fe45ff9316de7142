"""Published and own measurements, and the scenarios that reproduce them."""

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from simulator import costs
from simulator.scenario import Costs, Scenario
from simulator.world import World
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.spec import CaptureShape

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"

SIMULATED_SECONDS = 120.0
BUNDLED_SILENCE = 0.08
"""Leading silence of the bundled voice in seconds: what is not sent, and the first inaudible samples."""
METRICS = ("ttfa_mean", "ttfa_p95", "throughput")


class Case(NamedTuple):
    """One row of a table: its scenario and the measured values (milliseconds, requests per second)."""

    group: str
    """Cases of a group share a machine and a task and are fitted together."""
    variant: str
    load: str
    scenario: Scenario
    measured: dict[str, float]
    fitted: bool
    """Whether the costs were fitted to this case; otherwise it is a prediction."""


class _Table(Struct, frozen=True):
    """A published table and the variants that are compared."""

    group: str
    source: str
    hardware: str
    task: str
    variants: dict[str, int]
    """Codec rows by variant."""
    fitted: bool


_RAMPS = {"CustomVoice": (1,), "Base": (1, 25)}
"""Inferred chunk ramps: in the profile of #3322 the talker emitted preset voices every 22.9 ms (a frame) and clones
every 263 ms (25 frames)."""
_ADMISSION: dict[str, Literal["talker rows", "rows"]] = {"CustomVoice": "talker rows", "Base": "rows"}
"""Inferred scope of `max_num_seqs`: with one codec row a clone waits until earlier ones end (TTFA 677, 1,252, 2,760 and
3,333 ms for four concurrent requests), a preset voice does not."""
_AUDIO_SECONDS = {"CustomVoice": 3.95, "Base": 4.1}
"""Mean audio length: published audio throughput divided by requests per second."""
TALKER_ROWS = 10
CAPTURED_ROWS = (1, 2, 4, 8)
"""Captured rows of the variants with pairs. The others run more than one row eagerly."""


def published() -> list[Case]:
    """Returns the closed-loop cases of the published tables that vary the codec's rows or captured pairs."""
    measured: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    tables = msgspec.json.decode((HERE / "published.json").read_bytes(), type=list[_Table])
    with (HERE / "published.csv").open() as file:
        for row in csv.DictReader(file):
            if row["metric"] in METRICS and row["concurrency"].isdecimal():
                key = (row["source"], row["hardware"], row["model"], row["task"], row["variant"], row["concurrency"])
                measured[key][row["metric"]] = float(row["value"])
    return [
        Case(
            group=table.group,
            variant=f"{table.source}: {variant}",
            load=key[5],
            scenario=_listening(table, variant, rows, int(key[5])),
            measured=found,
            fitted=table.fitted,
        )
        for table in tables
        for variant, rows in table.variants.items()
        for key, found in measured.items()
        if key[:5] == (table.source, table.hardware, "1.7B", table.task, variant)
    ]


def _listening(table: _Table, variant: str, rows: int, listeners: int) -> Scenario:
    captured = CAPTURED_ROWS if "pairs" in variant or "batched" in variant else (1,)
    setting = Setting(
        talker_max_num_seqs=TALKER_ROWS,
        codec_max_num_seqs=rows,
        chunk_ramp=_RAMPS[table.task],
        capture_pairs=tuple(
            CaptureShape(rows=each, frames=frames) for each in captured for frames in _RAMPS[table.task]
        ),
    )
    return Scenario(
        name=table.group,
        seconds=SIMULATED_SECONDS,
        listeners={table.task: listeners},
        initial=setting,
        costs=getattr(costs, table.group),
        audio_seconds=_AUDIO_SECONDS[table.task],
        audio_spread=0.3,
        lead_limit=1e6,
        admission=_ADMISSION[table.task],
        max_queue=1000,
        max_queue_seconds=1e6,
        scrape_seconds=SIMULATED_SECONDS,
    )


def benched() -> list[Case]:
    """Returns the cases that `syrinx bench` measured on two cores."""
    report = json.loads((HERE / "cpu.json").read_text())
    return [
        Case(
            group="CPU2",
            variant=f"{point['loop']} loop",
            load=f"{point['load']:g}",
            scenario=_bench(report["pipeline"]["spec"], point),
            measured={
                "ttfa_mean": 1000 * point["ttfa"]["mean"],
                "ttfa_p95": 1000 * point["ttfa"]["p95"],
                "throughput": point["requests_per_second"],
                "underruns": 100 * point["underrun_share"],
            },
            fitted=True,
        )
        for point in report["points"]
    ]


def _bench(spec: dict[str, Any], point: dict[str, Any]) -> Scenario:
    task, load = "CustomVoice", point["load"]
    closed = point["loop"] == "closed"
    setting = Setting(
        talker_max_num_seqs=spec["talker"]["maxNumSeqs"],
        codec_max_num_seqs=spec["codec"]["maxNumSeqs"],
        chunk_ramp=tuple(spec["codec"]["chunkRamp"]),
    )
    # Of an overloaded service what was measured depends on how long it was: as long as the benchmark ran.
    seconds = SIMULATED_SECONDS if closed else 25.0
    return Scenario(
        name="CPU2",
        seconds=seconds,
        load=() if closed else ((seconds, {task: load}),),
        listeners={task: int(load)} if closed else {},
        initial=setting,
        costs=costs.CPU2,
        audio_seconds=point["audio_seconds"] / point["requests"],
        audio_spread=0.3,
        talker_resident=spec["talker"]["maxResident"],
        codec_resident=spec["codec"]["maxResident"],
        lead_limit=spec["talker"]["leadLimitSeconds"],
        silence=BUNDLED_SILENCE,
        scrape_seconds=SIMULATED_SECONDS,
    )


def simulate(scenario: Scenario, given: Costs | None = None, seeds: int = 1) -> dict[str, float]:
    """Returns the same metrics from the simulator, over several seeds."""
    ttfa, underruns, spans = [], [], []
    for seed in range(seeds):
        world = World(msgspec.structs.replace(scenario, seed=seed, costs=given or scenario.costs))
        end = scenario.seconds + (60.0 if scenario.load else 0.0)
        world.run(end)
        outcomes = world.outcomes()
        done = np.isfinite(outcomes.finished)
        ttfa.append(outcomes.ttfa[done])
        underruns.append(outcomes.underrun[done])
        last = outcomes.finished[done].max() if scenario.load else scenario.seconds
        spans.append(done.sum() / last)
    all_ttfa = np.concatenate(ttfa)
    return {
        "ttfa_mean": 1000 * float(all_ttfa.mean()),
        "ttfa_p95": 1000 * float(np.percentile(all_ttfa, 95)),
        "throughput": float(np.mean(spans)),
        "underruns": 100 * float(np.concatenate(underruns).mean()),
    }


def error(simulated: float, measured: float) -> float:
    """Returns log(simulated / measured), so that half and double are equally wrong."""
    return float(np.log(simulated / measured))
