"""The trial in progress: arms, randomized periods, and the verdict. Pure.

Arms are parallel (on different replicas) or a switchback (alternating on all). In each period the replicas confirm
their arm, the effects of the change wash out, and requests are counted. Two periods with swapped arms make a pair.
"""

import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec.structs import replace

from syrinx_operator.resource.knobs import TUNED_STAGES, Setting, live_settings
from syrinx_operator.resource.tuning_status import MAX_CANDIDATES, ArmWork, Period, Stratum, Trial, Verdict
from syrinx_operator.tuner import arms
from syrinx_operator.tuner.arms import MIN_STRATUM_REQUESTS, OVERALL
from syrinx_operator.tuner.builder import MAX_EVALUATION_SECONDS, DecisionBuilder
from syrinx_operator.tuner.estimate import BURSTY_UTILIZATION, fit_load_model, utilization
from syrinx_operator.tuner.evidence import CONGESTED_UTILIZATION, Evidence, ReplicaStats, overloaded
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.promotion import promote
from syrinx_operator.tuner.search import Proposal
from syrinx_operator.tuner.stats import DEADBAND, METRICS, format_effect, threshold

MIN_PAIRS = 4
MIN_REQUESTS_PER_ARM = 100
"""Required before a promotion."""
MAX_PAIRS = 12
"""Pairs after which a trial ends, or is extended by as many with longer periods if it looks promising."""
EXTENSION_FACTOR = 3
"""Factor on the period length of an extended trial: carry-over between periods then weighs less."""
MAX_EXTENSIONS = 3
MAX_DISCARDED = 10
PERIOD_REQUESTS = 20
"""Requests that a period should be long enough for."""
MAX_PERIOD_SECONDS = 300.0
CONFIRM_SECONDS = 45.0
"""Time limit for the replicas to confirm their arm."""
NO_DATA_SECONDS = 90.0
MAX_DISRUPTION_SECONDS = 600.0
"""Time that a trial waits for a roll-out to end."""
MARGIN = 0.05
"""Non-inferiority margin: a stratum may look worse by this difference and still be promoted."""
COUPLED_GOOD_RATIO = 0.8
"""Below this good ratio, most bad requests wait for the stage as a whole, so parallel arms are not independent."""


class Outcome(NamedTuple):
    """How a trial ends."""

    verdict: Verdict
    reason: str


