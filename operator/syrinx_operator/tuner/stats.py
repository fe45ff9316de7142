"""Anytime-valid test of paired differences by betting, and the confidence sequence shown beside it. Pure.

In a pair of periods the two arms swap, and a fair coin decides which one runs first. Each pair yields one difference
d, candidate minus baseline, in [-1, 1]. Under the null hypothesis that the candidate changes nothing, the coin makes
d symmetric about 0, however bursty the requests, unequal the replicas or small the samples. The experimental unit is
the pair, never the request.

The wealth process W_n = W_{n-1} * (1 + stake_n * tanh(scale_n * d_n)), with stake and scale chosen before pair n, is
a test martingale under that null. By Ville's inequality P(sup W_n >= 1/alpha) <= alpha, so the test may be evaluated
after every pair. tanh is increasing, so W_n is a supermartingale for every d that is stochastically smaller, which
makes the hypotheses one-sided.

Sources: V. de la Pena, "A general class of exponential inequalities for martingales and ratios", Annals of
Probability 1999 (symmetric differences); I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables
by betting", JRSS-B 2024 (testing by betting, predictable stakes).
"""

import math
from collections.abc import Mapping

import msgspec

from syrinx_operator.resource.tuning_status import EProcess, Goal, PairedTest

ALPHA = 0.05
"""Probability of a false verdict of each kind, over all strata of a trial."""
DEADBAND = 0.01
"""Smallest difference that is worth a change of settings."""

METRICS: Mapping[Goal, str] = {
    "GoodRequests": "good requests",
    "Throughput": "frames per replica second",
    "EngineTime": "engine time per frame",
}
"""The metric that a trial compares, by its goal."""

_PRIOR_SCALE = 0.1
"""Prior standard deviation of a difference, weighted as one pair."""
_PRIOR_PAYOFF = 0.4
"""Prior mean payoff, weighted as one pair."""
_MAX_STAKE = 0.95
"""Largest fraction of the wealth staked on one pair."""


def update_test(test: PairedTest, difference: float) -> PairedTest:
    """Returns the test after one more pair. Raises ValueError if the difference is outside of [-1, 1]."""
    if not -1.0 <= difference <= 1.0:
        raise ValueError(f"a paired difference must be in [-1, 1]: {difference}")
    pairs = test.pairs + 1
    return msgspec.structs.replace(
        test,
        pairs=pairs,
        mean=test.mean + (difference - test.mean) / pairs,
        mean_square=test.mean_square + (difference**2 - test.mean_square) / pairs,
        better=_update(test, test.better, difference - DEADBAND),
        worse=_update(test, test.worse, -difference),
        futile=_update(test, test.futile, DEADBAND - difference),
    )


def threshold(strata: int) -> float:
    """Returns the log wealth that a verdict needs: log(strata / ALPHA), a Bonferroni split over the strata."""
    return math.log(max(1, strata) / ALPHA)


def interval(test: PairedTest, alpha: float = ALPHA) -> tuple[float, float]:
    """Returns an asymptotic confidence sequence for the mean difference. It is for display; verdicts do not use it.

    Source: Waudby-Smith et al., "Time-uniform central limit theory and asymptotic confidence sequences", Annals of
    Statistics 2024. rho^2 = 0.5 makes it tightest at about ten pairs.
    """
    if test.pairs == 0:
        return -1.0, 1.0
    n, rho2 = test.pairs, 0.5
    variance = max(test.mean_square - test.mean**2, 0.0) + _PRIOR_SCALE**2 / n
    width = math.sqrt(variance * 2 * (n * rho2 + 1) / (n * n * rho2) * math.log(math.sqrt(n * rho2 + 1) / alpha))
    return max(-1.0, test.mean - width), min(1.0, test.mean + width)


def format_effect(test: PairedTest, goal: Goal) -> str:
    """Returns the mean effect and its 95 % confidence sequence as text.

    GoodRequests: difference of the good ratios in percentage points. Throughput and EngineTime compare two rates as
    (candidate - baseline) / larger, so they are shown as the equivalent ratio candidate / baseline.
    """
    lower, upper = interval(test)
    if goal == "GoodRequests":
        return f"{100 * test.mean:+.1f} points (95 %: {100 * lower:+.1f} to {100 * upper:+.1f})"
    low, high = sorted((_ratio(lower, goal), _ratio(upper, goal)))
    return f"{_ratio(test.mean, goal):.2f} times the baseline (95 %: {low:.2f} to {high:.2f})"


def _ratio(difference: float, goal: Goal) -> float:
    """Returns candidate / baseline for a difference relative to the larger arm. EngineTime counts savings."""
    signed = -difference if goal == "EngineTime" else difference
    if signed <= 0:
        return 1.0 + signed
    return 1.0 / (1.0 - signed) if signed < 1.0 else math.inf


def _update(test: PairedTest, before: EProcess, outcome: float) -> EProcess:
    """Returns the e-process after a pair. A positive `outcome` favors the hypothesis that is bet on."""
    n = test.pairs
    scale = 1.0 / math.sqrt((_PRIOR_SCALE**2 + n * test.mean_square) / (n + 1))
    expected = (_PRIOR_PAYOFF + n * before.mean_payoff) / (n + 1)
    stake = min(max(1.5 * expected, 0.0), _MAX_STAKE)
    payoff = math.tanh(scale * outcome)
    return EProcess(
        log_wealth=before.log_wealth + math.log1p(stake * payoff),
        mean_payoff=before.mean_payoff + (payoff - before.mean_payoff) / (n + 1),
    )
