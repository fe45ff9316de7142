"""How each task type did within a window, as people are told. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_operator.resource.spec import TtfaObjective
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.workload import histogram, quantile
from syrinx_stages.contract.family import FAMILY, TaskName


def slo_reports(wanted: Sequence[TtfaObjective], evidence: Evidence) -> tuple[SloStatus, ...]:
    """Of each task type that was asked for, or has an objective."""
    objectives = {each.task_type: each for each in wanted}
    heard = {route.task_type for route in evidence.routes}
    return tuple(
        _one(name, objectives.get(name), evidence) for name in FAMILY.task_types if name in heard | {*objectives}
    )


def _one(task_type: TaskName, objective: TtfaObjective | None, evidence: Evidence) -> SloStatus:
    served = [one for route, one in evidence.routes.items() if route.task_type == task_type]
    requests, within = sum(one.requests for one in served), sum(one.within_objective for one in served)
    p95 = quantile(histogram(served), 0.95)
    share = within / requests if requests and objective else None
    return SloStatus(
        task_type=task_type,
        requests=None if evidence.problem else requests,
        within=share,
        ttfa_p95_ms=None if p95 is None else round(1000 * p95),
        met="Unknown" if share is None or objective is None else "True" if share >= objective.target else "False",
    )
