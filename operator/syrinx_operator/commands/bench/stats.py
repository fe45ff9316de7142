"""From what single requests met to what a load point says. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from syrinx_operator.commands.bench.playback import Playback


class Loop(StrEnum):
    """How requests are sent."""

    CLOSED = "closed"
    """A fixed number of clients; each sends its next request when its last has ended."""
    OPEN = "open"
    """Requests arrive at random at a given mean rate, whatever became of earlier ones."""


class Outcome(Struct, frozen=True):
    """What became of one request: what was heard of it, or the kind of its failure."""

    playback: Playback | None = None
    error: str | None = None


class Spread(Struct, frozen=True):
    """A distribution, in the unit of its values."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Point(Struct, frozen=True):
    """One load and what came of it. Times in seconds; None where no request gave a value."""

    loop: Loop
    load: float
    """Concurrent clients (closed loop), or requests per second (open loop)."""
    requests: int
    errors: dict[str, int]
    """Failed requests by kind."""
    wall_seconds: float
    """From the first request to the last byte."""
    audio_seconds: float
    audio_seconds_per_second: float
    requests_per_second: float
    """Completed ones."""
    first_byte: Spread | None
    first_playable: Spread | None
    ttfa: Spread | None
    gap: Spread | None
    """Between the pieces of a stream."""
    rtf: Spread | None
    silent: int
    """Completed requests without an audible sample."""
    underrun_share: float | None
    """Of completed requests, those whose playback had to wait."""
    underrun_seconds: float
    """Waited, in all."""


def quantile(values: Sequence[float], q: float) -> float:
    """The `q` quantile (0 to 1) of values in any order, linear between the two nearest ranks."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    rank = q * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def spread(values: Sequence[float]) -> Spread | None:
    """A distribution's summary; None if there are no values."""
    if not values:
        return None
    p50, p95, p99 = (quantile(values, q) for q in (0.5, 0.95, 0.99))
    return Spread(math.fsum(values) / len(values), p50, p95, p99, max(values))


def summarise(loop: Loop, load: float, outcomes: Sequence[Outcome], wall_seconds: float) -> Point:
    """What a load point says."""
    played = [outcome.playback for outcome in outcomes if outcome.playback is not None]
    audio = math.fsum(playback.duration for playback in played)
    return Point(
        loop=loop,
        load=load,
        requests=len(outcomes),
        errors=dict(sorted(Counter(outcome.error for outcome in outcomes if outcome.error is not None).items())),
        wall_seconds=wall_seconds,
        audio_seconds=audio,
        audio_seconds_per_second=audio / wall_seconds,
        requests_per_second=len(played) / wall_seconds,
        first_byte=spread([playback.first_byte for playback in played]),
        first_playable=spread([playback.first_playable for playback in played]),
        ttfa=spread([playback.ttfa for playback in played if playback.ttfa is not None]),
        gap=spread([gap for playback in played for gap in playback.gaps]),
        rtf=spread([playback.rtf for playback in played]),
        silent=sum(playback.ttfa is None for playback in played),
        underrun_share=sum(playback.underruns > 0 for playback in played) / len(played) if played else None,
        underrun_seconds=math.fsum(playback.underrun_seconds for playback in played),
    )
