"""Searches for the few costs under which the simulator comes closest to what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulator.cases import METRICS, Case, error, simulate
from simulator.costs import fitted_cpu, fitted_gpu
from simulator.scenario import Costs

ROUNDS = 40
_FIRST_STEP = 0.5
"""Of the logarithm of a parameter."""

Build = Callable[..., Costs]


START: dict[str, tuple[Build, tuple[float, ...]]] = {
    "CPU2": (fitted_cpu, (0.0095, 0.002, 0.8, 0.004, 1.1)),
    "H100_CUSTOMVOICE": (fitted_gpu, (0.010, 0.0012, 0.03, 0.003, 0.00002, 0.1)),
    "H100_BASE": (fitted_gpu, (0.012, 0.0012, 0.25, 0.01, 0.00014, 0.1)),
    "H20_CUSTOMVOICE": (fitted_gpu, (0.010, 0.0012, 0.03, 0.003, 0.00002, 0.1)),
    "H20_BASE": (fitted_gpu, (0.012, 0.0012, 0.4, 0.01, 0.00014, 0.1)),
}


def loss(costs: Costs, cases: Sequence[Case]) -> float:
    """Mean absolute error of all figures."""
    errors = []
    for case in cases:
        found = simulate(case.scenario, costs)
        errors += [abs(error(found[name], case.measured[name])) for name in METRICS if name in case.measured]
    return float(np.mean(errors))


def search(group: str, cases: Sequence[Case]) -> tuple[tuple[float, ...], float]:
    """Coordinate search over the logarithms: a step each way, and half of it where neither helps."""
    build, start = START[group]
    values = np.log(np.array(start))
    steps = np.full(len(values), _FIRST_STEP)
    best = loss(build(*np.exp(values)), cases)
    for _ in range(ROUNDS):
        for at in range(len(values)):
            for sign in (1, -1):
                tried = values.copy()
                tried[at] += sign * steps[at]
                now = loss(build(*np.exp(tried)), cases)
                if now < best:
                    values, best = tried, now
                    steps[at] *= 1.3
                    break
            else:
                steps[at] /= 2
        if steps.max() < 0.02:
            break
    return tuple(float(f"{value:.3g}") for value in np.exp(values)), best
