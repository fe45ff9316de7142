"""How many listeners a service carries without a gap: doubled until it fails, then halved in between. Pure."""

from __future__ import annotations

from collections.abc import Generator

from syrinx_operator.commands.bench.stats import Point

TTFA_SECONDS = 0.5
"""A level at which one in twenty listeners waits longer than this between utterances is not carried."""
FINEST = 16
"""The search ends when the answer is known to one part in so many."""


def gap_free(heard: Point) -> bool:
    """Whether every utterance was spoken, soon enough and without a gap."""
    return heard.underrun_share == 0.0 and _soon(heard)


def nearly(heard: Point, share: float = 0.01) -> bool:
    """The same with gaps in less than this share of the utterances."""
    return heard.underrun_share is not None and heard.underrun_share < share and _soon(heard)


def _soon(heard: Point) -> bool:
    return not heard.errors and heard.ttfa is not None and heard.ttfa.p95 <= TTFA_SECONDS


def search(start: int, most: int) -> Generator[int, bool, int]:
    """Yields levels to try, takes whether each holds, returns the highest that does (0: none)."""
    low, high, level = 0, most + 1, start
    while level < high:
        if (yield level):
            low, level = level, min(2 * level, most) if level < most else high
        else:
            high = level
    while high - low > max(1, high // FINEST):
        level = (low + high) // 2
        if (yield level):
            low = level
        else:
            high = level
    return low
