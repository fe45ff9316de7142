"""Statistics of a load point from the outcomes of its requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from syrinx_operator.commands.bench.playback import Playback

Loop = Literal["open", "closed", "live"]
"""Poisson arrivals at a given rate; a fixed number of clients, each of which sends its next request when the last one
has ended; or listeners that play one utterance after the other in real time."""


class Outcome(Struct, frozen=True):
    """The outcome of a request: its playback, or the kind of its failure."""

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
    """A load and its measurements. Times in seconds; None if no request has a value."""

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
    """Completed requests per second."""
    first_byte: Spread | None
    first_playable: Spread | None
    ttfa: Spread | None
    gap: Spread | None
    """Times between chunks of a stream."""
    rtf: Spread | None
    silent: int
    """Completed requests without an audible sample."""
    underrun_share: float | None
    """Share of completed requests with underruns."""
    underrun_seconds: float
    """Total duration of underruns."""


def spread(values: Sequence[float]) -> Spread | None:
    """Returns the summary of a distribution; None without values."""
    if not values:
        return None
    p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99)).tolist()
    return Spread(math.fsum(values) / len(values), p50, p95, p99, max(values))


def summarize(loop: Loop, load: float, outcomes: Sequence[Outcome], wall_seconds: float) -> Point:
    """Returns the measurements of a load point."""
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
