"""Inputs of a decision: counts within a time window, the state of the replicas, and what they show of the workload.

An unknown value is None or absent, never zero.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from syrinx_operator.observed.arrivals import Change
from syrinx_operator.resource.fields.tuning import TtfaObjective
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.state.status import SloStatus
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.stages import WORKERS, Stage

MIN_REQUESTS = 20
"""Smallest sample for a ratio."""
SAME_LOAD = 1.25
"""Factor of the rate within which a result holds."""
WINDOW_SECONDS = 300.0
"""Time whose requests show how a load is served, if neither the load nor what serves it changes."""


class Objective(Struct, frozen=True):
    """The TTFA objective of a task type."""

    seconds: float
    target: float
    """Ratio of requests whose TTFA must be within `seconds`."""


class StreamStats(Struct, frozen=True, kw_only=True):
    """Requests of one task type that reached first audio within the window."""

    requests: int
    within_objective: int
    """Requests that met the TTFA objective of their task type; all of them if it has none."""
    underruns: int
    """Streams whose playback underran."""
    ttfa_histogram: Mapping[float, int] = {}
    """Cumulative count by upper bound in seconds; the last bound is infinite."""


class Outcomes(Struct, frozen=True, kw_only=True):
    """Streamed requests of one task type and arm: those accepted, and those whose outcome became known.

    The fields are the outcomes of `syrinx_stream_outcomes_total`.
    """

    accepted: int = 0
    """Accepted or refused within the window. The outcome of some is known later."""
    well: int = 0
    late: int = 0
    interrupted: int = 0
    incomplete: int = 0
    failed: int = 0
    refused: int = 0
    void: int = 0

    def __add__(self, other: "Outcomes") -> "Outcomes":
        return Outcomes(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    @property
    def bad(self) -> int:
        """Requests that were not served well."""
        return self.late + self.interrupted + self.incomplete + self.failed + self.refused

    @property
    def bad_ratio(self) -> float:
        """Ratio of bad requests so far; 0 without requests."""
        requests = self.accepted - self.void
        return min(1.0, self.bad / requests) if requests > 0 else 0.0


class StepStats(Struct, frozen=True):
    """Engine steps of one batch size, or other work of one kind."""

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
    frames: int | None = None
    """Frames generated within the window."""
    prefills: StepStats = StepStats(0, 0.0)
    """Prefills of a talker within the window."""
    prepares: Mapping[str, StepStats] = {}
    """Prompts that a talker made within the window, by task type."""
    steps: Mapping[int, StepStats] = {}
    """By rows, rounded up to a bucket of the metric; within the window."""
    calls: tuple[CallStats, ...] = ()
    """Decoder calls of a codec within the window."""
    captures: tuple[CaptureCost, ...] = ()

    @property
    def has_worked(self) -> bool:
        """Whether its engine has done anything within the window."""
        return bool(self.steps or self.calls or self.prepares or self.prefills.count)


class Evidence(Struct, frozen=True, kw_only=True):
    """Everything observed from `since` to `until`."""

    since: datetime
    until: datetime
    """All counters are known up to here. Equals `since` if there are none."""
    identity: Identity
    problem: str = ""
    """Why there are no counters (missing, stale, error, reset). If set, the fields below are empty."""
    outcomes: Mapping[tuple[str, str], Outcomes] = {}
    """By task type and arm."""
    burst: float = 1.0
    """Mean requests of an arrival, from how their number varies between snapshots."""
    change: Change | None = None
    """The last one of the load, within the window or not."""
    streams: Mapping[str, StreamStats] = {}
    """By task type."""
    failed: Mapping[str, int] = {}
    """Requests that were refused or failed, by task type."""
    completed: int = 0
    """Requests whose audio is complete."""
    lost_forwards: int = 0
    """Requests that a canary failed to answer, or that another gateway served because it could not be reached."""
    live_streams: int = 0
    """Streams that were live at some point of the window: the population of `underruns`."""
    replicas: tuple[ReplicaStats, ...] = ()
    """Known even without counters."""
    disruption: str = ""
    """Another change in progress (roll-out, scaling, unready stage) that prevents trials. Empty if there is none."""

    @property
    def seconds(self) -> float:
        """Length of the window in seconds."""
        return max(0.0, (self.until - self.since).total_seconds())

    @property
    def dispersion(self) -> float:
        """Variance of the number of requests in a time, as a ratio of its mean."""
        return 2 * self.burst - 1

    def of_arm(self, arm: str | None = None) -> Outcomes:
        """Returns the outcomes of an arm, over all task types; of all arms without one."""
        return sum((each for (_, name), each in self.outcomes.items() if arm is None or name == arm), Outcomes())

    @property
    def rates(self) -> dict[str, float]:
        """Streamed requests per second by task type."""
        found: dict[str, float] = {}
        for (task_type, _), each in self.outcomes.items():
            if each.accepted and self.seconds:
                found[task_type] = found.get(task_type, 0.0) + each.accepted / self.seconds
        return found

    @property
    def rate(self) -> float:
        """Streamed requests per second."""
        return sum(self.rates.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the replicas, talkers first."""
        return tuple(each.name for stage in WORKERS for each in self.replicas_of(stage))

    @property
    def restarts(self) -> int:
        """Restarts of all replicas."""
        return sum(each.restarts for each in self.replicas)

    def replicas_of(self, stage: Stage) -> tuple[ReplicaStats, ...]:
        """Returns the replicas of a stage, sorted by name."""
        return tuple(sorted((each for each in self.replicas if each.stage is stage), key=lambda each: each.name))


def alike(one: float, other: float) -> bool:
    """Returns whether two rates are the same load."""
    return one < other * SAME_LOAD and other < one * SAME_LOAD


def ttfa_quantile(evidence: Evidence, task_type: str, q: float) -> float | None:
    """Returns the q-quantile of a task type's TTFA in seconds; None without requests."""
    stats = evidence.streams.get(task_type)
    return None if stats is None else quantile(stats.ttfa_histogram, q)


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
        stats, target = evidence.streams.get(task_type), targets.get(task_type)
        requests = stats.requests if stats else 0
        if not requests and target is None:
            continue
        within = stats.within_objective if stats else 0
        p95 = ttfa_quantile(evidence, task_type, 0.95)
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
