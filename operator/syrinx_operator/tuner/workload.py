"""What listeners ask for and get: totals, the workload's context, and whether objectives are missed. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from syrinx_operator.resource.knobs import Stage
from syrinx_operator.resource.tuning_status import Counts, Workload
from syrinx_operator.tuner.evidence import Evidence, Route, RouteStats
from syrinx_operator.tuner.policy import Objective, Policy

MIN_REQUESTS = 20
"""Requests from which a share says something."""
CONGESTED_UTILIZATION = 0.85
"""What is asked of a stage, as a part of what it can do, from which on its replicas share one fate."""
_SURE = 2.0
"""Standard errors by which an objective must be missed: noise alone is no reason to try anything."""
_BAND = 0.75
"""Steps that the load must be away from its band to count as another one; half a step is where bands meet."""
_MIX_SHIFT = 0.2
"""Change of a task type's share that counts as another mix."""


def totals(served: Mapping[Route, RouteStats], routes: Iterable[Route] | None = None) -> dict[str, Counts]:
    """What listeners got by task type, of all routes or of some."""
    found: dict[str, Counts] = {}
    for route in served if routes is None else routes:
        one = served[route]
        before = found.get(route.task_type, Counts())
        found[route.task_type] = Counts(
            requests=before.requests + one.requests,
            good=before.good + min(one.requests, max(0, one.within_objective - one.underruns)),
            underruns=before.underruns + one.underruns,
            errors=before.errors,
        )
    return found


def with_failures(counts: Mapping[str, Counts], evidence: Evidence) -> dict[str, Counts]:
    """With the requests that nobody was heard for, which nobody can be content with."""
    found = dict(counts)
    for task_type, turned in evidence.failed.items():
        before = found.get(task_type, Counts())
        lost = turned.refused + turned.errors
        if lost:
            found[task_type] = Counts(
                requests=before.requests + lost,
                good=before.good,
                underruns=before.underruns,
                errors=before.errors + turned.errors,
            )
    return found


def good_ratio(counts: Counts) -> float:
    """Share of requests served well; 1 of none."""
    return counts.good / counts.requests if counts.requests else 1.0


def summed(counts: Iterable[Counts]) -> Counts:
    """The sum."""
    items = list(counts)
    return Counts(
        requests=sum(each.requests for each in items),
        good=sum(each.good for each in items),
        underruns=sum(each.underruns for each in items),
        errors=sum(each.errors for each in items),
    )


def quantile(ttfa: Mapping[float, int], part: float) -> float | None:
    """The value in seconds that `part` of all stay below, interpolated in its bucket; None of nothing.

    One beyond the last finite edge is that edge.
    """
    rank = part * ttfa.get(math.inf, 0)
    low, below = 0.0, 0
    for edge, count in sorted(ttfa.items()):
        if count >= rank > below:
            return low if edge == math.inf else low + (edge - low) * (rank - below) / (count - below)
        low, below = edge, count
    return None


def histogram(served: Iterable[RouteStats]) -> dict[float, int]:
    """The sum of cumulative histograms."""
    total: dict[float, int] = {}
    for one in served:
        for edge, count in one.ttfa_histogram.items():
            total[edge] = total.get(edge, 0) + count
    return total


def missed_objective(policy: Policy, evidence: Evidence) -> str:
    """Which objective is missed for sure, in words; empty if none is, or if too little is known."""
    for task_type, counts in sorted(with_failures(totals(evidence.routes), evidence).items()):
        objective = policy.objectives.get(task_type)
        if objective is None or counts.requests < MIN_REQUESTS:
            continue
        in_time = sum(one.within_objective for route, one in evidence.routes.items() if route.task_type == task_type)
        part = in_time / counts.requests
        if part + _SURE * _error(part, counts.requests) < objective.target:
            return f"{task_type}: {part:.0%} heard in time, objective {objective.target:.0%} within {_ms(objective)}"
    everything = summed(totals(evidence.routes).values())
    if everything.requests >= MIN_REQUESTS:
        waited = min(1.0, everything.underruns / everything.requests)
        if waited - _SURE * _error(waited, everything.requests) > policy.max_underrun_ratio:
            return f"playback waits in {waited:.0%} of the streams, objective {policy.max_underrun_ratio:.1%}"
    return ""


def request_rate(evidence: Evidence) -> float:
    """Requests per second, those refused too."""
    asked = summed(with_failures(totals(evidence.routes), evidence).values()).requests
    return asked / evidence.seconds if evidence.seconds else 0.0


def busy(evidence: Evidence, stage: Stage) -> float:
    """Part of the time that a stage's replicas compute, on average; 0 if that is not known."""
    workers = [worker for worker in evidence.replicas_of(stage) if worker.steps]
    seconds = sum(step.seconds for worker in workers for step in worker.steps.values())
    return seconds / (evidence.seconds * len(workers)) if workers and evidence.seconds else 0.0


def overloaded(policy: Policy, evidence: Evidence) -> bool:
    """Whether more is asked for than can be done: requests are refused, or the oldest has waited too long already."""
    if any(turned.refused for turned in evidence.failed.values()):
        return True
    soonest = min((each.seconds for each in policy.objectives.values()), default=1.0)
    return evidence.queue_age is not None and evidence.queue_age > max(1.0, soonest)


def classify_workload(evidence: Evidence, before: Workload | None) -> Workload | None:
    """The workload; as before while it is near its borders, or while too little is known."""
    counts = with_failures(totals(evidence.routes), evidence)
    asked = summed(counts.values()).requests
    if asked < MIN_REQUESTS or not evidence.seconds:
        return before
    shares = {task_type: each.requests / asked for task_type, each in counts.items() if each.requests}
    steps = 2 * math.log2(asked / evidence.seconds)
    if before is not None:
        same_mix = all(abs(shares.get(name, 0.0) - old) < _MIX_SHIFT for name, old in _shares(before.mix, shares))
        load = before.rate_bucket if abs(steps - before.rate_bucket) < _BAND else round(steps)
        return Workload(mix=before.mix if same_mix else _mix(shares), rate_bucket=load)
    return Workload(mix=_mix(shares), rate_bucket=round(steps))


def similar(one: Workload | None, other: Workload | None) -> bool:
    """Whether what is known of one workload holds for another: the same mix, and a load not further than a band."""
    if one is None or other is None:
        return one == other
    return one.mix == other.mix and abs(one.rate_bucket - other.rate_bucket) <= 1


def _mix(shares: Mapping[str, float]) -> str:
    quarters = {name: round(4 * part) for name, part in sorted(shares.items())}
    return ",".join(f"{name}:{count}" for name, count in quarters.items() if count)


def _shares(mix: str, others: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    known = {name: int(quarters) / 4 for name, _, quarters in (each.partition(":") for each in mix.split(",") if each)}
    return ((name, known.get(name, 0.0)) for name in {*known, *others})


def _error(good: float, requests: int) -> float:
    """Standard error of a share, with a request more of each kind, so that 0 and 1 are not taken for certain."""
    smoothed = (good * requests + 1) / (requests + 2)
    return math.sqrt(smoothed * (1 - smoothed) / requests)


def _ms(objective: Objective) -> str:
    return f"{objective.seconds * 1000:.0f} ms"
