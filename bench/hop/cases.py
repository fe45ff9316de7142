"""The measured cases and the types of their results."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import StreamKind

RESULTS = Path(__file__).parents[1] / "results"
WARM_UP_STEPS = 10
"""Steps at the start that are not counted, while connections are opened, scripts loaded and caches filled."""


class Case(Struct, frozen=True):
    """One writer process, one reader process, and `streams` live streams between them."""

    kind: StreamKind
    streams: int
    """Every step writes to all of them."""
    frames: int
    """Frames per entry."""
    payload: int
    """Bytes per entry."""
    period: float
    """Seconds from step to step."""


def _codes(streams: int, period: float) -> Case:
    return Case(StreamKind.CODES, streams, frames=1, payload=32, period=period)


def _audio(streams: int, period: float) -> Case:
    return Case(StreamKind.AUDIO, streams, frames=4, payload=4 * FAMILY.frame_bytes, period=period)


# 512 streams at their playback rate; fewer streams more often, for more samples.
CASES = (
    *(_codes(1, 0.005), _codes(64, 0.02), _codes(512, 0.08)),
    *(_audio(1, 0.01), _audio(64, 0.04), _audio(512, 0.32)),
)


class Written(NamedTuple):
    """The result of a writer process."""

    put: list[float]
    """Time of each `put`, by the monotonic clock that all processes of a machine share."""
    cpu_seconds: float


class Read(NamedTuple):
    """The result of a reader process."""

    seen: list[tuple[int, float]]
    """For each entry: its step, and the time at which the event loop had the decoded entry."""
    cpu_seconds: float


class Hop(Struct, frozen=True):
    """The measurements of one case. Latency: from `put` to the decoded entry in the reader's event loop."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    entries: int
    """Number of entries that were counted."""
    cpu_ms: dict[str, float]
    """CPU milliseconds of `writer`, `reader` and `redis` per entry."""
