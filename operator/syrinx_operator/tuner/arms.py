"""Per-arm accounting of a trial: requests and engine work by arm, and the paired differences. Pure.

`strata[0]` of a trial is the stratum "all". The other strata are the task types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from syrinx_operator.resource.knobs import Setting, Stage
from syrinx_operator.resource.tuning_status import ArmWork, Counts, Period, PeriodCounts, Stratum, StratumName, Trial
from syrinx_operator.tuner.evidence import Evidence, Route, RouteStats
from syrinx_operator.tuner.stats import update_test
from syrinx_operator.tuner.workload import good_ratio, histogram, quantile, summed, totals, with_failures
from syrinx_stages.contract.family import TaskName

OVERALL: Literal["all"] = "all"
MIN_STRATUM_REQUESTS = 20
"""Requests below which a good ratio or a percentile of a task type is not used."""
COLLAPSE = 0.25
"""Drop of the good ratio in one period that aborts it."""
_MIN_PAIR_REQUESTS = 5
"""Requests per arm below which a pair says nothing about throughput or engine time."""


def arm_setting(trial: Trial, replica: str) -> Setting:
    """Returns the setting of a replica's arm."""
    return trial.candidate if _runs_candidate(trial, replica) else trial.baseline


def arm_routes(trial: Trial, evidence: Evidence, *, candidate: bool) -> dict[Route, RouteStats]:
    """Returns the routes of an arm. In a parallel trial only the two randomized groups count."""
    return {route: stats for route, stats in evidence.routes.items() if _in_arm(trial, route, candidate)}


def arm_counts(trial: Trial, evidence: Evidence, *, candidate: bool) -> dict[str, Counts]:
    """Returns an arm's request counts by task type. Only a switchback can attribute failed requests to an arm."""
    counts = totals(arm_routes(trial, evidence, candidate=candidate))
    if trial.design == "Switchback" and trial.period.all_replicas == candidate:
        return with_failures(counts, evidence)
    return counts


def p95(routes: Mapping[Route, RouteStats], task_type: str) -> float | None:
    """Returns the 95th percentile of TTFA in seconds, or None with too few requests."""
    merged = histogram(stats for route, stats in routes.items() if route.task_type == task_type)
    return quantile(merged, 0.95) if merged.get(math.inf, 0) >= MIN_STRATUM_REQUESTS else None


def first_strata(evidence: Evidence) -> tuple[Stratum, ...]:
    """Returns the strata at the start of a trial, with the baseline's range from before it."""
    strata = _track_baseline((), with_failures(totals(evidence.routes), evidence), evidence.routes)
    return (Stratum(task_type=OVERALL), *(_widened(stratum) for stratum in strata))


def count_period(trial: Trial, evidence: Evidence, next_period: Period) -> Trial:
    """Returns the trial after a complete period. The second period of a pair adds its difference to the tests."""
    candidate = arm_counts(trial, evidence, candidate=True)
    baseline = arm_counts(trial, evidence, candidate=False)
    before = {counts.task_type: counts for counts in trial.first_period}
    pair = tuple(
        PeriodCounts(
            task_type=msgspec.convert(name, TaskName),
            candidate=summed([candidate.get(name, Counts()), before[name].candidate if name in before else Counts()]),
            baseline=summed([baseline.get(name, Counts()), before[name].baseline if name in before else Counts()]),
        )
        for name in sorted({*candidate, *baseline, *before})
    )
    work = _add_work(trial.first_period_work, _period_work(trial, evidence))
    tracked = _track_baseline(trial.strata[1:], baseline, arm_routes(trial, evidence, candidate=False))
    trial = msgspec.structs.replace(trial, strata=(trial.strata[0], *tracked))
    if trial.period.index % 2 == 0:
        return msgspec.structs.replace(trial, first_period=pair, first_period_work=work, period=next_period)
    return msgspec.structs.replace(
        trial,
        first_period=(),
        first_period_work=ArmWork(),
        strata=_add_pair(trial, pair, _work_difference(trial, pair, work)),
        work=_add_work(trial.work, work),
        period=next_period,
    )


def engine_time_saving(work: ArmWork) -> float | None:
    """Returns (baseline - candidate) / larger of the engine time per frame, in [-1, 1]; None if it is unknown."""
    if not (work.candidate_frames and work.baseline_frames):
        return None
    candidate = work.candidate_busy_seconds / work.candidate_frames
    baseline = work.baseline_busy_seconds / work.baseline_frames
    return (baseline - candidate) / max(baseline, candidate) if baseline + candidate else None


def throughput_gain(work: ArmWork) -> float | None:
    """Returns (candidate - baseline) / larger of the frames per replica second, in [-1, 1]; None if unknown."""
    if not (work.candidate_replica_seconds and work.baseline_replica_seconds):
        return None
    candidate = work.candidate_frames / work.candidate_replica_seconds
    baseline = work.baseline_frames / work.baseline_replica_seconds
    return (candidate - baseline) / max(candidate, baseline) if candidate + baseline else None


def _runs_candidate(trial: Trial, replica: str) -> bool:
    return trial.period.all_replicas or replica in trial.period.candidate_replicas


def _in_arm(trial: Trial, route: Route, candidate: bool) -> bool:
    if trial.design == "Switchback":
        return trial.period.all_replicas == candidate
    replica = route.talker if trial.knob.stage is Stage.TALKER else route.codec
    return replica in (trial.period.candidate_replicas if candidate else trial.period.baseline_replicas)


