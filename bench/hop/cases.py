"""What is measured, and what is found."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import StreamKind

RESULTS = Path(__file__).parents[1] / "results"
WARM_UP_STEPS = 10
"""Steps at the start that are not counted: connections, scripts and caches."""


class Case(Struct, frozen=True):
    """One writer process, one reader process, and `streams` live streams between them."""

    kind: StreamKind
    streams: int
    """All are written in every step."""
    frames: int
    """Per entry."""
    payload: int
    """Bytes per entry."""
    period: float
    """Seconds from step to step."""


def _codes(streams: int, period: float) -> Case:
    return Case(StreamKind.CODES, streams, frames=1, payload=32, period=period)


def _audio(streams: int, period: float) -> Case:
    return Case(StreamKind.AUDIO, streams, frames=4, payload=4 * FAMILY.frame_bytes, period=period)


# 512 streams at the rate that they play at; fewer more often, for more samples.
CASES = (
    *(_codes(1, 0.005), _codes(64, 0.02), _codes(512, 0.08)),
    *(_audio(1, 0.01), _audio(64, 0.04), _audio(512, 0.32)),
)


class Written(NamedTuple):
    """What a writer process tells."""

    put: list[float]
    """When each step was put, by the monotonic clock that all processes of a machine share."""
    cpu_seconds: float


class Read(NamedTuple):
    """What a reader process tells."""

    seen: list[tuple[int, float]]
    """Step, and when the event loop had its decoded entry; one for each entry."""
    cpu_seconds: float


class Hop(Struct, frozen=True):
    """One case, measured. Latency: from `put` to the decoded entry in the reader's event loop."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    entries: int
    """That were counted."""
    cpu_ms: dict[str, float]
    """CPU milliseconds of `writer`, `reader` and `redis` per entry."""
