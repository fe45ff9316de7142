"""Advances the trial in progress: confirm, wash out, count, test, and stop on a guardrail. Pure."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from syrinx_operator.resource.tuning_status import Trial
from syrinx_operator.tuner.arms import count_period
from syrinx_operator.tuner.builder import DecisionBuilder
from syrinx_operator.tuner.guardrails import failure, recovered, recovery_threshold, suspected_harm
from syrinx_operator.tuner.promotion import promote
from syrinx_operator.tuner.trial import (
    CONFIRM_SECONDS,
    MAX_DISCARDED,
    NO_DATA_SECONDS,
    Outcome,
    confirmed,
    discard_period,
    due,
    extend,
    next_period,
    verdict,
    wash_out,
)

MAX_EVALUATION_SECONDS = 10.0
"""Longest time between two evaluations of a trial."""
MAX_DISRUPTION_SECONDS = 600.0
"""Time that a trial waits for a roll-out to end."""


def advance_trial(builder: DecisionBuilder) -> None:
    """Evaluates the trial in progress once."""
    trial = builder.trial
    builder.requeue_after = min(builder.policy.interval, MAX_EVALUATION_SECONDS)
    if failed := failure(trial, builder.evidence):
        _end(builder, Outcome("RolledBack", failed))
    elif disturbance := _disturbance(builder, trial):
        _discard(builder, disturbance)
    elif trial.period.counting_since is None:
        _await_confirmation(builder)
    elif harm := suspected_harm(builder.policy, trial, builder.evidence):
        _abort_period(builder, harm)
    elif builder.evidence.problem or builder.evidence.seconds < 0.5 * trial.period_seconds:
        _await_data(builder)
    elif due(trial, builder.now):
        _count(builder)
    else:
        _requeue_at_period_end(builder, trial)


def _disturbance(builder: DecisionBuilder, trial: Trial) -> str:
    """Returns why this period cannot be attributed to its arms; empty if it can."""
    replicas = builder.evidence.replicas_of(trial.knob.stage)
    if builder.evidence.disruption:
        return builder.evidence.disruption
    if tuple(replica.name for replica in replicas)[:256] != trial.period.replicas:
        return "the replicas changed"
    if tuple(replica.restarts for replica in replicas)[:256] != trial.period.restarts:
        return "a replica restarted"
    if trial.period.counting_since is not None and not confirmed(trial, replicas):
        return "a replica does not run the setting of its arm"
    return ""


def _await_confirmation(builder: DecisionBuilder) -> None:
    trial = builder.trial
    replicas = builder.evidence.replicas_of(trial.knob.stage)
    if replicas and confirmed(trial, replicas):
        seconds = wash_out(builder.policy)
        period = msgspec.structs.replace(trial.period, counting_since=builder.now + timedelta(seconds=seconds))
        builder.set(trial=msgspec.structs.replace(trial, period=period))
        builder.requeue_after = seconds + 0.1
    elif builder.seconds_since(trial.period.start_time) > CONFIRM_SECONDS:
        _discard(builder, "not every replica confirmed its settings")
    else:
        builder.requeue_after = 1.0


def _await_data(builder: DecisionBuilder) -> None:
    """Waits for missing data, but ends the trial before the candidate runs unobserved for long."""
    trial = builder.trial
    started = trial.period.counting_since or trial.period.start_time
    if builder.seconds_since(started) > 2 * trial.period_seconds + NO_DATA_SECONDS:
        _end(builder, Outcome("Inconclusive", builder.evidence.problem or "no requests to compare"))
    elif not due(trial, builder.now):
        _requeue_at_period_end(builder, trial)


def _requeue_at_period_end(builder: DecisionBuilder, trial: Trial) -> None:
    started = trial.period.counting_since or trial.period.start_time
    left = trial.period_seconds - builder.seconds_since(started)
    builder.requeue_after = min(builder.requeue_after, max(1.0, left))


def _abort_period(builder: DecisionBuilder, harm: str) -> None:
    """Removes a suspected candidate at once.

    It is rolled back if the baseline then recovers, or if it is suspected again. A parallel trial has a concurrent
    baseline, so there the first suspicion suffices. Where load is bursty, recovery alone proves nothing.
    """
    trial = builder.trial
    if trial.design == "Parallel" or trial.aborted_periods >= 1:
        _end(builder, Outcome("RolledBack", harm))
        return
    expected = recovery_threshold(trial) if trial.aborts_to_reject == 1 else None
    builder.set(trial=msgspec.structs.replace(trial, aborted_periods=1, recovery_threshold=expected))
    builder.emit("CandidateSuspected", f"trial {trial.id}: {harm}")
    _count(builder)


def _count(builder: DecisionBuilder) -> None:
    """Counts a complete period. After the second one of a pair, evaluates the test."""
    trial = builder.trial
    if not trial.period.all_replicas and trial.recovery_threshold is not None:
        if recovered(trial, builder.evidence):
            _end(builder, Outcome("RolledBack", "fewer good requests under the candidate, recovered without it"))
            return
        trial = msgspec.structs.replace(trial, recovery_threshold=None)
    pair_complete = trial.period.index % 2 == 1
    replicas = builder.evidence.replicas_of(trial.knob.stage)
    period = next_period(trial, replicas, trial.period.index + 1, builder.now)
    trial = count_period(trial, builder.evidence, period)
    builder.set(trial=trial)
    builder.requeue_after = 1.0
    outcome = verdict(trial) if pair_complete else None
    if outcome is None:
        return
    extended = extend(trial) if outcome.verdict == "Inconclusive" else None
    if extended is not None:
        builder.set(trial=extended)
        builder.emit("TrialExtended", f"trial {trial.id}: {outcome.reason}; continuing with longer periods")
    else:
        _end(builder, outcome)


def _discard(builder: DecisionBuilder, why: str) -> None:
    """Discards the current pair. It is repeated as soon as the disruption ends."""
    trial = builder.trial
    replicas = builder.evidence.replicas_of(trial.knob.stage)
    needed = 2 if trial.design == "Parallel" else 1
    if trial.discarded_periods >= MAX_DISCARDED or len(replicas) < needed:
        _end(builder, Outcome("Inconclusive", f"too many periods were discarded: {why}"))
    elif not builder.evidence.disruption or trial.period.counting_since is not None:
        builder.set(trial=discard_period(trial, replicas, builder.now))
        builder.requeue_after = 1.0
    elif builder.seconds_since(trial.period.start_time) > MAX_DISRUPTION_SECONDS:
        _end(builder, Outcome("Superseded", why))


def _end(builder: DecisionBuilder, outcome: Outcome) -> None:
    """Ends the trial. The resulting settings are in force from the next evaluation on."""
    trial = builder.trial
    builder.record_trial(trial, outcome.verdict, outcome.reason)
    builder.set(trial=None, last_change_time=builder.now)
    builder.requeue_after = 1.0
    if outcome.verdict == "Promoted":
        promote(builder, trial)
        return
    if outcome.verdict in ("RolledBack", "Inconclusive"):
        hours = 4.0 if outcome.verdict == "RolledBack" else 1.0
        builder.quarantine(trial.candidate, outcome.reason, hours=hours)
    builder.cool_down(failed=outcome.verdict == "RolledBack")
    builder.set_phase("Watching", f"trial {trial.id} ended: {outcome.verdict}")
