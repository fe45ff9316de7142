"""Inputs of a decision: counts within a time window, the state of the replicas, and what they show of the workload.

An unknown value is None or absent, never zero.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning import TtfaObjective
from syrinx_operator.resource.tuning_status import Counts, Workload
from syrinx_operator.tuner.policy import Policy
from syrinx_stages.contract.family import FAMILY

MIN_REQUESTS = 20
"""Smallest sample for a ratio."""
CONGESTED_UTILIZATION = 0.85
"""Utilization of a stage above which its queue couples the replicas."""
_MISS_Z = 2.0
"""Standard errors by which an objective must be missed."""
_RATE_HYSTERESIS = 0.75
"""Distance in buckets from the current rate bucket that starts a new one. Adjacent buckets meet at half a bucket."""
_MIX_SHIFT = 0.2
"""Change of a task type's share that counts as another mix."""


class Route(NamedTuple):
    """The names of the replicas that a request went through, and its task type."""

    talker: str
    codec: str
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


class Outcomes(Struct, frozen=True, kw_only=True):
    """Streamed requests of one task type and arm: those accepted, and those whose outcome became known.

    The fields are the outcomes of `syrinx_stream_outcomes_total`.
    """

    accepted: int = 0
    """Accepted or refused within the window. The outcome of some is known later."""
    well: int = 0
    late: int = 0
    interrupted: int = 0
    runaway: int = 0
    failed: int = 0
    refused: int = 0
    void: int = 0


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
    """Settings in force, named as in `PUT /settings/STAGE`; None if the replica did not reply."""
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
    outcomes: Mapping[tuple[str, str], Outcomes] = {}
    """By task type and arm; the arm is empty without a trial. Gateways of earlier versions report none."""
    completed: int = 0
    """Requests whose audio is complete."""
    lost_forwards: int = 0
    """Requests that a canary failed to answer, or that another gateway served because it could not be reached."""
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


def truncated_ratio(part: int, whole: int) -> float | None:
    """Returns a ratio truncated to four digits, so that a missed target never rounds up to it; None for 0 of 0."""
    return min(1.0, part * 10_000 // whole / 10_000) if whole else None


def slo_statuses(objectives: Iterable[TtfaObjective], evidence: Evidence) -> tuple[SloStatus, ...]:
    """Returns the status of each task type with requests or an objective."""
    targets, found = {objective.task_type: objective.target for objective in objectives}, []
    for task_type in FAMILY.task_types:
        routes = [stats for route, stats in evidence.routes.items() if route.task_type == task_type]
        requests, target = sum(stats.requests for stats in routes), targets.get(task_type)
        if not requests and target is None:
            continue
        within = sum(stats.within_objective for stats in routes)
        p95 = ttfa_quantile(evidence.routes, task_type, 0.95)
        found.append(
            SloStatus(
                task_type=task_type,
                requests=None if evidence.problem else requests,
                within=None if target is None else truncated_ratio(within, requests),
                ttfa_p95_ms=None if p95 is None else round(1000 * p95),
                met="Unknown" if target is None or not requests else "True" if within / requests >= target else "False",
            )
        )
    return tuple(found)


def missed_objective(policy: Policy, evidence: Evidence) -> str:
    """Describes an objective that is missed by two standard errors; empty if none is, or with too few requests."""
    for task_type, counts in sorted(evidence.counts.items()):
        objective = policy.objectives.get(task_type)
        if objective is None or counts.requests < MIN_REQUESTS:
            continue
        within = sum(s.within_objective for route, s in evidence.routes.items() if route.task_type == task_type)
        ratio = within / counts.requests
        if ratio + _MISS_Z * _standard_error(ratio, counts.requests) < objective.target:
            target = f"{objective.target:.0%} within {objective.seconds * 1000:.0f} ms"
            return f"{task_type}: {ratio:.0%} of the requests met the TTFA objective of {target}"
    requests = sum(stats.requests for stats in evidence.routes.values())
    if requests >= MIN_REQUESTS:
        ratio = min(1.0, sum(stats.underruns for stats in evidence.routes.values()) / requests)
        if ratio - _MISS_Z * _standard_error(ratio, requests) > policy.max_underrun_ratio:
            return f"{ratio:.0%} of the streams underran, objective {policy.max_underrun_ratio:.1%}"
    return ""


def overloaded(policy: Policy, evidence: Evidence) -> bool:
    """Returns whether demand exceeds capacity: requests are refused, or the oldest one has waited too long."""
    if any(failed.refused for failed in evidence.failed.values()):
        return True
    tightest = min((objective.seconds for objective in policy.objectives.values()), default=1.0)
    return evidence.queue_age is not None and evidence.queue_age > max(1.0, tightest)


def classify_workload(evidence: Evidence, before: Workload | None) -> Workload | None:
    """Returns the workload class, with hysteresis; `before` while there are too few requests."""
    counts, requests = evidence.counts, evidence.total.requests
    if requests < MIN_REQUESTS or not evidence.seconds:
        return before
    shares = {task_type: each.requests / requests for task_type, each in sorted(counts.items()) if each.requests}
    position = 2 * math.log2(evidence.request_rate)
    quarters = {task_type: round(4 * share) for task_type, share in shares.items()}
    mix, rate_bucket = ",".join(f"{name}:{count}" for name, count in quarters.items() if count), round(position)
    if before is not None:
        parts = (part.partition(":") for part in before.mix.split(",") if part)
        known = {name: int(count) / 4 for name, _, count in parts}
        if all(abs(shares.get(name, 0.0) - known.get(name, 0.0)) < _MIX_SHIFT for name in {*shares, *known}):
            mix = before.mix
        if abs(position - before.rate_bucket) < _RATE_HYSTERESIS:
            rate_bucket = before.rate_bucket
    return Workload(mix=mix, rate_bucket=rate_bucket)


def similar(one: Workload | None, other: Workload | None) -> bool:
    """Returns whether results of one workload hold for another: the same mix, and rates at most one bucket apart."""
    if one is None or other is None:
        return one == other
    return one.mix == other.mix and abs(one.rate_bucket - other.rate_bucket) <= 1


def _standard_error(ratio: float, requests: int) -> float:
    """Returns the standard error of a ratio, with add-one smoothing so that 0 and 1 are not exact."""
    smoothed = (ratio * requests + 1) / (requests + 2)
    return math.sqrt(smoothed * (1 - smoothed) / requests)
