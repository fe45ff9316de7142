"""Inputs of a decision: counts within a time window, and the state of the replicas. Pure; see `counters`.

An unknown value is None or absent, never zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from syrinx_operator.resource.knobs import Identity, Stage
from syrinx_operator.resource.tuning_status import Counts


class Route(NamedTuple):
    """The replicas that a request went through, and its task type."""

    talker: str
    """Replica name."""
    codec: str
    """Replica name."""
    task_type: str


class RouteStats(Struct, frozen=True, kw_only=True):
    """Requests of one route that reached first audio within the window."""

    requests: int
    within_objective: int
    """Requests that met the TTFA objective of their task type; all of them if it has none."""
    underruns: int
    """Streams whose playback underran."""
    ttfa_histogram: Mapping[float, int] = {}
    """Cumulative count by upper bound in seconds; the last bound is infinite."""


class FailedRequests(Struct, frozen=True, kw_only=True):
    """Requests of one task type that never reached first audio."""

    refused: int = 0
    errors: int = 0


class StepStats(Struct, frozen=True):
    """Engine steps of one batch size."""

    count: int
    seconds: float
    """Total over all steps."""


class CallStats(Struct, frozen=True):
    """Decoder calls of one requested shape."""

    rows: int
    frames: int
    """Per row."""
    result: str
    """hit, padded or eager, as in the metric."""
    count: int
    seconds: float
    """Total over all calls."""


class CaptureCost(Struct, frozen=True):
    """Cost of capturing a decoder shape."""

    rows: int
    frames: int
    seconds: float
    bytes: int


class ReplicaStats(Struct, frozen=True, kw_only=True):
    """State and counts of a talker or codec replica."""

    name: str
    stage: Stage
    ready: bool
    restarts: int
    """Since the replica was created, or since this process started to observe it."""
    settings: Mapping[str, Any] | None = None
    """Settings in force, named as in `PUT /settings`; None if the replica did not reply."""
    errors: int | None = None
    """Requests that it failed within the window."""
    frames: int | None = None
    """Frames generated within the window."""
    steps: Mapping[int, StepStats] = {}
    """By rows, rounded up to a bucket of the metric; within the window."""
    calls: tuple[CallStats, ...] = ()
    """Decoder calls of a codec within the window."""
    captures: tuple[CaptureCost, ...] = ()


class Evidence(Struct, frozen=True, kw_only=True):
    """Everything observed from `since` to `until`."""

    since: datetime
    until: datetime
    """All counters are known up to here. Equals `since` if there are none."""
    identity: Identity
    problem: str = ""
    """Why there are no counters (missing, stale, error, reset). If set, the fields below are empty."""
    routes: Mapping[Route, RouteStats] = {}
    failed: Mapping[str, FailedRequests] = {}
    """By task type."""
    live_streams: int = 0
    """Streams that were live at some point of the window: the population of `underruns`."""
    queue_age: float | None = None
    """Current age of the oldest waiting request in seconds."""
    replicas: tuple[ReplicaStats, ...] = ()
    """Known even without counters."""
    disruption: str = ""
    """Another change in progress (roll-out, scaling, unready stage) that prevents trials. Empty if there is none."""

    @property
    def seconds(self) -> float:
        """Length of the window in seconds."""
        return max(0.0, (self.until - self.since).total_seconds())

    @property
    def counts(self) -> dict[str, Counts]:
        """Requests by task type, including refused and failed ones."""
        return count_requests(self.routes, self.failed)

    @property
    def total(self) -> Counts:
        """All requests, including refused and failed ones."""
        return sum(self.counts.values(), Counts())

    @property
    def request_rate(self) -> float:
        """Requests per second, including refused and failed ones."""
        return self.total.requests / self.seconds if self.seconds else 0.0

    def replicas_of(self, stage: Stage) -> tuple[ReplicaStats, ...]:
        """Returns the replicas of a stage, sorted by name."""
        return tuple(sorted((each for each in self.replicas if each.stage is stage), key=lambda each: each.name))


def count_requests(
    routes: Mapping[Route, RouteStats], failed: Mapping[str, FailedRequests] | None = None
) -> dict[str, Counts]:
    """Returns the requests by task type. Refused and failed ones count as bad.

    A request is good if it met the TTFA objective of its task type and its stream did not underrun.
    """
    by_type: dict[str, Counts] = {}
    for route, stats in routes.items():
        good = min(stats.requests, max(0, stats.within_objective - stats.underruns))
        counts = Counts(requests=stats.requests, good=good, underruns=stats.underruns)
        by_type[route.task_type] = by_type.get(route.task_type, Counts()) + counts
    for task_type, lost in (failed or {}).items():
        counts = Counts(requests=lost.refused + lost.errors, errors=lost.errors)
        if counts.requests:
            by_type[task_type] = by_type.get(task_type, Counts()) + counts
    return by_type


def ttfa_quantile(routes: Mapping[Route, RouteStats], task_type: str, q: float) -> float | None:
    """Returns the q-quantile of a task type's TTFA in seconds; None without requests."""
    total = Counter[float]()
    for route, stats in routes.items():
        if route.task_type == task_type:
            total.update(stats.ttfa_histogram)
    return quantile(total, q)


def quantile(histogram: Mapping[float, int], q: float) -> float | None:
    """Returns the q-quantile in seconds, interpolated within its bucket; None for an empty histogram.

    A value beyond the last finite bound is reported as that bound.
    """
    rank = q * histogram.get(math.inf, 0)
    low, below = 0.0, 0
    for edge, count in sorted(histogram.items()):
        if count >= rank > below:
            return low if edge == math.inf else low + (edge - low) * (rank - below) / (count - below)
        low, below = edge, count
    return None
