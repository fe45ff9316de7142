"""Conclusions from the evidence: missed objectives, overload, and the workload class. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from syrinx_operator.resource.spec import TtfaObjective
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning_status import Workload
from syrinx_operator.tuner.evidence import Evidence, ttfa_quantile
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


def truncated_ratio(part: int, whole: int) -> float | None:
    """Returns a ratio truncated to four digits, so that a missed target never rounds up to it; None for 0 of 0."""
    return min(1.0, part * 10_000 // whole / 10_000) if whole else None


def slo_statuses(objectives: Iterable[TtfaObjective], evidence: Evidence) -> tuple[SloStatus, ...]:
    """Returns the status of each task type with requests or an objective."""
    targets = {objective.task_type: objective.target for objective in objectives}
    found = []
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
    shares = {task_type: each.requests / requests for task_type, each in counts.items() if each.requests}
    position = 2 * math.log2(evidence.request_rate)
    if before is None:
        return Workload(mix=_mix(shares), rate_bucket=round(position))
    known = _shares(before.mix)
    same_mix = all(abs(shares.get(name, 0.0) - known.get(name, 0.0)) < _MIX_SHIFT for name in {*shares, *known})
    same_rate = abs(position - before.rate_bucket) < _RATE_HYSTERESIS
    return Workload(
        mix=before.mix if same_mix else _mix(shares),
        rate_bucket=before.rate_bucket if same_rate else round(position),
    )


def similar(one: Workload | None, other: Workload | None) -> bool:
    """Returns whether results of one workload hold for another: the same mix, and rates at most one bucket apart."""
    if one is None or other is None:
        return one == other
    return one.mix == other.mix and abs(one.rate_bucket - other.rate_bucket) <= 1


def _mix(shares: Mapping[str, float]) -> str:
    quarters = {name: round(4 * share) for name, share in sorted(shares.items())}
    return ",".join(f"{name}:{count}" for name, count in quarters.items() if count)


def _shares(mix: str) -> dict[str, float]:
    return {name: int(quarters) / 4 for name, _, quarters in (each.partition(":") for each in mix.split(",") if each)}


def _standard_error(ratio: float, requests: int) -> float:
    """Returns the standard error of a ratio, with add-one smoothing so that 0 and 1 are not exact."""
    smoothed = (ratio * requests + 1) / (requests + 2)
    return math.sqrt(smoothed * (1 - smoothed) / requests)
