"""Measures the speed of the simulator, for a small service and a very large one."""

import json
import resource
import time
from pathlib import Path

import numpy as np

from simulator.costs import H200_PROTOTYPE
from simulator.scenario import Scenario
from simulator.world import World, goodput
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.tuner.policy import Objective

DAY, HOUR = 86_400.0, 3_600.0
_SETTING = Setting(talker_max_num_seqs=32, codec_max_num_seqs=16, chunk_ramp=(1, 2, 4, 8, 12))
_OBJECTIVES = {"CustomVoice": Objective(0.2, 0.95), "Base": Objective(0.5, 0.95)}

DAY_OF_TWENTY = Scenario(
    name="a day of some twenty streams",
    seconds=DAY,
    load=((DAY, {"CustomVoice": 4.0, "Base": 0.8}),),
    objectives=_OBJECTIVES,
    initial=_SETTING,
    costs=H200_PROTOTYPE,
)
HOUR_OF_A_MILLION = Scenario(
    name="1,000 talkers, 1,000 codecs, a million streams in an hour",
    seconds=HOUR,
    load=((HOUR, {"CustomVoice": 230.0, "Base": 48.0}),),
    objectives=_OBJECTIVES,
    initial=_SETTING,
    costs=H200_PROTOTYPE,
    talkers=1000,
    codecs=1000,
    max_queue=10_000,
    scrape_seconds=60.0,
)


def measure(scenario: Scenario) -> dict[str, object]:
    """Runs a scenario once and measures the time."""
    started, computed = time.perf_counter(), time.process_time()
    world = World(scenario)
    world.run(scenario.seconds)
    wall, cpu = time.perf_counter() - started, time.process_time() - computed
    outcomes = world.outcomes()
    return {
        "name": scenario.name,
        "seconds": scenario.seconds,
        "requests": len(outcomes.ttfa),
        "heard": int(np.isfinite(outcomes.ttfa).sum()),
        "goodput": round(goodput(outcomes, scenario), 2),
        "events": world.events,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "simulated_seconds_per_cpu_second": round(scenario.seconds / cpu),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main(path: Path | None) -> None:
    """Prints the measurements, and writes them as JSON if a path is given."""
    World(DAY_OF_TWENTY).run(1.0)
    measured = [measure(scenario) for scenario in (DAY_OF_TWENTY, HOUR_OF_A_MILLION)]
    for each in measured:
        print(json.dumps(each))
    if path is not None:
        path.write_text(json.dumps(measured, indent=1) + "\n")
