"""Fits the free engine costs to measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from simulator.cases import METRICS, Case, error, simulate
from simulator.costs import fitted_cpu, fitted_gpu
from simulator.scenario import Costs

ROUNDS = 10
SECONDS = 40.0
"""Simulated of each case; the comparison afterwards takes longer ones."""
_FIRST_STEP = 0.25
"""Of the logarithm of a parameter."""

Build = Callable[..., Costs]


START: dict[str, tuple[Build, tuple[float, ...]]] = {
    "CPU2": (fitted_cpu, (0.0095, 0.002, 0.8, 0.004, 1.1)),
    "H100_CUSTOMVOICE": (fitted_gpu, (0.0100, 0.0018, 0.055, 0.0032, 0.000014, 0.1, 0.012)),
    "H100_BASE": (fitted_gpu, (0.0112, 0.00006, 0.241, 0.04, 0.0004, 0.2, 0.04)),
    "H20_CUSTOMVOICE": (fitted_gpu, (0.0100, 0.0018, 0.055, 0.0032, 0.000014, 0.1, 0.012)),
    "H20_BASE": (fitted_gpu, (0.04, 0.0016, 0.46, 0.0735, 0.001, 0.09, 0.0735)),
}


def loss(costs: Costs, cases: Sequence[Case]) -> float:
    """Returns the mean absolute log error of all metrics."""
    errors = []
    for case in cases:
        found = simulate(msgspec.structs.replace(case.scenario, seconds=min(SECONDS, case.scenario.seconds)), costs)
        errors += [abs(error(found[name], case.measured[name])) for name in METRICS if name in case.measured]
    return float(np.mean(errors))


def search(group: str, cases: Sequence[Case]) -> tuple[tuple[float, ...], float]:
    """Coordinate search over log parameters: a step in each direction, halved if neither improves."""
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
