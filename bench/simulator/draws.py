"""Random numbers as a function of (seed, purpose, index), so that a request's draws do not depend on settings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simulator.scenario import TASK_TYPES, Scenario
from syrinx_stages.contract.family import FAMILY

Array = np.ndarray[Any, Any]

_ARRIVALS, _LENGTHS = 1, 2
BLOCK = 4096
"""Requests per block of drawn lengths."""


def _generator(seed: int, purpose: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, purpose, index))))


def lengths(scenario: Scenario, count: int) -> Array:
    """Returns the frames of the first `count` requests, rounded up to a multiple of `BLOCK`: lognormal, at least 1."""
    spread = scenario.audio_spread
    middle = math.log(scenario.audio_seconds / FAMILY.frame_seconds) - spread**2 / 2
    blocks = [
        _generator(scenario.seed, _LENGTHS, block).lognormal(middle, spread, BLOCK)
        for block in range(max(1, math.ceil(count / BLOCK)))
    ]
    return np.maximum(1, np.rint(np.concatenate(blocks))).astype(np.int32)


def arrivals(scenario: Scenario) -> tuple[Array, Array]:
    """Returns sorted arrival times of the open-loop load and their task types (index of `TASK_TYPES`)."""
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
    """Returns arrivals of one task type: a Poisson process of bursts at piecewise constant rates."""
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
