"""Guardrails of a trial: conditions that stop a candidate before the statistical test has a verdict. Pure."""

from __future__ import annotations

import math

from syrinx_operator.resource.tuning_status import Counts, Stratum, Trial
from syrinx_operator.tuner.arms import (
    COLLAPSE,
    MIN_STRATUM_REQUESTS,
    arm_counts,
    arm_routes,
    arm_setting,
    p95,
)
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.workload import good_ratio, summed


def failure(trial: Trial, evidence: Evidence) -> str:
    """Returns why the candidate must be rolled back now: a restart or errors. Empty if it need not."""
    return _restarted(trial, evidence) or ("" if evidence.problem else _errors(trial, evidence))


def suspected_harm(policy: Policy, trial: Trial, evidence: Evidence) -> str:
    """Returns why the candidate seems to do harm in this period; empty if it does not, or if data is missing."""
    if evidence.problem:
        return ""
    baseline = arm_counts(trial, evidence, candidate=False)
    strata: dict[str, Stratum] = {stratum.task_type: stratum for stratum in trial.strata}
    for task_type, counts in arm_counts(trial, evidence, candidate=True).items():
        stratum = strata.get(task_type)
        if stratum is None or stratum.baseline_min_good is None or counts.requests < MIN_STRATUM_REQUESTS:
            continue
        # A drop in both arms at once is not caused by the candidate.
        before = min(stratum.baseline_min_good, good_ratio(baseline.get(task_type, Counts())))
        now = good_ratio(counts)
        noise = 2 * math.sqrt(before * (1 - before) / counts.requests)
        if before - now > COLLAPSE + noise:
            return f"{task_type}: {now:.0%} good requests, at least {before:.0%} under the baseline"
        slow = _slow(policy, trial, evidence, stratum) if before - now > noise else ""
        if slow:
            return slow
    return ""


def recovered(trial: Trial, evidence: Evidence) -> bool:
    """Returns whether the baseline reaches the recovery threshold after a suspected candidate was removed."""
    counts = summed(arm_counts(trial, evidence, candidate=False).values())
    threshold = trial.recovery_threshold
    return threshold is not None and counts.requests >= MIN_STRATUM_REQUESTS and good_ratio(counts) >= threshold


def recovery_threshold(trial: Trial) -> float:
    """Returns the good ratio that shows recovery: half a collapse below the baseline's worst, over all task types."""
    worst = min((s.baseline_min_good for s in trial.strata if s.baseline_min_good is not None), default=0.0)
    return max(0.0, worst - COLLAPSE / 2)


def _restarted(trial: Trial, evidence: Evidence) -> str:
    """A replica that restarts under the candidate rejects it, whatever the cause."""
    before = dict(zip(trial.period.replicas, trial.period.restarts, strict=False))
    for replica in evidence.replicas_of(trial.knob.stage):
        restarted = replica.restarts > before.get(replica.name, replica.restarts)
        if restarted and arm_setting(trial, replica.name) == trial.candidate:
            return f"{replica.name} restarted under the candidate"
    return ""


def _errors(trial: Trial, evidence: Evidence) -> str:
    """Failed requests of the candidate's replicas, beyond those of the others and beyond chance."""
    errors = {True: 0, False: 0}
    for replica in evidence.replicas_of(trial.knob.stage):
        errors[arm_setting(trial, replica.name) == trial.candidate] += replica.errors or 0
    if errors[True] >= 3 and errors[True] > 2 * errors[False]:
        return f"{errors[True]} requests failed under the candidate"
    return ""


def _slow(policy: Policy, trial: Trial, evidence: Evidence, stratum: Stratum) -> str:
    objective = policy.objectives.get(stratum.task_type)
    baseline = stratum.baseline_ttfa_p95
    if objective is None or baseline is None:
        return ""
    slow = p95(arm_routes(trial, evidence, candidate=True), stratum.task_type)
    if slow is None or slow <= 2 * baseline or slow <= objective.seconds:
        return ""
    return f"{stratum.task_type}: TTFA p95 {slow * 1000:.0f} ms, {baseline * 1000:.0f} ms under the baseline"
