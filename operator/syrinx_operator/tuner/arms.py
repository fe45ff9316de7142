"""The arms of a trial: requests and engine work by arm, the paired differences, and the guardrails. Pure.

`strata[0]` of a trial is the stratum "all". The other strata are the task types. Guardrails stop a candidate before the
statistical test has a verdict.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import (
    ArmWork,
    Counts,
    Goal,
    Period,
    PeriodCounts,
    Stratum,
    StratumName,
    Trial,
)
from syrinx_operator.tuner.evidence import Evidence, ReplicaStats, Route, RouteStats, count_requests, ttfa_quantile
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.stats import update_test
from syrinx_stages.contract.family import TaskName

OVERALL: Literal["all"] = "all"
MIN_STRATUM_REQUESTS = 20
"""Requests below which a good ratio or a percentile of a task type is not used."""
COLLAPSE = 0.25
"""Drop of the good ratio in one period that aborts it."""
_MIN_PAIR_REQUESTS = 5
"""Requests per arm below which a pair says nothing about throughput or engine time."""


def runs_candidate(trial: Trial, replica: str) -> bool:
    """Returns whether a replica is in the candidate's arm."""
    return trial.period.all_replicas or replica in trial.period.candidate_replicas


def arm_routes(trial: Trial, evidence: Evidence, *, candidate: bool) -> Mapping[Route, RouteStats]:
    """Returns the routes of an arm. In a parallel trial only the two randomized groups count."""
    period = trial.period
    if trial.design == "Switchback":
        return evidence.routes if period.all_replicas == candidate else {}
    names = period.candidate_replicas if candidate else period.baseline_replicas
    at = Route._fields.index("talker" if trial.knob.stage is Stage.TALKER else "codec")
    return {route: stats for route, stats in evidence.routes.items() if route[at] in names}


def arm_counts(trial: Trial, evidence: Evidence, *, candidate: bool) -> dict[str, Counts]:
    """Returns an arm's request counts by task type. Only a switchback can attribute failed requests to an arm."""
    attributed = trial.design == "Switchback" and trial.period.all_replicas == candidate
    return count_requests(arm_routes(trial, evidence, candidate=candidate), evidence.failed if attributed else {})


def first_strata(evidence: Evidence) -> tuple[Stratum, ...]:
    """Returns the strata at the start of a trial, with the baseline's range from before it."""
    strata = [Stratum(task_type=OVERALL)]
    for stratum in _track_baseline((), evidence.counts, evidence.routes):
        if stratum.baseline_min_good is not None:
            # A window of minutes before the trial is smoother than one period.
            stratum = replace(stratum, baseline_min_good=max(0.0, stratum.baseline_min_good - COLLAPSE / 2))
        strata.append(stratum)
    return tuple(strata)


def count_period(trial: Trial, evidence: Evidence, next_period: Period) -> Trial:
    """Returns the trial after a complete period. The second period of a pair adds its difference to the tests."""
    candidate = arm_counts(trial, evidence, candidate=True)
    baseline = arm_counts(trial, evidence, candidate=False)
    pair: dict[str, PeriodCounts] = {counts.task_type: counts for counts in trial.first_period}
    for name in {*candidate, *baseline}:
        before = pair.get(name) or PeriodCounts(task_type=msgspec.convert(name, TaskName))
        pair[name] = replace(
            before,
            candidate=before.candidate + candidate.get(name, Counts()),
            baseline=before.baseline + baseline.get(name, Counts()),
        )
    counts = tuple(pair[name] for name in sorted(pair))
    work = trial.first_period_work + _period_work(trial, evidence)
    tracked = _track_baseline(trial.strata[1:], baseline, arm_routes(trial, evidence, candidate=False))
    trial = replace(trial, strata=(trial.strata[0], *tracked), period=next_period)
    if next_period.index % 2 == 1:
        return replace(trial, first_period=counts, first_period_work=work)
    return replace(
        trial,
        first_period=(),
        first_period_work=ArmWork(),
        strata=_add_pair(trial, counts, work),
        work=trial.work + work,
    )


