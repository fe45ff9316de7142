"""Phase without a change in progress: counts objective breaches and starts the next trial. Pure."""

from __future__ import annotations

from syrinx_operator.resource.tuning_status import Recommendation
from syrinx_operator.tuner.builder import DecisionBuilder, format_value, in_force
from syrinx_operator.tuner.search import Proposal, propose
from syrinx_operator.tuner.trial import start_trial
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
"""Consecutive evaluations that must find an objective missed before a trial starts."""
TRIALS_A_DAY = 12
"""Limit per workload."""
MIN_RATE = 0.05
"""Requests per second. Below this rate a trial would take hours."""


def monitor(builder: DecisionBuilder) -> None:
    """Evaluates the objectives. Starts or recommends a trial after `BREACHES` consecutive misses."""
    evidence = builder.evidence
    if evidence.problem:
        builder.set_phase("NoData", evidence.problem)
        return
    workload = classify_workload(evidence, builder.state.workload)
    if workload != builder.state.workload:
        builder.set(workload=workload, consecutive_breaches=0)
    breach = missed_objective(builder.policy, evidence)
    _count_breach(builder, bool(breach))
    if not breach and not summed(totals(evidence.routes).values()).requests:
        builder.set_phase("NoData", "no streaming request in the evaluation window")
        return
    sustained = builder.state.consecutive_breaches >= BREACHES
    current = in_force(builder.policy, builder.state)
    proposal = propose(builder.policy, builder.state, evidence, current, builder.now, missed=sustained)
    if not sustained and (proposal is None or breach):
        builder.set(recommendation=None)
        builder.set_phase("Watching", "an objective seems to be missed" if breach else _all_met(builder))
    elif proposal is None:
        builder.set(recommendation=None)
        builder.set_phase("Watching", f"{_without_numbers(breach)}, but every setting was tried under this workload")
    elif builder.policy.mode == "Recommend":
        _recommend(builder, proposal, breach)
    else:
        _start(builder, proposal, breach)


def _all_met(builder: DecisionBuilder) -> str:
    if builder.policy.objectives:
        return "the objectives are met"
    return "no objective (spec.slo.ttfa); only underruns are evaluated"


def _count_breach(builder: DecisionBuilder, breach: bool) -> None:
    """Counts a breach at most once per interval, because evaluations may come more often."""
    state = builder.state
    if not breach:
        if state.consecutive_breaches:
            builder.set(consecutive_breaches=0, last_breach_time=None)
        return
    last = state.last_breach_time
    if state.consecutive_breaches < BREACHES and (
        last is None or builder.seconds_since(last) >= 0.9 * builder.policy.interval
    ):
        builder.set(consecutive_breaches=state.consecutive_breaches + 1, last_breach_time=builder.now)


def _set_recommendation(builder: DecisionBuilder, proposal: Proposal) -> bool:
    """Stores a proposal as the recommendation. Returns whether it is a new one."""
    known = builder.state.recommendation
    if known is not None and (known.knob, known.setting) == (proposal.knob, proposal.setting):
        return False
    builder.set(
        recommendation=Recommendation(knob=proposal.knob, setting=proposal.setting, rationale=proposal.rationale[:256])
    )
    return True


def _recommend(builder: DecisionBuilder, proposal: Proposal, breach: str) -> None:
    before = format_value(builder.policy.requested, proposal.knob)
    what = f"try {proposal.knob} {before} -> {format_value(proposal.setting, proposal.knob)}"
    if _set_recommendation(builder, proposal):
        builder.emit("Recommended", f"{what}: {breach or 'less engine time'}; {proposal.rationale}")
    builder.set_phase("Watching", what)


def _start(builder: DecisionBuilder, proposal: Proposal, breach: str) -> None:
    _set_recommendation(builder, proposal)
    blocker = _blocker(builder, proposal)
    if blocker:
        builder.set_phase("Watching", f"a trial of {proposal.knob} waits: {blocker}")
        return
    current = in_force(builder.policy, builder.state)
    number = builder.state.trial_count + 1
    trial = start_trial(builder.policy, number, proposal, current, builder.evidence, builder.now)
    builder.set(trial_count=number, trial=trial, recommendation=None, last_change_time=builder.now)
    before, after = format_value(current, proposal.knob), format_value(proposal.setting, proposal.knob)
    what = f"{proposal.knob} {before} -> {after}"
    builder.set_phase("Trial", what)
    reason = f"{breach or 'less engine time'}; {proposal.rationale}"
    builder.emit("TrialStarted", f"trial {number}, {what} ({trial.design}): {reason}")
    builder.requeue_after = 1.0


def _blocker(builder: DecisionBuilder, proposal: Proposal) -> str:
    """Returns why no trial can start now; empty if one can."""
    evidence, state, now = builder.evidence, builder.state, builder.now
    replicas = evidence.replicas_of(proposal.knob.stage)
    if evidence.disruption:
        return evidence.disruption
    if state.next_trial_time is not None and now < state.next_trial_time:
        return f"cooling down until {state.next_trial_time:%H:%M:%S}"
    last_day = [
        record
        for record in state.history
        if similar(record.workload, state.workload) and builder.seconds_since(record.time) < 86_400
    ]
    if len(last_day) >= TRIALS_A_DAY:
        return f"the limit of {TRIALS_A_DAY} trials a day under this workload is reached"
    requests = summed(with_failures(totals(evidence.routes), evidence).values()).requests
    if requests < MIN_REQUESTS or requests / max(evidence.seconds, 1.0) < MIN_RATE:
        return "too few requests"
    if not replicas or not all(replica.ready and replica.settings is not None for replica in replicas):
        return f"not every {proposal.knob.stage} is ready"
    if not all(replica.supports_overrides for replica in replicas):
        return "the stages' image is too old: it does not support temporary settings"
    return ""


def _without_numbers(breach: str) -> str:
    """Returns the missed objective without its measured ratio, which changes with each evaluation."""
    return f"the objective of {breach.split(':')[0]} is missed" if ":" in breach else "too many streams underrun"
