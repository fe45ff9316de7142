"""Inputs of a decision: counts within a time window, and the state of the replicas. Types only; see `counters`.

An unknown value is None or absent, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from syrinx_operator.resource.knobs import Identity, Stage


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
    supports_overrides: bool = True
    """Whether it supports temporary settings, which trials need."""
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

    def replicas_of(self, stage: Stage) -> tuple[ReplicaStats, ...]:
        """Returns the replicas of a stage, sorted by name."""
        return tuple(sorted((each for each in self.replicas if each.stage is stage), key=lambda each: each.name))
