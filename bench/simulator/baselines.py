"""Other tuners with the same information and budget: the counters of each window, and one setting for the next."""

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.scenario import Scenario
from simulator.twins import Twins
from simulator.world import World
from syrinx_operator.observed.counters import CounterHistory
from syrinx_operator.observed.evidence import Evidence, ttfa_quantile
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.tuner.decide import Assignment
from syrinx_operator.tuner.policy import Policy

WINDOW_SECONDS = 300.0
"""Time between two decisions."""
SCRAPE_SECONDS = 15.0
WASH_OUT_SECONDS = 30.0
"""Time after a change whose requests are not counted."""
MORNING_WINDOWS = 12
_ENOUGH = 0.99
"""Ratio of requests served well from which nothing else is tried."""
_BETTER = 0.01
"""Difference of that ratio that counts as better."""


class Seen(NamedTuple):
    """What the counters show of a window."""

    well: float
    """Ratio of requests served well; nan without requests."""
    requests: int
    late: bool
    """Whether the p95 of the TTFA of any task type is above its objective."""


Array = NDArray[np.float64]
Strategy = Generator[Setting, Seen, None]
"""Yields the setting of the next window, and receives what was seen of it."""
Baseline = Callable[[Policy, random.Random], Strategy]


class Run(NamedTuple):
    """A simulated day."""

    world: World
    hurt: float
    """Ratio of all requests that changes made bad."""


def run(scenario: Scenario, rules: Policy, baseline: Baseline) -> Run:
    """Runs a baseline on the services of a scenario."""
    world, history = World(scenario), CounterHistory()
    twins, strategy = Twins(world), baseline(rules, random.Random(scenario.seed))
    setting, begun = next(strategy), 0.0

    def direct(world: World) -> float:
        nonlocal setting, begun
        history.observe(world.observe())
        if world.now >= begun + WINDOW_SECONDS:
            since = world.clock(begun + WASH_OUT_SECONDS)
            seen = history.evidence(rules.objectives, rules.interval, since, world.clock())
            setting = strategy.send(_seen(rules, seen))
            begun = world.now
        twins.apply(Assignment(base=setting))
        return SCRAPE_SECONDS

    world.run(direct)
    return Run(world, twins.hurt())


def _seen(rules: Policy, window: Evidence) -> Seen:
    outcomes = window.of_arm()
    late = any(
        (p95 := ttfa_quantile(window, task_type, 0.95)) is not None and p95 > objective.seconds
        for task_type, objective in rules.objectives.items()
    )
    return Seen(1 - outcomes.bad_ratio if outcomes.accepted else float("nan"), outcomes.accepted, late)


def _with_rows(setting: Setting, talker: int, codec: int) -> Setting:
    return setting.with_value(Knob.TALKER_ROWS, talker).with_value(Knob.CODEC_ROWS, codec)


def morning_sweep(rules: Policy, _: random.Random) -> Strategy:
    """Tries equal rows of both stages in the first hour, then ramps, and keeps the best all day."""
    best, score = rules.requested, (yield rules.requested).well
    rows = sorted({*rules.rows[Knob.TALKER_ROWS]} & {*rules.rows[Knob.CODEC_ROWS]})
    windows = 1
    changes = [partial(_with_rows, talker=each, codec=each) for each in rows]
    changes += [partial(Setting.with_value, knob=Knob.RAMP, value=ramp) for ramp in rules.ramps]
    for change in changes:
        tried = change(best)
        if tried == best or windows == MORNING_WINDOWS:
            continue
        windows += 1
        well = (yield tried).well
        if well > score:
            best, score = tried, well
    while True:
        yield best