def work_gain(goal: Goal, work: ArmWork) -> float | None:
    """Returns the candidate's gain relative to the larger arm, in [-1, 1]; None if it is unknown.

    Throughput compares the frames per replica second, EngineTime the engine time per frame.
    """
    numerators: tuple[float, float]
    denominators: tuple[float, float]
    if goal == "Throughput":
        numerators = work.candidate_frames, work.baseline_frames
        denominators = work.candidate_replica_seconds, work.baseline_replica_seconds
    else:
        numerators = work.baseline_busy_seconds, work.candidate_busy_seconds
        denominators = work.baseline_frames, work.candidate_frames
    if not all(denominators):
        return None
    better, worse = (one / other for one, other in zip(numerators, denominators, strict=True))
    return (better - worse) / max(better, worse) if better + worse else None


def _track_baseline(
    strata: Sequence[Stratum], counts: Mapping[str, Counts], routes: Mapping[Route, RouteStats]
) -> tuple[Stratum, ...]:
    """Returns the task types' strata with the baseline's worst good ratio and TTFA, which the guardrails compare to."""
    known: dict[str, Stratum] = {stratum.task_type: stratum for stratum in strata}
    for name, counted in counts.items():
        stratum = known.get(name) or Stratum(task_type=msgspec.convert(name, StratumName))
        if counted.requests >= MIN_STRATUM_REQUESTS:
            worst = 1.0 if stratum.baseline_min_good is None else stratum.baseline_min_good
            stratum = replace(stratum, baseline_min_good=min(counted.good_ratio, worst))
        slowest = max(_p95(routes, name) or 0.0, stratum.baseline_ttfa_p95 or 0.0)
        known[name] = replace(stratum, baseline_ttfa_p95=slowest or None)
    return tuple(known[name] for name in sorted(known))


def _p95(routes: Mapping[Route, RouteStats], task_type: str) -> float | None:
    requests = sum(stats.requests for route, stats in routes.items() if route.task_type == task_type)
    return ttfa_quantile(routes, task_type, 0.95) if requests >= MIN_STRATUM_REQUESTS else None


def _compared_replicas(trial: Trial, evidence: Evidence) -> Iterable[ReplicaStats]:
    """Returns the replicas of both arms. In a parallel trial a replica may be in neither of the two groups."""
    period, replicas = trial.period, evidence.replicas_of(trial.knob.stage)
    if trial.design == "Switchback":
        return replicas
    return (each for each in replicas if each.name in period.candidate_replicas + period.baseline_replicas)


def _period_work(trial: Trial, evidence: Evidence) -> ArmWork:
    work = ArmWork()
    for replica in _compared_replicas(trial, evidence):
        arm = "candidate" if runs_candidate(trial, replica.name) else "baseline"
        done: dict[str, Any] = {
            f"{arm}_frames": replica.frames or 0,
            f"{arm}_busy_seconds": sum(step.seconds for step in replica.steps.values()),
            f"{arm}_replica_seconds": evidence.seconds,
        }
        work += ArmWork(**done)
    return work


def _add_pair(trial: Trial, pair: Sequence[PeriodCounts], work: ArmWork) -> tuple[Stratum, ...]:
    """Returns the strata after a pair.

    The overall difference is the mean of the task types' differences, weighted by the requests of both arms; for the
    goals Throughput and EngineTime it is that of the work.
    """
    known: dict[str, Stratum] = {stratum.task_type: stratum for stratum in trial.strata}
    weight = weighted = 0.0
    for counts in pair:
        stratum = known.get(counts.task_type, Stratum(task_type=counts.task_type))
        if counts.candidate.requests and counts.baseline.requests:
            difference = _good_difference(trial, counts)
            requests = counts.candidate.requests + counts.baseline.requests
            weight, weighted = weight + requests, weighted + requests * difference
            stratum = replace(stratum, test=update_test(stratum.test, difference))
        known[counts.task_type] = _add_counts(stratum, counts.candidate, counts.baseline)
    candidate = sum((counts.candidate for counts in pair), Counts())
    baseline = sum((counts.baseline for counts in pair), Counts())
    overall = _add_counts(known.pop(OVERALL), candidate, baseline)
    if trial.goal == "GoodRequests":
        gain = weighted / weight if weight else None
    elif min(candidate.requests, baseline.requests) < _MIN_PAIR_REQUESTS:
        gain = None  # The load stopped within the pair, so the frames do not compare.
    else:
        gain = work_gain(trial.goal, work)
    if gain is not None:
        overall = replace(overall, test=update_test(overall.test, gain))
    return (overall, *(known[name] for name in sorted(known)))


