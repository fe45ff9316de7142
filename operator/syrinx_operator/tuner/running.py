"""While a trial runs: confirm, wash out, count, judge; stop at once what does harm. Pure."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from syrinx_operator.resource.tuning_status import Trial
from syrinx_operator.tuner import trial as trials
from syrinx_operator.tuner.builder import DecisionBuilder
from syrinx_operator.tuner.promotion import promote

TRIAL_LOOK = 10.0
"""Seconds between two looks at a trial at most."""
LONGEST_WAIT = 600.0
"""Seconds that a trial waits for a roll-out to end."""


def try_on(turn: DecisionBuilder) -> None:
    """One look at the trial under way."""
    trial = turn.trial()
    turn.requeue_after = min(turn.policy.interval, TRIAL_LOOK)
    wrong = trials.failure(trial, turn.evidence)
    if wrong:
        _end(turn, trials.Outcome("RolledBack", wrong))
    elif disturbed := _disturbed(turn, trial):
        _waste(turn, disturbed)
    elif trial.period.counting_since is None:
        _await_confirmation(turn)
    elif suspicion := trials.suspicion(turn.policy, trial, turn.evidence):
        _strike(turn, suspicion)
    elif turn.evidence.problem or turn.evidence.seconds < 0.5 * trial.period_seconds:
        _await_data(turn)
    elif trials.due(trial, turn.now):
        _count(turn)
    else:
        turn.requeue_after = min(
            turn.requeue_after, max(1.0, trial.period_seconds - turn.seconds_since(trial.period.counting_since))
        )


def _disturbed(turn: DecisionBuilder, trial: Trial) -> str:
    """Why this period says nothing of its arms; empty if nothing came between."""
    workers = turn.evidence.replicas_of(trial.knob.stage)
    if turn.evidence.disruption:
        return turn.evidence.disruption
    if tuple(worker.name for worker in workers)[:256] != trial.period.replicas:
        return "the replicas changed"
    if tuple(worker.restarts for worker in workers)[:256] != trial.period.restarts:
        return "a replica was started anew"
    if trial.period.counting_since is not None and not trials.confirmed(trial, workers):
        return "a replica has not kept its arm"
    return ""


def _await_confirmation(turn: DecisionBuilder) -> None:
    trial = turn.trial()
    workers = turn.evidence.replicas_of(trial.knob.stage)
    if workers and trials.confirmed(trial, workers):
        wash_out = trials.wash_out(turn.policy)
        period = msgspec.structs.replace(trial.period, counting_since=turn.now + timedelta(seconds=wash_out))
        turn.set(trial=msgspec.structs.replace(trial, period=period))
        turn.requeue_after = wash_out + 0.1
    elif turn.seconds_since(trial.period.start_time) > trials.CONFIRM_SECONDS:
        _waste(turn, "not every replica confirmed its settings")
    else:
        turn.requeue_after = 1.0


def _await_data(turn: DecisionBuilder) -> None:
    """No data is no verdict; but a candidate does not run unseen for long."""
    trial = turn.trial()
    begun = trial.period.counting_since or trial.period.start_time
    if turn.seconds_since(begun) > 2 * trial.period_seconds + trials.NO_DATA_SECONDS:
        _end(turn, trials.Outcome("Inconclusive", turn.evidence.problem or "no requests to compare"))
    elif not trials.due(trial, turn.now):
        turn.requeue_after = min(turn.requeue_after, max(1.0, trial.period_seconds - turn.seconds_since(begun)))


def _strike(turn: DecisionBuilder, suspicion: str) -> None:
    """The candidate is out of force at once. It is guilty if listeners are served as before then, or the next time.

    With replicas side by side the others are the proof; where storms are usual, only a second time is.
    """
    trial = turn.trial()
    if trial.design == "Parallel" or trial.aborted_periods >= 1:
        _end(turn, trials.Outcome("RolledBack", suspicion))
        return
    expected = max(0.0, trials.worst(trial) - trials.COLLAPSE / 2) if trial.aborts_to_reject == 1 else None
    turn.set(trial=msgspec.structs.replace(trial, aborted_periods=1, recovery_threshold=expected))
    turn.emit("CandidateSuspected", f"trial {trial.id}: {suspicion}")
    _count(turn)


def _count(turn: DecisionBuilder) -> None:
    trial = turn.trial()
    if not trial.period.all_replicas and trial.recovery_threshold is not None:
        if trials.recovered(trial, turn.evidence):
            _end(turn, trials.Outcome("RolledBack", "served worse under the candidate, and as before without it"))
            return
        trial = msgspec.structs.replace(trial, recovery_threshold=None)
    second = trial.period.index % 2 == 1
    trial = trials.counted(trial, turn.evidence, turn.evidence.replicas_of(trial.knob.stage), turn.now)
    turn.set(trial=trial)
    turn.requeue_after = 1.0
    outcome = trials.verdict(trial) if second else None
    if outcome is None:
        return
    longer = trials.extended(trial) if outcome.verdict == "Inconclusive" else None
    if longer is not None:
        turn.set(trial=longer)
        turn.emit("TrialExtended", f"trial {trial.id}: {outcome.reason}; on with longer periods")
    else:
        _end(turn, outcome)


def _waste(turn: DecisionBuilder, why: str) -> None:
    """This period says nothing: its pair begins anew, once nothing moves any more."""
    trial = turn.trial()
    workers = turn.evidence.replicas_of(trial.knob.stage)
    fewest = 2 if trial.design == "Parallel" else 1
    if trial.discarded_periods >= trials.MAX_DISCARDED or len(workers) < fewest:
        _end(turn, trials.Outcome("Inconclusive", f"too many periods could not be used: {why}"))
    elif not turn.evidence.disruption or trial.period.counting_since is not None:
        turn.set(trial=trials.wasted(trial, workers, turn.now))
        turn.requeue_after = 1.0
    elif turn.seconds_since(trial.period.start_time) > LONGEST_WAIT:
        _end(turn, trials.Outcome("Superseded", why))


def _end(turn: DecisionBuilder, outcome: trials.Outcome) -> None:
    """The verdict: what is compared is over, and what follows is in force from the next look on."""
    trial = turn.trial()
    turn.record_trial(trial, outcome.verdict, outcome.reason)
    turn.set(trial=None, last_change_time=turn.now)
    turn.requeue_after = 1.0
    if outcome.verdict == "Promoted":
        promote(turn, trial)
        return
    if outcome.verdict in ("RolledBack", "Inconclusive"):
        turn.quarantine(trial.candidate, outcome.reason, hours=4.0 if outcome.verdict == "RolledBack" else 1.0)
    turn.cool_down(failed=outcome.verdict == "RolledBack")
    turn.set_phase("Watching", f"trial {trial.id} is over: {outcome.verdict}")
