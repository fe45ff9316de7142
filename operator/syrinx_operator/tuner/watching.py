"""Between two changes: counts, and starts a trial once an objective is missed for sure, look after look. Pure."""

from __future__ import annotations

from syrinx_operator.resource.tuning_status import Recommendation
from syrinx_operator.tuner import trial as trials
from syrinx_operator.tuner.search import Proposal, propose
from syrinx_operator.tuner.turn import Turn, in_force, words
from syrinx_operator.tuner.workload import LEAST_REQUESTS, alike, context, missed, together, totals, with_turned

BREACHES = 3
"""Looks in a row that must find an objective missed before anything is tried."""
TRIALS_A_DAY = 12
"""Under one workload."""
LEAST_RATE = 0.05
"""Requests per second below which a trial would take hours."""


def watch(turn: Turn) -> None:
    """Counts, and starts a trial once an objective is missed for sure, look after look."""
    evidence = turn.evidence
    if evidence.problem:
        turn.phase("NoData", evidence.problem)
        return
    _follow_workload(turn)
    why = missed(turn.policy, evidence)
    _count_breach(turn, bool(why))
    heard = together(totals(evidence.served).values()).requests
    if not heard and not why:
        turn.phase("NoData", "no live request was heard lately")
        return
    sure = turn.state.breaches >= BREACHES
    proposal = propose(turn.policy, turn.state, evidence, in_force(turn.policy, turn.state), turn.now, missed=sure)
    if not sure and (proposal is None or why):
        turn.set(recommendation=None)
        turn.phase("Watching", "an objective seems to be missed" if why else _contentment(turn))
    elif proposal is None:
        turn.set(recommendation=None)
        turn.phase("Watching", f"{_without_numbers(why)}, but everything was tried under this workload for now")
    elif turn.policy.mode == "Recommend":
        _recommend(turn, proposal, why)
    else:
        _start(turn, proposal, why)


def _contentment(turn: Turn) -> str:
    return "the objectives are met" if turn.policy.objectives else "no objective (spec.slo.ttfa): underruns only"


def _follow_workload(turn: Turn) -> None:
    found = context(turn.evidence, turn.state.context)
    if found != turn.state.context:
        turn.set(context=found, breaches=0)


def _count_breach(turn: Turn, breach: bool) -> None:
    """Breaches are counted once an interval, however often is looked."""
    if not breach:
        if turn.state.breaches:
            turn.set(breaches=0, breached=None)
        return
    last = turn.state.breached
    if turn.state.breaches < BREACHES and (last is None or turn.age(last) >= 0.9 * turn.policy.interval):
        turn.set(breaches=turn.state.breaches + 1, breached=turn.now)


def _recommend(turn: Turn, proposal: Proposal, why: str) -> None:
    wanted = Recommendation(knob=proposal.knob, setting=proposal.setting, why=proposal.why[:256])
    what = f"{proposal.knob}: {words(wanted.setting, wanted.knob)} instead of "
    what += f"{words(turn.policy.initial, wanted.knob)} is worth a try"
    known = turn.state.recommendation
    if known is None or (known.knob, known.setting) != (wanted.knob, wanted.setting):
        turn.set(recommendation=wanted)
        turn.tell("Recommended", f"{what}: {why or 'less work'}; {proposal.why}")
    turn.phase("Watching", what)


def _start(turn: Turn, proposal: Proposal, why: str) -> None:
    hindrance = _hindrance(turn, proposal)
    wanted = Recommendation(knob=proposal.knob, setting=proposal.setting, why=proposal.why[:256])
    known = turn.state.recommendation
    if known is None or (known.knob, known.setting) != (wanted.knob, wanted.setting):
        turn.set(recommendation=wanted)
    if hindrance:
        turn.phase("Watching", f"a trial of {proposal.knob} waits: {hindrance}")
        return
    current = in_force(turn.policy, turn.state)
    number = turn.state.trials + 1
    begun = trials.begin(turn.policy, number, proposal, current, turn.evidence, turn.now)
    turn.set(trials=number, trial=begun, recommendation=None, changed=turn.now)
    what = f"{proposal.knob}: {words(current, proposal.knob)} against {words(proposal.setting, proposal.knob)}"
    turn.phase("Trial", what)
    turn.tell("TrialStarted", f"trial {number}, {what} ({begun.design}): {why or 'less work'}; {proposal.why}")
    turn.look_in = 1.0


def _hindrance(turn: Turn, proposal: Proposal) -> str:
    """Why no trial can start now; empty if one can."""
    evidence, state, now = turn.evidence, turn.state, turn.now
    workers = evidence.of(proposal.knob.stage)
    if evidence.moving:
        return evidence.moving
    if state.next_trial is not None and now < state.next_trial:
        return f"cooling down until {state.next_trial:%H:%M:%S}"
    lately = [r for r in state.history if alike(r.context, state.context) and turn.age(r.at) < 86_400]
    if len(lately) >= TRIALS_A_DAY:
        return f"{TRIALS_A_DAY} trials within a day under this workload are enough"
    asked = together(with_turned(totals(evidence.served), evidence).values()).requests
    if asked < LEAST_REQUESTS or asked / max(evidence.seconds, 1.0) < LEAST_RATE:
        return "too few requests"
    if not workers or not all(worker.ready and worker.settings is not None for worker in workers):
        return f"not every {proposal.knob.stage} is ready"
    if not all(worker.can_try for worker in workers):
        return "the stages' image is too old: it takes no settings for a limited time"
    return ""


def _without_numbers(why: str) -> str:
    """The objective that is missed, without the share that changes from look to look."""
    return f"the objective of {why.split(':')[0]} is missed" if ":" in why else "playback waits too often"
