"""A/A: how often the tuner promotes a candidate that changes nothing."""

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
"""Requests that a replica holds: more rows than these change nothing."""


class AaResult(Struct, frozen=True, kw_only=True):
    """All runs together."""

    runs: int
    trials: int
    false_promotions: int
    """Runs in which anything was promoted."""


def scenario(seed: int) -> Scenario:
    """A service that misses its objective whatever the rows are: of one replica or three, at one of three loads."""
    replicas, load = (3, 1, 1, 1)[seed % 4], (0.8, 1.2, 1.6)[seed % 3]
    return Scenario(
        name=f"same {seed}",
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
    """How many trials ended, and whether anything was promoted."""
    simulated = scenario(seed)
    ended = tune(simulated, _rules(simulated)).finished()
    return len(ended), any(each.event.reason == "Promoted" for each in ended)


def measure(runs: int, processes: int) -> AaResult:
    """Many runs, each with other listeners."""
    found = list(_all(runs, processes))
    return AaResult(
        runs=runs, trials=sum(trials for trials, _ in found), false_promotions=sum(wrong for _, wrong in found)
    )


def _rules(simulated: Scenario) -> Policy:
    """Only what changes nothing may be chosen."""
    rows = (4, 8, 16, 32)
    rules = policy(simulated)
    return msgspec.structs.replace(
        rules, rows={Knob.TALKER_ROWS: rows, Knob.CODEC_ROWS: rows}, ramps=(simulated.initial.chunk_ramp,)
    )


def _all(runs: int, processes: int) -> Iterator[tuple[int, bool]]:
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run, range(runs), chunksize=8)
