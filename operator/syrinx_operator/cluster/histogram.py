"""What gateways counted within a window: raw counters, differenced gateway by gateway, with resets detected. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from syrinx_stages.contract.metrics import FIRST_BYTE, LIVE_STREAMS, TTFA, UNDERRUNS

Buckets = Mapping[float, float]
"""Cumulative counts of a histogram, by upper edge in seconds; the last edge is infinite."""

TTFA_SERIES = f"{TTFA.name}_bucket"
STARTED_SERIES = f"{FIRST_BYTE.name}_count"
SERIES = (TTFA_SERIES, STARTED_SERIES, UNDERRUNS.name, LIVE_STREAMS.name)
"""What is read, by the names it is exported under. The last one is there from a gateway's start."""


MAX_COUNT = 2**53
"""From here on a float no longer counts one by one."""


class Counters(Struct, frozen=True, kw_only=True):
    """What one gateway has counted since it started."""

    at: float
    """When, in seconds of a clock that is the same for all that is compared."""
    live: float = 0.0
    """Streams under way at that moment."""
    started: float = 0.0
    """Live streams whose first byte was handed out."""
    underruns: float = 0.0
    heard: Mapping[str, Buckets] = {}
    """Time to first audio of what was heard, by task type."""


class Counted(Struct, frozen=True, kw_only=True):
    """What all gateways counted within a window."""

    heard: Mapping[str, Buckets]
    streams: int
    """Live streams that were under way at some time."""
    underruns: int
    """Of those that ended, the ones that had to wait."""


class Sample(Struct, frozen=True):
    """One value of a series of `SERIES`; labels that were summed over are left out."""

    series: str
    task_type: str
    edge: float
    """Of a histogram's bucket; 0 for what is none."""
    value: float


def counters(samples: Iterable[Sample], at: float) -> Counters | None:
    """A gateway's counters; None if these are no gateway's. Raises `ValueError` for a value that is no count."""
    totals = dict.fromkeys(SERIES, 0.0)
    heard: dict[str, dict[float, float]] = {}
    found = False
    for sample in samples:
        if not (0 <= sample.value <= MAX_COUNT and sample.edge >= 0):
            raise ValueError(f"{sample.series} is no count: {sample.value}")
        found |= sample.series == LIVE_STREAMS.name
        if sample.series == TTFA_SERIES:
            buckets = heard.setdefault(sample.task_type, {})
            buckets[sample.edge] = buckets.get(sample.edge, 0.0) + sample.value
        elif sample.series in totals:
            totals[sample.series] += sample.value
    if not found:
        return None
    return Counters(
        at=at,
        live=totals[LIVE_STREAMS.name],
        started=totals[STARTED_SERIES],
        underruns=totals[UNDERRUNS.name],
        heard=heard,
    )


def counted(gateways: Iterable[Sequence[Counters]]) -> Counted:
    """What was counted between each gateway's first and last look. One look alone says nothing of a span of time."""
    heard: dict[str, dict[float, float]] = {}
    streams = underruns = 0.0
    for looks in gateways:
        if len(looks) > 1:
            streams += looks[0].live
        for before, after in pairwise(looks):
            base = Counters(at=before.at) if _was_reset(before, after) else before
            streams += after.started - base.started
            underruns += after.underruns - base.underruns
            for task_type, buckets in after.heard.items():
                total = heard.setdefault(task_type, {})
                earlier = base.heard.get(task_type, {})
                for edge, count in buckets.items():
                    total[edge] = total.get(edge, 0.0) + count - earlier.get(edge, 0.0)
    return Counted(heard=heard, streams=round(streams), underruns=round(underruns))


def total(buckets: Buckets) -> int:
    """How many were observed."""
    return round(buckets.get(math.inf, 0.0))


def within(buckets: Buckets, seconds: float) -> int | None:
    """How many were observed up to an edge; None if there is no such edge."""
    count = buckets.get(seconds)
    return None if count is None else round(count)


def quantile(buckets: Buckets, share: float) -> float | None:
    """The value in seconds that `share` of all stay below, interpolated within its bucket; None of nothing.

    One beyond the last finite edge is that edge: all that is known is that it is no less.
    """
    rank = share * buckets.get(math.inf, 0.0)
    if rank <= 0:
        return None
    low = below = 0.0
    for edge, count in sorted(buckets.items()):
        if count >= rank and count > below:
            return low if edge == math.inf else low + (edge - low) * (rank - below) / (count - below)
        low, below = edge, count
    return None


def _was_reset(before: Counters, after: Counters) -> bool:
    """Whether the process was started anew in between: then something has been counted less often than before."""
    if after.started < before.started or after.underruns < before.underruns:
        return True
    return any(
        after.heard.get(task_type, {}).get(edge, 0.0) < count
        for task_type, buckets in before.heard.items()
        for edge, count in buckets.items()
    )
