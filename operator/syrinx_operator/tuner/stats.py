"""The test of paired differences: anytime-valid, by betting. Pure.

In a pair of periods the two arms change places, and a fair coin says who begins. Each pair gives one difference d: the
share of requests served well under the candidate, less that under the baseline. If the candidate changes nothing, the
coin alone gives d its sign: d is symmetric about 0, however bursty the requests, slow one replica or short the samples
are. The unit is the pair, never the request.

A gambler who stakes part of his money on 1 + tanh(scale * d), stake and scale chosen before the pair, then wins nothing
on average, so the chance that he ever multiplies it by 1 / alpha is alpha at most (Ville's inequality), no matter how
often we look. As tanh grows with d, the same holds for every d that is no better than such a coin. Wealth of this kind
for symmetric differences: de la Pena, "A general class of exponential inequalities for martingales and ratios", Annals
of Probability 1999; betting as a test: Waudby-Smith and Ramdas, JRSS-B 2024.
"""

from __future__ import annotations

import math

import msgspec

from syrinx_operator.resource.tuning_status import EProcess, PairedTest

ALPHA = 0.05
"""Probability of a false verdict of each kind, over all cells of a trial together."""
DEADBAND = 0.01
"""Share of requests by which a candidate must be better to be worth a change."""

_FIRST_SCALE = 0.1
"""What is taken for the usual size of a difference before the first pair."""
_FIRST_LEAN = 0.4
"""What a bet is taken to bring before the first pair."""
_MOST = 0.95
"""Part of the money that is risked on one pair at most."""


def update_test(test: PairedTest, difference: float) -> PairedTest:
    """The test after one more pair. Raises `ValueError` for a difference beyond [-1, 1]."""
    if not -1.0 <= difference <= 1.0:
        raise ValueError(f"a difference of shares lies between -1 and 1: {difference}")
    pairs = test.pairs + 1
    return msgspec.structs.replace(
        test,
        pairs=pairs,
        mean=test.mean + (difference - test.mean) / pairs,
        mean_square=test.mean_square + (difference**2 - test.mean_square) / pairs,
        better=_after(test, test.better, difference - DEADBAND),
        worse=_after(test, test.worse, -difference),
        futile=_after(test, test.futile, DEADBAND - difference),
    )


def threshold(cells: int) -> float:
    """Log of the evidence that a verdict needs when `cells` are tested: alpha is split over them."""
    return math.log(max(1, cells) / ALPHA)


def interval(test: PairedTest, alpha: float = ALPHA) -> tuple[float, float]:
    """A confidence sequence for the mean difference: asymptotic, for people to read; verdicts do not use it.

    Waudby-Smith et al., "Time-uniform central limit theory", Annals of Statistics 2024, tightest at about ten pairs.
    """
    if test.pairs == 0:
        return -1.0, 1.0
    n, rho2 = test.pairs, 0.5
    variance = max(test.mean_square - test.mean**2, 0.0) + _FIRST_SCALE**2 / n
    width = math.sqrt(variance * 2 * (n * rho2 + 1) / (n * n * rho2) * math.log(math.sqrt(n * rho2 + 1) / alpha))
    return max(-1.0, test.mean - width), min(1.0, test.mean + width)


def _after(test: PairedTest, before: EProcess, won: float) -> EProcess:
    """A bet after a pair; `won` is what it is about, positive if the bet was right."""
    n = test.pairs
    scale = 1.0 / math.sqrt((_FIRST_SCALE**2 + n * test.mean_square) / (n + 1))
    lean = (_FIRST_LEAN + n * before.mean_payoff) / (n + 1)
    stake = min(max(1.5 * lean, 0.0), _MOST)
    outcome = math.tanh(scale * won)
    return EProcess(
        log_wealth=before.log_wealth + math.log1p(stake * outcome),
        mean_payoff=before.mean_payoff + (outcome - before.mean_payoff) / (n + 1),
    )
