"""What a decision is made from: counts within a window, and what replicas are and do. Types only; `record` makes them.

What is not known is None or absent, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from syrinx_operator.resource.knobs import Identity, Stage


class Route(NamedTuple):
    """Who served a request, and what it was."""

    talker: str
    """Name of the replica."""
    codec: str
    task_type: str


class RouteStats(Struct, frozen=True, kw_only=True):
    """What listeners got within a window."""

    requests: int
    """Live requests that were heard."""
    within_objective: int
    """Of these, heard within the objective of their task type; all of them, if it has none."""
    underruns: int
    """Streams whose playback began to wait."""
    ttfa_histogram: Mapping[float, int] = {}
    """How many were heard within so many seconds, cumulative; the last edge is infinite."""


class FailedRequests(Struct, frozen=True, kw_only=True):
    """Requests of one task type that nobody was heard for."""

    refused: int = 0
    errors: int = 0


class StepStats(Struct, frozen=True):
    """Engine steps of one size."""

    count: int
    seconds: float
    """Of all of them together."""


class CallStats(Struct, frozen=True):
    """Decoder calls of one wanted shape."""

    rows: int
    frames: int
    """Per row."""
    result: str
    """hit, padded or eager, as in the metric."""
    count: int
    seconds: float
    """Of all of them together."""


class CaptureCost(Struct, frozen=True):
    """What it cost a codec to capture a shape."""

    rows: int
    frames: int
    seconds: float
    bytes: int


class ReplicaStats(Struct, frozen=True, kw_only=True):
    """A talker or codec replica."""

    name: str
    stage: Stage
    ready: bool
    restarts: int
    """Since it was made; or since this process started to watch it."""
    settings: Mapping[str, Any] | None = None
    """In force, by the names of `PUT /settings`; None if it did not answer."""
    supports_overrides: bool = True
    """Whether it takes settings for a limited time, as trials need."""
    errors: int | None = None
    """Requests that it ended with an error within the window."""
    frames: int | None = None
    """Made within the window."""
    steps: Mapping[int, StepStats] = {}
    """Within the window, by rows (rounded up to an edge of the metric)."""
    calls: tuple[CallStats, ...] = ()
    """Of a codec, within the window."""
    captures: tuple[CaptureCost, ...] = ()


class Evidence(Struct, frozen=True, kw_only=True):
    """What was seen, from `since` to `until`."""

    since: datetime
    until: datetime
    """Up to here all counters are known; as `since` if there are none."""
    identity: Identity
    problem: str = ""
    """Why there are no counters (missing, stale, error, reset); empty if there are. Then what follows is empty."""
    routes: Mapping[Route, RouteStats] = {}
    failed: Mapping[str, FailedRequests] = {}
    """By task type."""
    live_streams: int = 0
    """Live streams that were under way at some time: those that underruns may have happened to."""
    queue_age: float | None = None
    """Seconds that the oldest waiting request has waited, now."""
    replicas: tuple[ReplicaStats, ...] = ()
    """Known even when there are no counters."""
    disruption: str = ""
    """What else changes (a roll-out, scaling, a stage that is not ready): no time for trials. Empty if nothing does."""

    @property
    def seconds(self) -> float:
        """How much time the counters cover."""
        return max(0.0, (self.until - self.since).total_seconds())

    def replicas_of(self, stage: Stage) -> tuple[ReplicaStats, ...]:
        """The replicas of a stage, by name."""
        return tuple(sorted((each for each in self.replicas if each.stage is stage), key=lambda each: each.name))
