"""How close the tuner comes to the best fixed setting, and what its trials cost listeners, over many workloads."""

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
"""Seconds that each setting is simulated for, and how many of the best go on: every setting is in the first round."""
DAY = 24 * 3600.0


class Result(Struct, frozen=True, kw_only=True):
    """One workload."""

    name: str
    start: Setting
    best: Setting
    """The best fixed setting, of all that the tuner may choose."""
    chosen: Setting
    """What the tuner had chosen in the end."""
    asked: float
    """Requests per second."""
    goodput_start: float
    """Requests per second that were served well, under the setting that it started with."""
    goodput_best: float
    goodput_chosen: float
    regret: float
    """What the tuner's choice loses against the best, as a part of the best."""
    trials: int
    """Until the end of the day."""
    trials_to_choice: int
    """Until nothing was promoted any more."""
    hours_to_choice: float
    hurt: float
    """Share of the day's requests that trials spoiled."""


def measure(scenario: Scenario, interval: float = 30.0) -> Result:
    """Finds the best setting by brute force, lets the tuner work for a day, and compares."""
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
        hurt=harm(day),
    )


def brute_force(scenario: Scenario, rules: Policy) -> Setting:
    """The best of all settings: all for a short time, the better ones for longer, always with the same requests."""
    candidates = list(_settings(scenario, rules))
    for seconds, kept in ROUNDS:
        judged = msgspec.structs.replace(scenario, seconds=seconds)
        candidates.sort(key=lambda setting: fixed(judged, setting), reverse=True)
        candidates = candidates[:kept]
    return candidates[0]


def measure_all(scenarios: Sequence[Scenario], processes: int) -> Iterator[Result]:
    """Each scenario in a process of its own."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(measure, scenarios)


def _settings(scenario: Scenario, rules: Policy) -> Iterator[Setting]:
    for talker, codec, ramp in itertools.product(
        rules.rows[Knob.TALKER_ROWS], rules.rows[Knob.CODEC_ROWS], rules.ramps
    ):
        yield msgspec.structs.replace(
            scenario.initial, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp
        )
