"""Anytime-valid tests of a mean, by betting. Pure.

Someone bets on each outcome x that the mean is above zero: the wealth is multiplied by `1 + stake * x`, with a stake
that was chosen before. If the mean, given the past, is at most zero, the wealth is a supermartingale, whatever the
shape of the distribution: it ever exceeds 1/alpha with a probability of at most alpha (Ville). So a test may be looked
at all the time.

Source: I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 2024.
"""

import math

from syrinx_operator.resource.state.tuning_status import Bet

ALPHA = 0.03
"""Probability that a test ever finds what is not there."""
CERTAIN = math.log(1 / ALPHA)
"""Log wealth of a finding."""
MOST_STAKE = 0.95
"""Largest part of the wealth that an outcome may cost."""
_PRIOR_MEAN, PRIOR_SQUARE = 0.1, 0.04
"""Expected outcome and expected squared outcome before the first, as much as one outcome."""


def is_certain(bet: Bet) -> bool:
    """Returns whether the mean is above zero, but for a probability of `ALPHA`."""
    return bet.log_wealth >= CERTAIN


def updated(bet: Bet, outcome: float, lowest: float) -> Bet:
    """Returns the test after an outcome, of which `lowest` (negative) was the least possible one."""
    mean = (_PRIOR_MEAN + bet.count * bet.mean) / (bet.count + 1)
    square = (PRIOR_SQUARE + bet.count * bet.mean_square) / (bet.count + 1)
    stake = min(max(mean / square, 0.0), MOST_STAKE / -lowest)
    count = bet.count + 1
    return Bet(
        count=count,
        mean=bet.mean + (outcome - bet.mean) / count,
        mean_square=bet.mean_square + (outcome**2 - bet.mean_square) / count,
        log_wealth=bet.log_wealth + math.log1p(stake * outcome),
    )