def start_trial(
    policy: Policy, number: int, proposal: Proposal, current: Setting, evidence: Evidence, now: datetime
) -> Trial:
    """Returns a trial of a proposal. Its first period waits until the replicas confirm their arm."""
    stage = proposal.knob.stage
    replicas = evidence.replicas_of(stage)
    model = fit_load_model(policy, evidence, current)
    load = {each: utilization(model, current, each) if model else 1.0 for each in TUNED_STAGES}
    # Replicas that share one queue interfere: requests of either arm then wait for the stage as a whole.
    coupled = overloaded(policy, evidence) or load[stage] > CONGESTED_UTILIZATION
    coupled = coupled or evidence.total.good_ratio < COUPLED_GOOD_RATIO
    bursty = max(load.values()) > BURSTY_UTILIZATION
    arm_rate = evidence.request_rate * (max(1, len(replicas) // 4) / len(replicas) if len(replicas) > 1 else 1.0)
    enough = PERIOD_REQUESTS / arm_rate if arm_rate else MAX_PERIOD_SECONDS
    seconds = min(max(policy.interval, enough), MAX_PERIOD_SECONDS)
    if bursty and proposal.goal == "GoodRequests":
        seconds = min(EXTENSION_FACTOR * seconds, MAX_PERIOD_SECONDS)
    trial = Trial(
        id=number,
        knob=proposal.knob,
        goal=proposal.goal,
        candidate=proposal.setting,
        baseline=current,
        design="Switchback" if len(replicas) < 2 or coupled else "Parallel",
        rationale=proposal.rationale[:256],
        aborts_to_reject=2 if bursty else 1,
        start_time=now,
        period_seconds=seconds,
        period=Period(index=0, start_time=now),
        strata=arms.first_strata(evidence),
    )
    return replace(trial, period=next_period(trial, replicas, 0, now))


def next_period(trial: Trial, replicas: Sequence[ReplicaStats], index: int, now: datetime) -> Period:
    """Returns a period with its arms. The arms swap within a pair; a coin seeded by the trial decides the order."""
    names = tuple(replica.name for replica in replicas)
    coin = random.Random(f"{trial.id}:{trial.start_time.isoformat()}:{index // 2}")
    first_side = (coin.random() < 0.5) == (index % 2 == 0)
    restarts = tuple(replica.restarts for replica in replicas)
    period = Period(index=index, start_time=now, replicas=names[:256], restarts=restarts[:256])
    if trial.design == "Switchback":
        return replace(period, all_replicas=first_side)
    # Two equal groups: a quarter of the replicas each, at least one.
    size = min(max(1, len(names) // 4), MAX_CANDIDATES)
    drawn = coin.sample(sorted(names), 2 * size)
    one, two = tuple(sorted(drawn[:size])), tuple(sorted(drawn[size:]))
    candidate, baseline = (one, two) if first_side else (two, one)
    return replace(period, candidate_replicas=candidate, baseline_replicas=baseline)


def confirmed(trial: Trial, replicas: Sequence[ReplicaStats]) -> bool:
    """Returns whether every replica reports the setting of its arm."""
    for replica in replicas:
        setting = trial.candidate if arms.runs_candidate(trial, replica.name) else trial.baseline
        expected = live_settings(setting, replica.stage).items()
        if replica.settings is None or any(replica.settings.get(name) != value for name, value in expected):
            return False
    return True


def discard_period(trial: Trial, replicas: Sequence[ReplicaStats], now: datetime) -> Trial:
    """Returns the trial with the current pair discarded; the next pair is randomized again."""
    index = trial.period.index - trial.period.index % 2 + 2
    return replace(
        trial,
        first_period=(),
        first_period_work=ArmWork(),
        period=next_period(trial, replicas, index, now),
        discarded_periods=trial.discarded_periods + 1,
    )


# The verdict ------------------------------------------------------------------------------------------------------


def verdict(trial: Trial) -> Outcome | None:
    """Returns the verdict after a pair, or None while the evidence is not sufficient."""
    overall, strata = trial.overall, _tested(trial)
    needed = threshold(len(strata))
    for stratum in strata:
        if stratum.test.worse.log_wealth >= needed:
            return Outcome("RolledBack", f"{_metric(trial, stratum)} worse: {_effect(trial, stratum)}")
    pairs = overall.test.pairs
    if pairs >= MIN_PAIRS and min(overall.candidate.requests, overall.baseline.requests) >= MIN_REQUESTS_PER_ARM:
        better = [
            stratum
            for stratum in strata
            if stratum.test.better.log_wealth >= needed and (stratum is overall or trial.goal == "GoodRequests")
        ]
        if better and not any(s.test.mean < -MARGIN and s.test.worse.log_wealth > math.log(2) for s in strata):
            return Outcome("Promoted", f"{_metric(trial, better[0])} better: {_effect(trial, better[0])}")
        if overall.test.futile.log_wealth >= needed and all(
            s.test.futile.log_wealth >= needed or s.test.mean < DEADBAND for s in strata
        ):
            return Outcome("Inconclusive", f"not better by {DEADBAND:.0%}: {_effect(trial, overall)}")
    if pairs < MAX_PAIRS * (1 + trial.extensions):
        return None
    return Outcome("Inconclusive", f"no verdict after {pairs} pairs: {_effect(trial, overall)}")


def extend(trial: Trial) -> Trial | None:
    """Returns the trial with longer periods if its mean effect exceeds the deadband, else None."""
    promising = any(s.test.mean > DEADBAND and s.test.better.log_wealth > 0 for s in _tested(trial))
    if trial.extensions >= MAX_EXTENSIONS or not promising:
        return None
    seconds = min(EXTENSION_FACTOR * trial.period_seconds, MAX_PERIOD_SECONDS)
    return replace(trial, extensions=trial.extensions + 1, period_seconds=seconds)


def _tested(trial: Trial) -> list[Stratum]:
    """Returns the strata under test: overall, and the task types with enough requests.

    A single task type equals overall for the goal GoodRequests and is left out.
    """
    overall, *task_types = trial.strata
    enough = [s for s in task_types if min(s.candidate.requests, s.baseline.requests) >= MIN_STRATUM_REQUESTS]
    return [overall, *enough] if len(enough) > 1 or trial.goal != "GoodRequests" else [overall]


def _metric(trial: Trial, stratum: Stratum) -> str:
    return METRICS[trial.goal] if stratum.task_type == OVERALL else f"{stratum.task_type}: good requests"


def _effect(trial: Trial, stratum: Stratum) -> str:
    goal = trial.goal if stratum.task_type == OVERALL else "GoodRequests"
    counts = f"{stratum.candidate.requests} and {stratum.baseline.requests} requests"
    return f"{format_effect(stratum.test, goal)}, {counts}"


# One evaluation ---------------------------------------------------------------------------------------------------


def advance_trial(builder: DecisionBuilder) -> None:
    """Evaluates the trial in progress once."""
    trial, evidence = builder.trial, builder.evidence
    builder.requeue_after = min(builder.policy.interval, MAX_EVALUATION_SECONDS)
    if failed := arms.failure(trial, evidence):
        _end(builder, Outcome("RolledBack", failed))
    elif disturbance := _disturbance(trial, evidence):
        _discard(builder, disturbance)
    elif trial.period.counting_since is None:
        _await_confirmation(builder)
    elif harm := arms.suspected_harm(builder.policy, trial, evidence):
        _abort_period(builder, harm)
    else:
        _await_period_end(builder, trial.period.counting_since)


def _disturbance(trial: Trial, evidence: Evidence) -> str:
    """Returns why this period cannot be attributed to its arms; empty if it can."""
    replicas = evidence.replicas_of(trial.knob.stage)
    if evidence.disruption:
        return evidence.disruption
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
        seconds = builder.policy.wash_out_seconds
        period = replace(trial.period, counting_since=builder.now + timedelta(seconds=seconds))
        builder.set(trial=replace(trial, period=period))
        builder.requeue_after = seconds + 0.1
    elif builder.seconds_since(trial.period.start_time) > CONFIRM_SECONDS:
        _discard(builder, "not every replica confirmed its settings")
    else:
        builder.requeue_after = 1.0


def _await_period_end(builder: DecisionBuilder, counting_since: datetime) -> None:
    """Counts the period at its end. If data is missing, waits, but not for long: the candidate runs unobserved."""
    trial, problem = builder.trial, builder.evidence.problem
    elapsed = builder.seconds_since(counting_since)
    missing = bool(problem) or builder.evidence.seconds < 0.5 * trial.period_seconds
    if missing and elapsed > 2 * trial.period_seconds + NO_DATA_SECONDS:
        _end(builder, Outcome("Inconclusive", problem or "no requests to compare"))
    elif builder.now < counting_since + timedelta(seconds=trial.period_seconds):
        builder.requeue_after = min(builder.requeue_after, max(1.0, trial.period_seconds - elapsed))
    elif not missing:
        _count(builder)


def _abort_period(builder: DecisionBuilder, harm: str) -> None:
    """Removes a suspected candidate at once.

    It is rolled back if the baseline then recovers, or if it is suspected again. A parallel trial has a concurrent
    baseline, so there the first suspicion suffices. Where load is bursty, recovery alone proves nothing.
    """
    trial = builder.trial
    if trial.design == "Parallel" or trial.aborted_periods >= 1:
        _end(builder, Outcome("RolledBack", harm))
        return
    expected = arms.recovery_threshold(trial) if trial.aborts_to_reject == 1 else None
    builder.set(trial=replace(trial, aborted_periods=1, recovery_threshold=expected))
    builder.emit("CandidateSuspected", f"trial {trial.id}: {harm}")
    _count(builder)


def _count(builder: DecisionBuilder) -> None:
    """Counts a complete period. After the second one of a pair, evaluates the test."""
    trial = builder.trial
    if not trial.period.all_replicas and trial.recovery_threshold is not None:
        if arms.recovered(trial, builder.evidence):
            _end(builder, Outcome("RolledBack", "fewer good requests under the candidate, recovered without it"))
            return
        trial = replace(trial, recovery_threshold=None)
    replicas = builder.evidence.replicas_of(trial.knob.stage)
    period = next_period(trial, replicas, trial.period.index + 1, builder.now)
    trial = arms.count_period(trial, builder.evidence, period)
    builder.set(trial=trial)
    builder.requeue_after = 1.0
    outcome = verdict(trial) if period.index % 2 == 0 else None
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
