"""What the tuner says of itself in a sentence: what is known, what was tried last and brought, and what comes next."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from syrinx_operator.observed.evidence import WINDOW_SECONDS
from syrinx_operator.resource.knobs import format_change
from syrinx_operator.resource.state.tuning_status import State, TrialRecord, Verdict
from syrinx_operator.tuner.trial import MAX_TRIAL_SECONDS

_ENDED: Mapping[Verdict, str] = {
    "Promoted": "was promoted",
    "RolledBack": "was rolled back",
    "Inconclusive": "showed no difference",
    "Superseded": "was ended",
    "Regressed": "was rolled back",
}


def account(state: State) -> str:
    """Returns the sentence. Where nothing is tuned, it says why."""
    if state.phase in ("Off", "Paused", "NoData"):
        return state.message
    tried = _tried(state.history[-1]) if state.history else "nothing was tried yet"
    return "; ".join((state.message, tried, _following(state)))


def _tried(record: TrialRecord) -> str:
    change = f"change {record.id} ({record.before} -> {record.after})"
    if record.verdict == "Promoted" and record.difference is not None:
        return f"{change} brought {100 * record.difference:+.1f} points"
    return f"{change} {_ENDED[record.verdict]}: {record.reason}"


def _following(state: State) -> str:
    if (trial := state.trial) is not None:
        change, end = format_change(trial.baseline, trial.candidate), _at(trial.start_time, MAX_TRIAL_SECONDS)
        return f"trial {trial.id} ({change}) goes on until it is decided, at most until {end}"
    if (soak := state.soak) is not None:
        return f"change {soak.id} is in force, and is watched until {_at(soak.start_time, WINDOW_SECONDS)}"
    if state.recommendation is not None:
        return "the recommended change waits for mode Auto"
    if state.next_plan_time is not None:
        return f"the model looks for a better setting from {_at(state.next_plan_time)} on, if more than 1% are bad"
    return "the model looks for a better setting once more than 1% of the requests are bad"


def _at(moment: datetime, later_seconds: float = 0.0) -> str:
    return f"{moment + timedelta(seconds=later_seconds):%H:%M} UTC"
