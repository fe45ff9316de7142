"""Shares of requests served well by half minute, and what follows from them. Pure."""

import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

HALF_MINUTE = 30.0
ENOUGH = 0.95
"""Part of another share from which on a share counts as equal."""
BEFORE = 4
"""Half minutes before a shift whose mean share counts as that before it."""
CERTAIN = 3.0
"""Standard errors that chance does not explain."""


class Request(Struct, frozen=True, array_like=True):
    """A request and how its client heard it."""

    at: float
    """Arrival, in seconds from the start."""
    ttfa: float | None
    """Seconds until the first audible sample; None if the request failed."""
    underruns: int = 0


def share(requests: Sequence[Request], objective: float) -> float:
    """Returns the share of requests that met the TTFA objective (seconds) without a gap; 1 without requests."""
    well = sum(each.ttfa is not None and each.ttfa <= objective and not each.underruns for each in requests)
    return round(well / len(requests), 4) if requests else 1.0


def by_half_minute(requests: Sequence[Request], seconds: float) -> list[list[Request]]:
    """Returns the requests that arrived in each half minute."""
    found: list[list[Request]] = [[] for _ in range(math.ceil(seconds / HALF_MINUTE))]
    for each in requests:
        found[int(each.at // HALF_MINUTE)].append(each)
    return found


def seconds_until(shares: Sequence[float], others: Sequence[float]) -> float | None:
    """Returns the start of the first two half minutes in a row in which shares are enough; None if there are none."""
    enough = [mine >= ENOUGH * other for mine, other in zip(shares, others, strict=True)]
    return next((HALF_MINUTE * at for at, both in enumerate(pairwise(enough)) if all(both)), None)


def seconds_after_shift(tuned: Sequence[float], defaults: Sequence[float], shift: int) -> float | None:
    """Returns the seconds from a shift, at half minute `shift`, until a share is as the defaults' and as before it."""
    before = tuned[max(0, shift - BEFORE) : shift]
    mean = sum(before) / len(before)
    return seconds_until(tuned[shift:], [max(each, mean) for each in defaults[shift:]])


def never_below(tuned: Sequence[float], untouched: Sequence[float], requests: Sequence[int]) -> bool:
    """Returns whether no half minute of a phase is worse than untouched by more than three standard errors.

    The error is the binomial one of the difference, or the root mean square of the differences between consecutive half
    minutes of the untouched setting, whichever is larger: queues make requests depend on each other.
    """
    steps = [(after - before) ** 2 for before, after in pairwise(untouched)]
    usual = math.sqrt(sum(steps) / len(steps)) if steps else 0.0

    def error(mine: float, other: float, count: int) -> float:
        pooled = (count * (mine + other) + 1) / (2 * count + 2)
        return max(usual, math.sqrt(2 * pooled * (1 - pooled) / max(1, count)))

    rows = zip(tuned, untouched, requests, strict=True)
    return all(other - mine <= CERTAIN * error(mine, other, count) for mine, other, count in rows)