def aimd(rules: Policy, _: random.Random) -> Strategy:
    """Adds a row to both stages while the p95 of the TTFA meets the objectives, and halves them when it does not."""
    setting = rules.requested
    most = {knob: max(rows) for knob, rows in rules.rows.items()}
    while True:
        late = (yield setting).late
        talker, codec = (
            max(1, setting.value(knob) // 2) if late else min(setting.value(knob) + 1, most[knob])
            for knob in (Knob.TALKER_ROWS, Knob.CODEC_ROWS)
        )
        setting = _with_rows(setting, talker, codec)


def hill_climb(rules: Policy, randoms: random.Random) -> Strategy:
    """Tries a neighbor at a time, and keeps it if a window is better. Starts again when the service gets worse."""
    setting = rules.requested
    score = settled = (yield setting).well
    untried: list[Setting] = []
    exhausted = False
    while True:
        if not untried and not exhausted:
            untried = list(neighbors(rules, setting))
            randoms.shuffle(untried)
        if score >= _ENOUGH or exhausted:
            score = (yield setting).well
            if score < min(settled, _ENOUGH) - 5 * _BETTER:
                exhausted, settled = False, score
            continue
        tried = untried.pop()
        well = (yield tried).well
        if well > score + _BETTER:
            setting, score, settled, untried = tried, well, well, []
        elif not untried:
            exhausted, settled = True, score


def neighbors(rules: Policy, setting: Setting) -> Iterator[Setting]:
    """Yields the settings that are one step of one knob away."""
    ladders = {**rules.rows, Knob.RAMP: rules.ramps}
    for knob, ladder in ladders.items():
        at = ladder.index(setting.value(knob))
        for value in (*ladder[max(at - 1, 0) : at], *ladder[at + 1 : at + 2]):
            yield setting.with_value(knob, value)


_FIRST_WINDOWS = 4
"""Random settings before the first fit."""
_LENGTH_SCALE = 1.5
"""Steps of a ladder after which two settings have little in common."""
_SIGNAL, _NOISE = 0.3, 0.03
"""Standard deviations of the ratio of requests served well over settings, and between windows of one."""
_DRIFT = 0.1
"""Standard deviation of its change within an hour, by which older windows count less."""


def gaussian_process(rules: Policy, randoms: random.Random) -> Strategy:
    """Bayesian optimization: a Gaussian process with expected improvement, and noise that grows with a window's age."""
    grid = [_with_rows(rules.requested.with_value(Knob.RAMP, ramp), *rows) for rows, ramp in _joint(rules)]
    points = _points(rules, grid)
    tried, found = [grid.index(rules.requested)], [(yield rules.requested).well]
    while True:
        if len(tried) <= _FIRST_WINDOWS:
            following = randoms.randrange(len(grid))
        else:
            following = _most_promising(points, tried, np.nan_to_num(np.array(found), nan=1.0))
        tried.append(following)
        found.append((yield grid[following]).well)


def _joint(rules: Policy) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    rows = product(rules.rows[Knob.TALKER_ROWS], rules.rows[Knob.CODEC_ROWS])
    return list(product(rows, rules.ramps))


def _points(rules: Policy, grid: Sequence[Setting]) -> Array:
    """Returns the settings as points: the logarithms of rows, and the number of the ramp; [settings, 3]."""
    points = [
        (log2(each.talker_max_num_seqs), log2(each.codec_max_num_seqs), rules.ramps.index(each.chunk_ramp))
        for each in grid
    ]
    return np.array(points) / _LENGTH_SCALE


def _most_promising(points: Array, tried: Sequence[int], found: Array) -> int:
    """Returns the index of the point with the largest expected improvement on the best expected one."""
    seen = points[tried]
    ages = np.arange(len(tried))[::-1] * WINDOW_SECONDS / 3600
    noise = _NOISE**2 + _DRIFT**2 * ages
    weights = np.linalg.solve(_covariance(seen, seen) + np.diag(noise), _covariance(seen, points))
    middle = np.average(found, weights=1 / (_SIGNAL**2 + noise))
    mean = middle + weights.T @ (found - middle)
    deviation = np.sqrt(np.maximum(_SIGNAL**2 - (_covariance(seen, points) * weights).sum(axis=0), 1e-9))
    gain = mean - mean.max()
    z = gain / deviation
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    # Logistic approximation of the normal distribution function.
    below = 1 / (1 + np.exp(-1.702 * z))
    return int(np.argmax(gain * below + deviation * density))


def _covariance(one: Array, other: Array) -> Array:
    squares = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
    covariance: Array = _SIGNAL**2 * np.exp(-squares / 2)
    return covariance


BASELINES: Mapping[str, Baseline] = {
    "morning sweep": morning_sweep,
    "AIMD on p95": aimd,
    "hill-climb": hill_climb,
    "Gaussian process": gaussian_process,
}