def _widened(stratum: Stratum) -> Stratum:
    """Lowers the baseline's worst ratio: a window of minutes before the trial is smoother than one period."""
    if stratum.baseline_min_good is None:
        return stratum
    lowered = max(0.0, stratum.baseline_min_good - COLLAPSE / 2)
    return msgspec.structs.replace(stratum, baseline_min_good=lowered)


def _track_baseline(
    strata: Sequence[Stratum], counts: Mapping[str, Counts], routes: Mapping[Route, RouteStats]
) -> tuple[Stratum, ...]:
    """Returns the task types' strata with the baseline's worst good ratio and TTFA, which the guardrails compare to."""
    known: dict[str, Stratum] = {stratum.task_type: stratum for stratum in strata}
    for name, counted in counts.items():
        stratum = known.get(name) or Stratum(task_type=msgspec.convert(name, StratumName))
        if counted.requests >= MIN_STRATUM_REQUESTS:
            worst = min(good_ratio(counted), 1.0 if stratum.baseline_min_good is None else stratum.baseline_min_good)
            stratum = msgspec.structs.replace(stratum, baseline_min_good=worst)
        slowest = max(p95(routes, name) or 0.0, stratum.baseline_ttfa_p95 or 0.0)
        known[name] = msgspec.structs.replace(stratum, baseline_ttfa_p95=slowest or None)
    return tuple(known[name] for name in sorted(known))


def _period_work(trial: Trial, evidence: Evidence) -> ArmWork:
    """Returns the engine work of the tuned stage in one period."""
    frames, busy, seconds = {True: 0, False: 0}, {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for replica in evidence.replicas_of(trial.knob.stage):
        candidate = _runs_candidate(trial, replica.name)
        frames[candidate] += replica.frames or 0
        busy[candidate] += sum(step.seconds for step in replica.steps.values())
        seconds[candidate] += evidence.seconds
    return ArmWork(
        candidate_frames=frames[True],
        candidate_busy_seconds=busy[True],
        candidate_replica_seconds=seconds[True],
        baseline_frames=frames[False],
        baseline_busy_seconds=busy[False],
        baseline_replica_seconds=seconds[False],
    )


def _add_work(one: ArmWork, other: ArmWork) -> ArmWork:
    return ArmWork(**{name: getattr(one, name) + getattr(other, name) for name in ArmWork.__struct_fields__})


def _work_difference(trial: Trial, pair: Sequence[PeriodCounts], work: ArmWork) -> float | None:
    """Returns the pair's difference for the goals Throughput and EngineTime; None if it cannot be used."""
    if min(sum(c.candidate.requests for c in pair), sum(c.baseline.requests for c in pair)) < _MIN_PAIR_REQUESTS:
        return None  # The load stopped within the pair, so the frames do not compare.
    return {"GoodRequests": None, "Throughput": throughput_gain(work), "EngineTime": engine_time_saving(work)}[
        trial.goal
    ]


def _add_pair(trial: Trial, pair: Sequence[PeriodCounts], work_difference: float | None) -> tuple[Stratum, ...]:
    """Returns the strata after a pair.

    The overall difference is the mean of the task types' differences, weighted by the requests of both arms; for the
    goals Throughput and EngineTime it is `work_difference`.
    """
    known: dict[str, Stratum] = {stratum.task_type: stratum for stratum in trial.strata}
    weight = weighted = 0.0
    for counts in pair:
        stratum = known.get(counts.task_type, Stratum(task_type=counts.task_type))
        if counts.candidate.requests and counts.baseline.requests:
            difference = _good_difference(trial, counts)
            requests = counts.candidate.requests + counts.baseline.requests
            weight, weighted = weight + requests, weighted + requests * difference
            stratum = msgspec.structs.replace(stratum, test=update_test(stratum.test, difference))
        known[counts.task_type] = _add_counts(stratum, counts.candidate, counts.baseline)
    overall = _add_counts(known[OVERALL], summed(c.candidate for c in pair), summed(c.baseline for c in pair))
    if trial.goal == "GoodRequests":
        work_difference = weighted / weight if weight else None
    if work_difference is not None:
        overall = msgspec.structs.replace(overall, test=update_test(overall.test, work_difference))
    return (overall, *(known[name] for name in sorted(known) if name != OVERALL))


def _good_difference(trial: Trial, counts: PeriodCounts) -> float:
    """Returns the difference of the good ratios.

    Parallel replicas share the load. One that accepts fewer requests has better ratios at the expense of the others,
    so there the difference is capped by the difference of the numbers of good requests.
    """
    candidate, baseline = counts.candidate, counts.baseline
    by_ratio = good_ratio(candidate) - good_ratio(baseline)
    if trial.design == "Switchback":
        return by_ratio
    by_number = (candidate.good - baseline.good) / max(candidate.requests, baseline.requests)
    if by_ratio * by_number <= 0:
        return 0.0
    return min(by_ratio, by_number, key=abs)


def _add_counts(stratum: Stratum, candidate: Counts, baseline: Counts) -> Stratum:
    return msgspec.structs.replace(
        stratum,
        candidate=summed([stratum.candidate, candidate]),
        baseline=summed([stratum.baseline, baseline]),
    )
