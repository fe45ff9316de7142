"""Between two changes: counts, and starts a trial once an objective is missed for sure, look after look. Pure."""

from __future__ import annotations

from syrinx_operator.resource.tuning_status import Recommendation
from syrinx_operator.tuner import trial as trials
from syrinx_operator.tuner.builder import DecisionBuilder, format_value, in_force
from syrinx_operator.tuner.search import Proposal, propose
from syrinx_operator.tuner.workload import (
    MIN_REQUESTS,
    classify_workload,
    missed_objective,
    similar,
    summed,
    totals,
    with_failures,
)

BREACHES = 3
"""Looks in a row that must find an objective missed before anything is tried."""
TRIALS_A_DAY = 12
"""Under one workload."""
LEAST_RATE = 0.05
"""Requests per second below which a trial would take hours."""


def watch(turn: DecisionBuilder) -> None:
    """Counts, and starts a trial once an objective is missed for sure, look after look."""
    evidence = turn.evidence
    if evidence.problem:
        turn.set_phase("NoData", evidence.problem)
        return
    _follow_workload(turn)
    why = missed_objective(turn.policy, evidence)
    _count_breach(turn, bool(why))
    heard = summed(totals(evidence.routes).values()).requests
    if not heard and not why:
        turn.set_phase("NoData", "no live request was heard lately")
        return
    sure = turn.state.consecutive_breaches >= BREACHES
    proposal = propose(turn.policy, turn.state, evidence, in_force(turn.policy, turn.state), turn.now, missed=sure)
    if not sure and (proposal is None or why):
        turn.set(recommendation=None)
        turn.set_phase("Watching", "an objective seems to be missed" if why else _contentment(turn))
    elif proposal is None:
        turn.set(recommendation=None)
        turn.set_phase("Watching", f"{_without_numbers(why)}, but everything was tried under this workload for now")
    elif turn.policy.mode == "Recommend":
        _recommend(turn, proposal, why)
    else:
        _start(turn, proposal, why)


def _contentment(turn: DecisionBuilder) -> str:
    return "the objectives are met" if turn.policy.objectives else "no objective (spec.slo.ttfa): underruns only"


def _follow_workload(turn: DecisionBuilder) -> None:
    found = classify_workload(turn.evidence, turn.state.workload)
    if found != turn.state.workload:
        turn.set(workload=found, consecutive_breaches=0)


def _count_breach(turn: DecisionBuilder, breach: bool) -> None:
    """Breaches are counted once an interval, however often is looked."""
    if not breach:
        if turn.state.consecutive_breaches:
            turn.set(consecutive_breaches=0, last_breach_time=None)
        return
    last = turn.state.last_breach_time
    if turn.state.consecutive_breaches < BREACHES and (
        last is None or turn.seconds_since(last) >= 0.9 * turn.policy.interval
    ):
        turn.set(consecutive_breaches=turn.state.consecutive_breaches + 1, last_breach_time=turn.now)


def _recommend(turn: DecisionBuilder, proposal: Proposal, why: str) -> None:
    wanted = Recommendation(knob=proposal.knob, setting=proposal.setting, rationale=proposal.rationale[:256])
    what = f"{proposal.knob}: {format_value(wanted.setting, wanted.knob)} instead of "
    what += f"{format_value(turn.policy.requested, wanted.knob)} is worth a try"
    known = turn.state.recommendation
    if known is None or (known.knob, known.setting) != (wanted.knob, wanted.setting):
        turn.set(recommendation=wanted)
        turn.emit("Recommended", f"{what}: {why or 'less work'}; {proposal.rationale}")
    turn.set_phase("Watching", what)


def _start(turn: DecisionBuilder, proposal: Proposal, why: str) -> None:
    hindrance = _hindrance(turn, proposal)
    wanted = Recommendation(knob=proposal.knob, setting=proposal.setting, rationale=proposal.rationale[:256])
    known = turn.state.recommendation
    if known is None or (known.knob, known.setting) != (wanted.knob, wanted.setting):
        turn.set(recommendation=wanted)
    if hindrance:
        turn.set_phase("Watching", f"a trial of {proposal.knob} waits: {hindrance}")
        return
    current = in_force(turn.policy, turn.state)
    number = turn.state.trial_count + 1
    begun = trials.start_trial(turn.policy, number, proposal, current, turn.evidence, turn.now)
    turn.set(trial_count=number, trial=begun, recommendation=None, last_change_time=turn.now)
    what = f"{proposal.knob}: {format_value(current, proposal.knob)} against {format_value(proposal.setting, proposal.knob)}"  # noqa: E501
    turn.set_phase("Trial", what)
    turn.emit("TrialStarted", f"trial {number}, {what} ({begun.design}): {why or 'less work'}; {proposal.rationale}")
    turn.requeue_after = 1.0


def _hindrance(turn: DecisionBuilder, proposal: Proposal) -> str:
    """Why no trial can start now; empty if one can."""
    evidence, state, now = turn.evidence, turn.state, turn.now
    workers = evidence.replicas_of(proposal.knob.stage)
    if evidence.disruption:
        return evidence.disruption
    if state.next_trial_time is not None and now < state.next_trial_time:
        return f"cooling down until {state.next_trial_time:%H:%M:%S}"
    lately = [r for r in state.history if similar(r.workload, state.workload) and turn.seconds_since(r.time) < 86_400]
    if len(lately) >= TRIALS_A_DAY:
        return f"{TRIALS_A_DAY} trials within a day under this workload are enough"
    asked = summed(with_failures(totals(evidence.routes), evidence).values()).requests
    if asked < MIN_REQUESTS or asked / max(evidence.seconds, 1.0) < LEAST_RATE:
        return "too few requests"
    if not workers or not all(worker.ready and worker.settings is not None for worker in workers):
        return f"not every {proposal.knob.stage} is ready"
    if not all(worker.supports_overrides for worker in workers):
        return "the stages' image is too old: it takes no settings for a limited time"
    return ""


def _without_numbers(why: str) -> str:
    """The objective that is missed, without the share that changes from look to look."""
    return f"the objective of {why.split(':')[0]} is missed" if ":" in why else "playback waits too often"
