"""The design of a trial: parallel or switchback arms, period lengths, randomization, and the verdict. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from syrinx_operator.resource.knobs import Setting, Stage, live_settings
from syrinx_operator.resource.tuning_status import (
    MAX_CANDIDATES,
    ArmWork,
    Period,
    Stratum,
    Trial,
    Verdict,
)
from syrinx_operator.tuner.arms import MIN_STRATUM_REQUESTS, OVERALL, arm_setting, first_strata
from syrinx_operator.tuner.estimate import BURSTY_UTILIZATION, fit_load_model, utilization
from syrinx_operator.tuner.evidence import Evidence, ReplicaStats
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.search import Proposal
from syrinx_operator.tuner.stats import DEADBAND, format_effect, threshold
from syrinx_operator.tuner.workload import (
    CONGESTED_UTILIZATION,
    good_ratio,
    overloaded,
    request_rate,
    summed,
    totals,
    with_failures,
)

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
    replicas = evidence.replicas_of(proposal.knob.stage)
    load = _utilization(policy, evidence, current)
    good = good_ratio(summed(with_failures(totals(evidence.routes), evidence).values()))
    # Replicas that share one queue interfere: requests of either arm then wait for the stage as a whole.
    coupled = (
        overloaded(policy, evidence) or load[proposal.knob.stage] > CONGESTED_UTILIZATION or good < COUPLED_GOOD_RATIO
    )
    bursty = max(load.values()) > BURSTY_UTILIZATION
    seconds = _period_seconds(policy, evidence, len(replicas))
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
        strata=first_strata(evidence),
    )
    return msgspec.structs.replace(trial, period=next_period(trial, replicas, 0, now))


def next_period(trial: Trial, replicas: Sequence[ReplicaStats], index: int, now: datetime) -> Period:
    """Returns a period with its arms. The arms swap within a pair; a coin seeded by the trial decides the order."""
    names = tuple(replica.name for replica in replicas)
    coin = random.Random(f"{trial.id}:{trial.start_time.isoformat()}:{index // 2}")
    candidate_first = coin.random() < 0.5
    first_side = candidate_first == (index % 2 == 0)
    period = Period(
        index=index,
        start_time=now,
        replicas=names[:256],
        restarts=tuple(replica.restarts for replica in replicas)[:256],
    )
    if trial.design == "Switchback":
        return msgspec.structs.replace(period, all_replicas=first_side)
    # Two equal groups: a quarter of the replicas each, at least one.
    size = min(max(1, len(names) // 4), MAX_CANDIDATES)
    drawn = coin.sample(sorted(names), 2 * size)
    one, two = tuple(sorted(drawn[:size])), tuple(sorted(drawn[size:]))
    return msgspec.structs.replace(
        period,
        candidate_replicas=one if first_side else two,
        baseline_replicas=two if first_side else one,
    )


def confirmed(trial: Trial, replicas: Sequence[ReplicaStats]) -> bool:
    """Returns whether every replica reports the setting of its arm."""
    return all(_runs(replica, arm_setting(trial, replica.name)) for replica in replicas)


def wash_out(policy: Policy) -> float:
    """Returns the seconds after a settings change that are excluded from counting."""
    return min(max(policy.interval / 2, 3.0), 15.0)


def due(trial: Trial, now: datetime) -> bool:
    """Returns whether the period has been counted for its full length."""
    counting = trial.period.counting_since
    return counting is not None and now >= counting + timedelta(seconds=trial.period_seconds)


def discard_period(trial: Trial, replicas: Sequence[ReplicaStats], now: datetime) -> Trial:
    """Returns the trial with the current pair discarded; the next pair is randomized again."""
    index = trial.period.index - trial.period.index % 2 + 2
    return msgspec.structs.replace(
        trial,
        first_period=(),
        first_period_work=ArmWork(),
        period=next_period(trial, replicas, index, now),
        discarded_periods=trial.discarded_periods + 1,
    )


def verdict(trial: Trial) -> Outcome | None:
    """Returns the verdict after a pair, or None while the evidence is not sufficient."""
    strata = _tested(trial)
    needed = threshold(len(strata))
    for stratum in strata:
        if stratum.test.worse.log_wealth >= needed:
            return Outcome("RolledBack", f"{_metric(trial, stratum)} worse: {_effect(trial, stratum)}")
    overall = trial.strata[0]
    pairs = overall.test.pairs
    if pairs < MIN_PAIRS or min(overall.candidate.requests, overall.baseline.requests) < MIN_REQUESTS_PER_ARM:
        return _exhausted(trial)
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
    return _exhausted(trial)


def extend(trial: Trial) -> Trial | None:
    """Returns the trial with longer periods if its mean effect exceeds the deadband, else None."""
    promising = any(s.test.mean > DEADBAND and s.test.better.log_wealth > 0 for s in _tested(trial))
    if trial.extensions >= MAX_EXTENSIONS or not promising:
        return None
    seconds = min(EXTENSION_FACTOR * trial.period_seconds, MAX_PERIOD_SECONDS)
    return msgspec.structs.replace(trial, extensions=trial.extensions + 1, period_seconds=seconds)


def _period_seconds(policy: Policy, evidence: Evidence, replicas: int) -> float:
    """Returns a period length of at least an interval, with enough requests in each arm."""
    arm_rate = request_rate(evidence) * (max(1, replicas // 4) / replicas if replicas > 1 else 1.0)
    enough = PERIOD_REQUESTS / arm_rate if arm_rate else MAX_PERIOD_SECONDS
    return min(max(policy.interval, enough), MAX_PERIOD_SECONDS)


def _utilization(policy: Policy, evidence: Evidence, current: Setting) -> dict[Stage, float]:
    """Returns the utilization of each stage; 1 while it is unknown."""
    model = fit_load_model(policy, evidence, current)
    return {stage: utilization(model, current, stage) if model else 1.0 for stage in Stage}


def _runs(replica: ReplicaStats, setting: Setting) -> bool:
    reported = replica.settings
    if reported is None:
        return False
    return all(reported.get(name) == value for name, value in live_settings(setting, replica.stage).items())


def _tested(trial: Trial) -> list[Stratum]:
    """Returns the strata under test: overall, and the task types with enough requests.

    A single task type equals overall for the goal GoodRequests and is left out.
    """
    task_types = [
        stratum
        for stratum in trial.strata[1:]
        if min(stratum.candidate.requests, stratum.baseline.requests) >= MIN_STRATUM_REQUESTS
    ]
    overall = trial.strata[0]
    return [overall, *task_types] if len(task_types) > 1 or trial.goal != "GoodRequests" else [overall]


def _exhausted(trial: Trial) -> Outcome | None:
    pairs = trial.strata[0].test.pairs
    if pairs < MAX_PAIRS * (1 + trial.extensions):
        return None
    return Outcome("Inconclusive", f"no verdict after {pairs} pairs: {_effect(trial, trial.strata[0])}")


def _metric(trial: Trial, stratum: Stratum) -> str:
    if stratum.task_type != OVERALL:
        return f"{stratum.task_type}: good requests"
    return {
        "GoodRequests": "good requests",
        "Throughput": "frames per replica second",
        "EngineTime": "engine time per frame",
    }[trial.goal]


def _effect(trial: Trial, stratum: Stratum) -> str:
    goal = trial.goal if stratum.task_type == OVERALL else "GoodRequests"
    counts = f"{stratum.candidate.requests} and {stratum.baseline.requests} requests"
    return f"{format_effect(stratum.test, goal)}, {counts}"
