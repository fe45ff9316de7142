"""`python -m live_tuning`: runs the live tuner from bad settings, and writes results/tuning_live.{json,md,png}.

Run it in the project's root with PYTHONPATH=bench:tests. An interrupted run continues with what is missing.
"""

import argparse
import asyncio
import datetime
import os
import sys
from pathlib import Path
from typing import get_args

import numpy as np
from msgspec.structs import replace

from live_tuning.draws import Load, draw_loads, draw_settings
from live_tuning.report import METHODS, Report, StartResult, page, plot, start_result
from live_tuning.rows import Rows
from live_tuning.scores import HALF_MINUTE, Request, share
from live_tuning.service import Result, Run, Service, measure, measure_capacity
from syrinx_operator.commands.bench.load import Limit
from syrinx_operator.commands.bench.report import save
from syrinx_operator.local.machine import describe, publishable_command, revision
from syrinx_operator.resource.fields.tuning import TtfaMs
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline

RESULTS = Path(__file__).parents[1] / "results"
BAD = 0.1
"""A start is bad if its share of requests served well is less than that of the defaults by at least this."""
CHECK_SECONDS = 60.0
"""Of the run that shows whether a start is bad."""
CAPACITY_SECONDS = 20.0
"""Of each closed loop."""
MIN_CORES = 2
"""Of each of several services that run side by side."""


class Bench:
    """The runs of a pair of loads, once the defaults have been measured."""

    def __init__(self, rows: Rows, defaults: dict[Load, Result]) -> None:
        self._rows = rows
        self._defaults = defaults
        load, result = next(iter(defaults.items()))
        ttfas = [each.ttfa for each in _until(result, load.phases[0].seconds) if each.ttfa is not None]
        wanted = 1500 * float(np.quantile(ttfas, 0.95))
        edges: tuple[TtfaMs, ...] = get_args(TtfaMs)
        self.objective_ms = next((each for each in edges if each >= wanted), edges[-1])
        self.objective = self.objective_ms / 1000

    async def is_bad(self, setting: Setting) -> bool:
        """Returns whether a setting serves clearly fewer requests well than the defaults, under each load."""
        for load, defaults in self._defaults.items():
            phase = replace(load.phases[0], seconds=min(CHECK_SECONDS, load.phases[0].seconds))
            run = Run(service=Service(setting=setting), load=replace(load, phases=(phase,)))
            found = share((await self._rows.get(measure, run, Result)).requests, self.objective)
            if found > share(_until(defaults, phase.seconds), self.objective) - BAD:
                return False
        return True

    async def compare(self, start: Setting, load: Load) -> StartResult:
        """Returns the result of a start under a load."""
        untouched = Service(setting=start)
        services = {"untouched": untouched, "tuned": replace(untouched, objective_ms=self.objective_ms)}
        results = {"defaults": self._defaults[load]}
        for name, service in services.items():
            results[name] = await self._rows.get(measure, Run(service=service, load=load), Result)
        return start_result(start, load, results, self.objective)


def _until(result: Result, seconds: float) -> list[Request]:
    return [each for each in result.requests if each.at < seconds]


async def run(arguments: argparse.Namespace, command: str) -> Report:
    """Makes all runs that are missing."""
    rows = Rows(arguments.results / "live_rows.jsonl", arguments.jobs)
    capacity = await rows.get(measure_capacity, Limit(seconds=CAPACITY_SECONDS), float)
    loads = draw_loads(capacity, arguments.seed, arguments.seconds, arguments.shift_seconds)
    runs = [Run(service=Service(), load=load) for load in loads]
    defaults = await asyncio.gather(*(rows.get(measure, each, Result) for each in runs))
    bench = Bench(rows, dict(zip(loads, defaults, strict=True)))
    starts, rejected = list[Setting](), 0
    settings = iter(draw_settings(resolve(default_pipeline()), arguments.seed))
    while len(starts) < arguments.starts:
        if await bench.is_bad(setting := next(settings)):
            starts.append(setting)
        else:
            rejected += 1
    found = await asyncio.gather(*(bench.compare(start, load) for start in starts for load in loads))
    halves = [each.by_half_minute for each in found]
    return Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        revision=revision(),
        command=command,
        machine=describe(),
        service_cores=rows.cores,
        capacity=capacity,
        objective_seconds=bench.objective,
        loads=loads,
        rejected=rejected,
        starts=tuple(found),
        **{name: round(sum(each.share(name) for each in halves) / len(halves), 4) for name in METHODS},
    )


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m live_tuning", description=__doc__)
    parser.add_argument("--starts", type=int, default=5, help="number of bad settings (default: 5)")
    parser.add_argument("--seconds", type=float, default=720.0, help="of each load (default: 720)")
    parser.add_argument("--shift-seconds", type=float, default=300.0, help="after its shift (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="of settings, requests and shifts (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="services side by side, which share the cores (default: 1)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output directory (default: bench/results)")
    arguments = parser.parse_args()
    if arguments.seconds % HALF_MINUTE:
        parser.error(f"--seconds must be a multiple of {HALF_MINUTE:g}")
    if arguments.jobs > 1 and len(os.sched_getaffinity(0)) < arguments.jobs * MIN_CORES:
        parser.error(f"--jobs {arguments.jobs}: each needs {MIN_CORES} cores")
    command = publishable_command("PYTHONPATH=bench:tests python -m live_tuning", sys.argv[1:])
    report = asyncio.run(run(arguments, command))
    save(report, arguments.results / "tuning_live.json")
    (arguments.results / "tuning_live.md").write_text(page(report), encoding="utf-8")
    plot(report.starts, arguments.results / "tuning_live.png")
    print(page(report))


if __name__ == "__main__":
    main()
