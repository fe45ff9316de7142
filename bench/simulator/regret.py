"""Regret of the tuner against the best fixed setting, and the harm of its trials, over many workloads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec
from msgspec import Struct

from simulator.auto import harm, policy, tune
from simulator.scenario import Scenario
from simulator.world import fixed
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.tuner.policy import Policy

ROUNDS = ((120.0, 30), (600.0, 8), (7200.0, 1))
"""(simulated seconds, settings kept) of each elimination round. The first round has all settings."""
DAY = 24 * 3600.0


class Result(Struct, frozen=True, kw_only=True):
    """Result of one workload."""

    name: str
    start: Setting
    best: Setting
    """The best fixed setting within the bounds."""
    chosen: Setting
    """The tuner's setting at the end."""
    asked: float
    """Requests per second."""
    goodput_start: float
    """Good requests per second under the starting setting."""
    goodput_best: float
    goodput_chosen: float
    regret: float
    """(best - chosen) / best goodput."""
    trials: int
    """Within the day."""
    trials_to_choice: int
    """Up to the last promotion."""
    hours_to_choice: float
    harm: float
    """Ratio of the day's requests that trials made bad."""


def measure(scenario: Scenario, interval: float = 30.0) -> Result:
    """Finds the best setting by brute force, runs the tuner for a day, and compares them."""
    rules = policy(scenario, interval)
    best = brute_force(scenario, rules)
    day = tune(msgspec.structs.replace(scenario, seconds=DAY), rules)
    promoted = [each for each in day.events if each.event.reason == "Promoted"]
    last = promoted[-1].at if promoted else 0.0
    ended = [each for each in day.finished() if each.at <= last]
    judged = msgspec.structs.replace(scenario, seconds=ROUNDS[-1][0])
    goodput = {setting: fixed(judged, setting) for setting in {best, day.chosen, scenario.initial}}
    return Result(
        name=scenario.name,
        start=scenario.initial,
        best=best,
        chosen=day.chosen,
        asked=sum(sum(rates.values()) for _, rates in scenario.load) / len(scenario.load),
        goodput_start=goodput[scenario.initial],
        goodput_best=goodput[best],
        goodput_chosen=goodput[day.chosen],
        regret=max(0.0, 1 - goodput[day.chosen] / goodput[best]) if goodput[best] else 0.0,
        trials=len(day.finished()),
        trials_to_choice=len(ended),
        hours_to_choice=last / 3600,
        harm=harm(day),
    )


def brute_force(scenario: Scenario, rules: Policy) -> Setting:
    """Returns the best setting by successive elimination: the best ones are simulated for longer."""
    candidates = list(_settings(scenario, rules))
    for seconds, kept in ROUNDS:
        judged = msgspec.structs.replace(scenario, seconds=seconds)
        candidates.sort(key=lambda setting: fixed(judged, setting), reverse=True)
        candidates = candidates[:kept]
    return candidates[0]


def measure_all(scenarios: Sequence[Scenario], processes: int) -> Iterator[Result]:
    """Measures each scenario in its own process."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(measure, scenarios)


def _settings(scenario: Scenario, rules: Policy) -> Iterator[Setting]:
    for talker, codec, ramp in itertools.product(
        rules.rows[Knob.TALKER_ROWS], rules.rows[Knob.CODEC_ROWS], rules.ramps
    ):
        yield msgspec.structs.replace(
            scenario.initial, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp
        )
