"""Random numbers as a function of (seed, what for, index), so that no setting changes what is drawn for a request."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simulator.scenario import TASK_TYPES, Scenario
from syrinx_stages.contract.family import FAMILY

Array = np.ndarray[Any, Any]

_ARRIVALS, _LENGTHS = 1, 2
BLOCK = 4096
"""Lengths are drawn in blocks of so many requests."""


def _generator(seed: int, purpose: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, purpose, index))))


def lengths(scenario: Scenario, count: int) -> Array:
    """Frames of the first `count` requests (of the next multiple of `BLOCK`): lognormal, at least one."""
    spread = scenario.audio_spread
    middle = math.log(scenario.audio_seconds / FAMILY.frame_seconds) - spread**2 / 2
    blocks = [
        _generator(scenario.seed, _LENGTHS, block).lognormal(middle, spread, BLOCK)
        for block in range(max(1, math.ceil(count / BLOCK)))
    ]
    return np.maximum(1, np.rint(np.concatenate(blocks))).astype(np.int32)


def arrivals(scenario: Scenario) -> tuple[Array, Array]:
    """When requests of the open loop come, in order, and their task types (as index of `TASK_TYPES`)."""
    times: list[Array] = []
    tasks: list[Array] = []
    for task, name in enumerate(TASK_TYPES):
        drawn = _task_arrivals(scenario, _generator(scenario.seed, _ARRIVALS, task), name)
        times.append(drawn)
        tasks.append(np.full(len(drawn), task, np.int8))
    at, task_of = np.concatenate(times), np.concatenate(tasks)
    order = np.argsort(at, kind="stable")
    return at[order], task_of[order]


def _task_arrivals(scenario: Scenario, random: np.random.Generator, task_type: str) -> Array:
    """One task type's: a Poisson process of bursts at piecewise-constant rates."""
    parts: list[Array] = [np.empty(0)]
    start = 0.0
    while scenario.load and start < scenario.seconds:
        day = start
        for until, rates in scenario.load:
            end = min(day + until, scenario.seconds)
            if end <= start:
                continue
            count = random.poisson(rates.get(task_type, 0.0) / scenario.burst * (end - start))
            at = np.sort(random.uniform(start, end, count))
            sizes = random.geometric(1 / scenario.burst, count)
            parts.append(np.repeat(at, sizes))
            start = end
    return np.concatenate(parts)
