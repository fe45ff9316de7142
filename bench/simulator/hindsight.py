"""Finds the fixed settings that serve a workload best, in hindsight: by successive elimination on the services."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from msgspec.structs import replace

from simulator import fresh
from simulator.auto import policy
from simulator.baselines import neighbors
from simulator.rows import Key, measured
from simulator.scenario import Scenario
from simulator.world import run_fixed, well
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.tuner.policy import Policy

_ROUNDS = ((45, 4), (150, 3), (500, 1))
"""(simulated seconds of each phase, settings kept) of each round. The first has every other number of rows, the second
the neighbors of the best."""

Numbers = tuple[int, ...]
"""A setting: rows of talker and codec, and which of the policy's ramps."""


class Best(NamedTuple):
    """The best fixed settings of a workload."""

    day: Setting
    """Of all of it."""
    later: Setting
    """Of its last phase."""


def numbers_of(rules: Policy, setting: Setting) -> Numbers:
    """Returns a setting as numbers."""
    return setting.talker_max_num_seqs, setting.codec_max_num_seqs, rules.ramps.index(setting.chunk_ramp)


def setting_of(scenario: Scenario, rules: Policy, numbers: Numbers) -> Setting:
    """Returns the setting that such numbers mean."""
    talker, codec, ramp = numbers
    return replace(scenario.initial, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=rules.ramps[ramp])


def best_settings(pool: Executor, workloads: Iterable[int]) -> Mapping[int, Best]:
    """Returns the best settings of each workload."""
    searches = [_Search(workload) for workload in workloads]
    for seconds, kept in _ROUNDS:
        keys = [key for search in searches for key in search.keys(seconds)]
        served = dict(measured(pool, serve, keys, float, tuned=False))
        for search in searches:
            search.keep(served, seconds, kept)
    return {search.workload: search.best() for search in searches}


def serve(workload: int, phase: int, seconds: int, *numbers: int) -> float:
    """Returns the ratio of requests that a setting serves well in a part of a phase."""
    scenario = fresh.draw(workload)
    part = replace(scenario, phases=(scenario.phases[phase]._replace(until=float(seconds)),))
    return well(run_fixed(part, setting_of(scenario, policy(scenario), numbers)))


class _Search:
    """The settings of a workload that are left."""

    def __init__(self, workload: int) -> None:
        self.workload = workload
        self._scenario = fresh.draw(workload)
        self._rules = policy(self._scenario)
        rows = (self._rules.rows[knob][::-2] for knob in (Knob.TALKER_ROWS, Knob.CODEC_ROWS))
        self._left: list[Numbers] = list(itertools.product(*rows, range(len(self._rules.ramps))))
        self._ranked: list[list[Numbers]] = []
        """By how well they serve the day, and its last phase."""

    def keys(self, seconds: int) -> Iterator[Key]:
        """Yields what to measure: for each phase and setting."""
        for phase, numbers in itertools.product(range(len(self._scenario.phases)), self._left):
            yield self.workload, phase, seconds, *numbers

    def keep(self, served: Mapping[Key, float], seconds: int, count: int) -> None:
        """Keeps the best settings, and in the first round adds their neighbors."""
        phases = self._scenario.phases
        last = len(phases) - 1

        def of_day(numbers: Numbers) -> float:
            # All phases are as long.
            return sum(phase.rate * served[self.workload, at, seconds, *numbers] for at, phase in enumerate(phases))

        def of_last(numbers: Numbers) -> float:
            return served[self.workload, last, seconds, *numbers]

        self._ranked = [sorted(self._left, key=order, reverse=True) for order in (of_day, of_last)]
        best = dict.fromkeys(numbers for ranked in self._ranked for numbers in ranked[:count])
        around = (near for numbers in best for near in self._around(numbers)) if seconds == _ROUNDS[0][0] else ()
        self._left = list(dict.fromkeys((*best, *around)))

    def _around(self, numbers: Numbers) -> Iterator[Numbers]:
        for each in neighbors(self._rules, setting_of(self._scenario, self._rules, numbers)):
            if (near := numbers_of(self._rules, each))[2] == numbers[2]:
                yield near

    def best(self) -> Best:
        """Returns the best settings that were found."""
        return Best(*(setting_of(self._scenario, self._rules, ranked[0]) for ranked in self._ranked))
