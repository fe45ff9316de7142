"""Latency of each task type within a window, for the status."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_operator.resource.spec import TtfaObjective
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.workload import histogram, quantile
from syrinx_stages.contract.family import FAMILY, TaskName


def slo_statuses(objectives: Sequence[TtfaObjective], evidence: Evidence) -> tuple[SloStatus, ...]:
    """Returns the status of each task type with requests or an objective."""
    by_type = {each.task_type: each for each in objectives}
    requested = {route.task_type for route in evidence.routes}
    return tuple(
        _status(name, by_type.get(name), evidence) for name in FAMILY.task_types if name in requested | {*by_type}
    )


def _status(task_type: TaskName, objective: TtfaObjective | None, evidence: Evidence) -> SloStatus:
    served = [stats for route, stats in evidence.routes.items() if route.task_type == task_type]
    requests, within = sum(stats.requests for stats in served), sum(stats.within_objective for stats in served)
    p95 = quantile(histogram(served), 0.95)
    share = within / requests if requests and objective else None
    return SloStatus(
        task_type=task_type,
        requests=None if evidence.problem else requests,
        within=share,
        ttfa_p95_ms=None if p95 is None else round(1000 * p95),
        met="Unknown" if share is None or objective is None else "True" if share >= objective.target else "False",
    )
