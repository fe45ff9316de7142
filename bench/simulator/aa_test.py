"""A/A test: how often the tuner promotes a candidate that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec
from msgspec import Struct

from simulator import costs
from simulator.auto import policy, tune
from simulator.scenario import Scenario
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.tuner.policy import Objective, Policy

HOURS = 2.0
RESIDENT = 4
"""Capacity of a replica. More rows have no effect."""


class AaResult(Struct, frozen=True, kw_only=True):
    """Result of all runs."""

    runs: int
    trials: int
    false_promotions: int
    """Runs with a promotion."""


def scenario(seed: int) -> Scenario:
    """Returns a service that misses its objective under any setting; the seed selects the replicas and the load."""
    replicas, load = (3, 1, 1, 1)[seed % 4], (0.8, 1.2, 1.6)[seed % 3]
    return Scenario(
        name=f"A/A {seed}",
        seed=seed,
        seconds=HOURS * 3600,
        load=((1e9, {"CustomVoice": load * replicas}),),
        burst=1.0 + seed % 2,
        objectives={"CustomVoice": Objective(0.1, 0.95)},
        initial=Setting(talker_max_num_seqs=4, codec_max_num_seqs=4, chunk_ramp=(2, 2, 4, 8, 12)),
        talkers=replicas,
        codecs=replicas,
        talker_resident=RESIDENT,
        codec_resident=RESIDENT,
        costs=costs.CPU2,
    )


def run(seed: int) -> tuple[int, bool]:
    """Returns the number of ended trials, and whether one was promoted."""
    simulated = scenario(seed)
    ended = tune(simulated, _rules(simulated)).finished()
    return len(ended), any(each.event.reason == "Promoted" for each in ended)


def measure(runs: int, processes: int) -> AaResult:
    """Runs the test with a different seed each time."""
    found = list(_all(runs, processes))
    return AaResult(
        runs=runs, trials=sum(trials for trials, _ in found), false_promotions=sum(wrong for _, wrong in found)
    )


def _rules(simulated: Scenario) -> Policy:
    """Returns a policy whose allowed settings have no effect."""
    rows = (4, 8, 16, 32)
    rules = policy(simulated)
    return msgspec.structs.replace(
        rules, rows={Knob.TALKER_ROWS: rows, Knob.CODEC_ROWS: rows}, ramps=(simulated.initial.chunk_ramp,)
    )


def _all(runs: int, processes: int) -> Iterator[tuple[int, bool]]:
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run, range(runs), chunksize=8)