def _add_counts(stratum: Stratum, candidate: Counts, baseline: Counts) -> Stratum:
    return replace(stratum, candidate=stratum.candidate + candidate, baseline=stratum.baseline + baseline)


def _good_difference(trial: Trial, counts: PeriodCounts) -> float:
    """Returns the difference of the good ratios.

    Parallel replicas share the load. One that accepts fewer requests has better ratios at the expense of the others,
    so there the difference is capped by the difference of the numbers of good requests.
    """
    candidate, baseline = counts.candidate, counts.baseline
    by_ratio = candidate.good_ratio - baseline.good_ratio
    if trial.design == "Switchback":
        return by_ratio
    by_number = (candidate.good - baseline.good) / max(candidate.requests, baseline.requests)
    if by_ratio * by_number <= 0:
        return 0.0
    return min(by_ratio, by_number, key=abs)


# Guardrails -------------------------------------------------------------------------------------------------------


def failure(trial: Trial, evidence: Evidence) -> str:
    """Returns why the candidate must be rolled back now: a restart or errors. Empty if it need not."""
    restarts = dict(zip(trial.period.replicas, trial.period.restarts, strict=False))
    errors = {True: 0, False: 0}
    for replica in _compared_replicas(trial, evidence):
        candidate = runs_candidate(trial, replica.name)
        # A replica that restarts under the candidate rejects it, whatever the cause.
        if candidate and replica.restarts > restarts.get(replica.name, replica.restarts):
            return f"{replica.name} restarted under the candidate"
        errors[candidate] += replica.errors or 0
    if not evidence.problem and errors[True] >= 3 and errors[True] > 2 * errors[False]:
        return f"{errors[True]} requests failed under the candidate"
    return ""


def suspected_harm(policy: Policy, trial: Trial, evidence: Evidence) -> str:
    """Returns why the candidate seems to do harm in this period; empty if it does not, or if data is missing."""
    if evidence.problem:
        return ""
    routes = arm_routes(trial, evidence, candidate=True)
    baseline = arm_counts(trial, evidence, candidate=False)
    strata: dict[str, Stratum] = {stratum.task_type: stratum for stratum in trial.strata}
    for task_type, counts in arm_counts(trial, evidence, candidate=True).items():
        stratum = strata.get(task_type)
        if stratum is None or stratum.baseline_min_good is None or counts.requests < MIN_STRATUM_REQUESTS:
            continue
        # A drop in both arms at once is not caused by the candidate.
        before = min(stratum.baseline_min_good, baseline.get(task_type, Counts()).good_ratio)
        now = counts.good_ratio
        noise = 2 * math.sqrt(before * (1 - before) / counts.requests)
        if before - now > COLLAPSE + noise:
            return f"{task_type}: {now:.0%} good requests, at least {before:.0%} under the baseline"
        objective, usual = policy.objectives.get(task_type), stratum.baseline_ttfa_p95
        p95 = _p95(routes, task_type) if before - now > noise else None
        if objective and usual and p95 and p95 > max(2 * usual, objective.seconds):
            return f"{task_type}: TTFA p95 {p95 * 1000:.0f} ms, {usual * 1000:.0f} ms under the baseline"
    return ""


def recovered(trial: Trial, evidence: Evidence) -> bool:
    """Returns whether the baseline reaches the recovery threshold after a suspected candidate was removed."""
    counts = sum(arm_counts(trial, evidence, candidate=False).values(), Counts())
    threshold = trial.recovery_threshold
    return threshold is not None and counts.requests >= MIN_STRATUM_REQUESTS and counts.good_ratio >= threshold


def recovery_threshold(trial: Trial) -> float:
    """Returns the good ratio that shows recovery: half a collapse below the baseline's worst, over all task types."""
    return max(0.0, (trial.baseline_min_good or 0.0) - COLLAPSE / 2)
