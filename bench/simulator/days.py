"""Simulated days of drawn workloads under each method, and how good each was."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import accumulate, product

from msgspec import Struct
from msgspec.structs import replace

from simulator import baselines, fresh
from simulator.auto import policy, tune
from simulator.hindsight import Best, numbers_of, setting_of
from simulator.rows import TUNER, measured
from simulator.scenario import Scenario
from simulator.world import World, run_fixed

UNTOUCHED = "untouched"
_MINUTE = 60.0
_BACK = 0.95
"""Ratio of the best setting's well-served requests from which a service is back after a shift."""
_BACK_MINUTES = 10


class Day(Struct, frozen=True, kw_only=True):
    """How a workload was served, by minute."""

    requests: tuple[int, ...]
    well: tuple[int, ...]
    """Those that were served well."""
    hurt: float = 0.0
    """Ratio of all requests that changes made bad, against the incumbent's twin."""

    @property
    def ratio(self) -> float:
        """Ratio of requests served well."""
        return sum(self.well) / max(sum(self.requests), 1)


class Score(Struct, frozen=True, kw_only=True):
    """How a method served one workload for a day."""

    well: float
    """Ratio of requests served well."""
    regret: float
    """Integrated over the day: what is missing to the best fixed setting, as a ratio of that."""
    hurt: float
    """Ratio of all requests that changes made bad, against the incumbent's twin."""
    worse_than_untouched: float
    """Ratio of requests."""
    back_minutes: float | None = None
    """Minutes after a shift until the service is within 5 % of the best setting for the new load, ten minutes long and
    on average up to the end; None without a shift, infinite is written as the rest of the day."""


class Days(Struct, frozen=True, kw_only=True):
    """A workload with one seed of its requests."""

    best: Day
    """Under the setting that is best for the day."""
    later: Day
    """Under the one that is best for its last phase."""
    methods: Mapping[str, Day]


# Running ----------------------------------------------------------------------------------------------------------


def scenario_of(workload: int, seed: int) -> Scenario:
    """Returns a workload with a seed of its requests."""
    return replace(fresh.draw(workload), seed=1000 * workload + seed)


def fixed(workload: int, seed: int, *numbers: int) -> Day:
    """Runs a setting."""
    scenario = scenario_of(workload, seed)
    return _day(run_fixed(scenario, setting_of(scenario, policy(scenario), numbers)))


def tuned(workload: int, seed: int) -> Day:
    """Runs the tuner."""
    scenario = scenario_of(workload, seed)
    found = tune(scenario, policy(scenario))
    return _day(found.world, found.hurt)


def compared(workload: int, seed: int, number: int) -> Day:
    """Runs a baseline."""
    scenario = scenario_of(workload, seed)
    found = baselines.run(scenario, policy(scenario), [*baselines.BASELINES.values()][number])
    return _day(found.world, found.hurt)


def _day(world: World, hurt: float = 0.0) -> Day:
    minutes = round(world.scenario.seconds / _MINUTE)
    requests, well, limit = [0] * minutes, [0] * minutes, world.scenario.objective.seconds
    for outcome in world.outcomes:
        requests[int(outcome.at / _MINUTE)] += 1
        well[int(outcome.at / _MINUTE)] += outcome.is_well(limit)
    return Day(requests=tuple(requests), well=tuple(well), hurt=round(hurt, 5))


def run_all(
    pool: Executor, best: Mapping[int, Best], seeds: int, compared_seeds: int
) -> Iterator[tuple[int, int, Days]]:
    """Yields workload, seed and days. Baselines run with the first `compared_seeds` of the seeds."""
    keys = list(product(best, range(seeds)))
    # The longest come first.
    by_tuner = dict(measured(pool, tuned, keys, Day))
    numbers = {
        workload: [numbers_of(policy(scenario), each) for each in (*best[workload], scenario.initial)]
        for workload in best
        if (scenario := fresh.draw(workload))
    }
    by_setting = dict(
        measured(pool, fixed, ((*key, *each) for key in keys for each in numbers[key[0]]), Day, tuned=False),
    )
    names = list(baselines.BASELINES)
    others = ((*key, number) for key in keys if key[1] < compared_seeds for number in range(len(names)))
    by_baseline = dict(measured(pool, compared, others, Day))
    for workload, seed in keys:
        day, later, start = (by_setting[workload, seed, *each] for each in numbers[workload])
        methods = {TUNER: by_tuner[workload, seed], UNTOUCHED: start}
        if seed < compared_seeds:
            methods |= {name: by_baseline[workload, seed, number] for number, name in enumerate(names)}
        yield workload, seed, Days(best=day, later=later, methods=methods)


# Judging ----------------------------------------------------------------------------------------------------------


def scores(days: Days, shift_minute: int | None) -> dict[str, Score]:
    """Returns the score of each method. shift_minute: when the load changed, if it did."""
    untouched = days.methods[UNTOUCHED].ratio
    return {
        name: Score(
            well=round(day.ratio, 4),
            regret=round(max(0.0, 1 - day.ratio / days.best.ratio), 4) if days.best.ratio else 0.0,
            hurt=day.hurt,
            worse_than_untouched=round(max(0.0, untouched - day.ratio), 4),
            back_minutes=None if shift_minute is None else _back_minutes(day, days.later, shift_minute),
        )
        for name, day in days.methods.items()
    }


def _back_minutes(day: Day, best: Day, shift: int) -> float:
    """Returns the minutes after the shift until a service is as good as under the best setting for the new load."""
    served, possible = (_sums(each.well[shift:]) for each in (day, best))
    for minute in range(len(served) - _BACK_MINUTES):
        spans = ((minute, minute + _BACK_MINUTES), (minute, -1))
        if all(served[end] - served[at] >= _BACK * (possible[end] - possible[at]) for at, end in spans):
            return float(minute)
    return float(len(served) - 1)


def _sums(counts: Iterable[int]) -> Sequence[int]:
    return [0, *accumulate(counts)]
