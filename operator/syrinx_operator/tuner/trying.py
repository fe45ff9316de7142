"""While a trial runs: confirm, wash out, count, judge; stop at once what does harm. Pure."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from syrinx_operator.resource.tuning_status import Trial
from syrinx_operator.tuner import trial as trials
from syrinx_operator.tuner.promoting import promote
from syrinx_operator.tuner.turn import Turn

TRIAL_LOOK = 10.0
"""Seconds between two looks at a trial at most."""
LONGEST_WAIT = 600.0
"""Seconds that a trial waits for a roll-out to end."""


def try_on(turn: Turn) -> None:
    """One look at the trial under way."""
    trial = turn.trial()
    turn.look_in = min(turn.policy.interval, TRIAL_LOOK)
    wrong = trials.failure(trial, turn.evidence)
    if wrong:
        _end(turn, trials.Outcome("RolledBack", wrong))
    elif disturbed := _disturbed(turn, trial):
        _waste(turn, disturbed)
    elif trial.period.counting is None:
        _await_confirmation(turn)
    elif suspicion := trials.suspicion(turn.policy, trial, turn.evidence):
        _strike(turn, suspicion)
    elif turn.evidence.problem or turn.evidence.seconds < 0.5 * trial.seconds:
        _await_data(turn)
    elif trials.due(trial, turn.now):
        _count(turn)
    else:
        turn.look_in = min(turn.look_in, max(1.0, trial.seconds - turn.age(trial.period.counting)))


def _disturbed(turn: Turn, trial: Trial) -> str:
    """Why this period says nothing of its arms; empty if nothing came between."""
    workers = turn.evidence.of(trial.knob.stage)
    if turn.evidence.moving:
        return turn.evidence.moving
    if tuple(worker.name for worker in workers)[:256] != trial.period.replicas:
        return "the replicas changed"
    if tuple(worker.restarts for worker in workers)[:256] != trial.period.restarts:
        return "a replica was started anew"
    if trial.period.counting is not None and not trials.confirmed(trial, workers):
        return "a replica has not kept its arm"
    return ""


def _await_confirmation(turn: Turn) -> None:
    trial = turn.trial()
    workers = turn.evidence.of(trial.knob.stage)
    if workers and trials.confirmed(trial, workers):
        wash_out = trials.wash_out(turn.policy)
        period = msgspec.structs.replace(trial.period, counting=turn.now + timedelta(seconds=wash_out))
        turn.set(trial=msgspec.structs.replace(trial, period=period))
        turn.look_in = wash_out + 0.1
    elif turn.age(trial.period.since) > trials.CONFIRM_SECONDS:
        _waste(turn, "not every replica confirmed its settings")
    else:
        turn.look_in = 1.0


def _await_data(turn: Turn) -> None:
    """No data is no verdict; but a candidate does not run unseen for long."""
    trial = turn.trial()
    begun = trial.period.counting or trial.period.since
    if turn.age(begun) > 2 * trial.seconds + trials.NO_DATA_SECONDS:
        _end(turn, trials.Outcome("Inconclusive", turn.evidence.problem or "no requests to compare"))
    elif not trials.due(trial, turn.now):
        turn.look_in = min(turn.look_in, max(1.0, trial.seconds - turn.age(begun)))


def _strike(turn: Turn, suspicion: str) -> None:
    """The candidate is out of force at once. It is guilty if listeners are served as before then, or the next time.

    With replicas side by side the others are the proof; where storms are usual, only a second time is.
    """
    trial = turn.trial()
    if trial.design == "Parallel" or trial.strikes >= 1:
        _end(turn, trials.Outcome("RolledBack", suspicion))
        return
    expected = max(0.0, trials.worst(trial) - trials.COLLAPSE / 2) if trial.patience == 1 else None
    turn.set(trial=msgspec.structs.replace(trial, strikes=1, suspected=expected))
    turn.tell("CandidateSuspected", f"trial {trial.id}: {suspicion}")
    _count(turn)


def _count(turn: Turn) -> None:
    trial = turn.trial()
    if not trial.period.everywhere and trial.suspected is not None:
        if trials.recovered(trial, turn.evidence):
            _end(turn, trials.Outcome("RolledBack", "served worse under the candidate, and as before without it"))
            return
        trial = msgspec.structs.replace(trial, suspected=None)
    second = trial.period.index % 2 == 1
    trial = trials.counted(trial, turn.evidence, turn.evidence.of(trial.knob.stage), turn.now)
    turn.set(trial=trial)
    turn.look_in = 1.0
    outcome = trials.verdict(trial) if second else None
    if outcome is None:
        return
    longer = trials.extended(trial) if outcome.verdict == "Inconclusive" else None
    if longer is not None:
        turn.set(trial=longer)
        turn.tell("TrialExtended", f"trial {trial.id}: {outcome.reason}; on with longer periods")
    else:
        _end(turn, outcome)


def _waste(turn: Turn, why: str) -> None:
    """This period says nothing: its pair begins anew, once nothing moves any more."""
    trial = turn.trial()
    workers = turn.evidence.of(trial.knob.stage)
    fewest = 2 if trial.design == "Parallel" else 1
    if trial.wasted >= trials.MOST_WASTED or len(workers) < fewest:
        _end(turn, trials.Outcome("Inconclusive", f"too many periods could not be used: {why}"))
    elif not turn.evidence.moving or trial.period.counting is not None:
        turn.set(trial=trials.wasted(trial, workers, turn.now))
        turn.look_in = 1.0
    elif turn.age(trial.period.since) > LONGEST_WAIT:
        _end(turn, trials.Outcome("Superseded", why))


def _end(turn: Turn, outcome: trials.Outcome) -> None:
    """The verdict: what is compared is over, and what follows is in force from the next look on."""
    trial = turn.trial()
    turn.record(trial, outcome.verdict, outcome.reason)
    turn.set(trial=None, changed=turn.now)
    turn.look_in = 1.0
    if outcome.verdict == "Promoted":
        promote(turn, trial)
        return
    if outcome.verdict in ("RolledBack", "Inconclusive"):
        turn.quarantine(trial.candidate, outcome.reason, hours=4.0 if outcome.verdict == "RolledBack" else 1.0)
    turn.cool_down(failed=outcome.verdict == "RolledBack")
    turn.phase("Watching", f"trial {trial.id} is over: {outcome.verdict}")
