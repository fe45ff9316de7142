"""Error rates and power of the bets on a mean."""

import math
import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from syrinx_operator.resource.state.tuning_status import Bet
from syrinx_operator.tuner.betting import ALPHA, CERTAIN, MOST_STAKE, is_certain, updated
from syrinx_operator.tuner.trial import LOWEST

RUNS = 2000
OUTCOMES = 60
ERROR = 3 * (ALPHA * (1 - ALPHA) / RUNS) ** 0.5
"""Three standard errors of a ratio of `RUNS`."""


def first_certain(outcomes: Iterable[float], lowest: float = -1.0) -> int | None:
    """Returns the number of outcomes after which a bet is certain for the first time."""
    bet = Bet()
    for count, outcome in enumerate(outcomes, 1):
        bet = updated(bet, outcome, lowest)
        if is_certain(bet):
            return count
    return None


def drawn(outcome: Callable[[random.Random], float], seed: int) -> Iterator[float]:
    randoms = random.Random(seed)
    return (outcome(randoms) for _ in range(OUTCOMES))


def found(outcome: Callable[[random.Random], float], runs: int = RUNS, lowest: float = -1.0) -> list[int]:
    """Returns the outcomes needed by the runs that became certain, looking after each."""
    needed = (first_certain(drawn(outcome, seed), lowest) for seed in range(runs))
    return [count for count in needed if count is not None]


NULLS = {
    "fair coin": lambda r: r.choice((-1, 1)),
    "small and even": lambda r: r.uniform(-0.1, 0.1),
    "usually +5, rarely -60": lambda r: -0.6 if r.random() < 0.05 / 0.65 else 0.05,
    "usually +3, rarely -97": lambda r: -0.97 if r.random() < 0.03 else 0.03,
    "usually -5, rarely +60": lambda r: 0.6 if r.random() < 0.05 / 0.65 else -0.05,
    "storms on both sides": lambda r: r.choice((-1, 1)) * r.random() ** 6,
}


@pytest.mark.parametrize("name", NULLS)
def test_a_mean_of_zero_is_rarely_found_above_it_whatever_the_shape(name):
    assert len(found(NULLS[name])) / RUNS <= ALPHA + ERROR


@pytest.mark.parametrize("harm", [0.6, 0.9])
def test_rare_harm_beyond_the_lowest_outcome_that_counts_is_rarely_overlooked(harm):
    """The mean is negative, and that of what counts is not far above zero."""
    needed = found(lambda r: max(-harm, LOWEST) if r.random() < 0.1 else 0.05, lowest=LOWEST)
    assert len(needed) / RUNS <= 0.05


def test_wealth_is_a_martingale_under_a_fair_coin():
    bet = Bet()
    for outcome in (0.2, -0.1, 0.4, 0.05, -0.3):
        up, down = updated(bet, outcome, -1.0), updated(bet, -outcome, -1.0)
        mean = (math.exp(up.log_wealth) + math.exp(down.log_wealth)) / 2
        assert mean == pytest.approx(math.exp(bet.log_wealth))
        bet = up


@pytest.mark.parametrize(
    ("mean", "deviation", "lowest", "most"),
    [(0.9, 0.05, -1.0, 8), (0.3, 0.1, -1.0, 18), (0.3, 0.1, -0.5, 12), (0.1, 0.1, -0.5, 35), (0.05, 0.03, -0.5, 55)],
)
def test_a_gain_is_found_soon(mean, deviation, lowest, most):
    needed = found(lambda r: max(lowest, min(1.0, r.gauss(mean, deviation))), runs=200, lowest=lowest)
    assert len(needed) >= 190
    assert sorted(needed)[len(needed) // 2] <= most


def test_the_worst_outcome_never_costs_all():
    bet = Bet()
    for _ in range(OUTCOMES):
        bet = updated(bet, 0.5, -0.5)
    assert bet.log_wealth > 2 * CERTAIN
    assert updated(bet, -0.5, -0.5).log_wealth >= bet.log_wealth + math.log(1 - MOST_STAKE) - 1e-9
