"""Rolls out a promoted setting replica by replica, then soaks it and reverts a regression. Pure."""

import math
from datetime import timedelta

from msgspec.structs import replace

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import MAX_BEST_KNOWN, MAX_CANDIDATES, BestKnown, Promotion, Soak, Trial
from syrinx_operator.tuner.builder import MAX_EVALUATION_SECONDS, DecisionBuilder, format_setting, in_force, stage_of
from syrinx_operator.tuner.evidence import MIN_REQUESTS, classify_workload, similar

REGRESSION = 0.05
"""Drop of the good ratio, compared with before the promotion, that reverts it."""
MAX_SOAK_SECONDS = 600.0
"""A soak also waits this long for missing counters."""


def promote(builder: DecisionBuilder, trial: Trial) -> None:
    """Starts a promotion: at once if every replica has run the candidate, else with one replica."""
    names = sorted(replica.name for replica in builder.evidence.replicas_of(trial.knob.stage))
    if trial.design == "Switchback" or len(names) <= 1:
        _choose(builder, trial.id, trial.candidate)
        return
    first = Promotion(id=trial.id, setting=trial.candidate, replicas=(names[0],), last_step_time=builder.now)
    builder.set(promotion=first)
    builder.set_phase("Promoting", f"trial {trial.id}: rolling out replica by replica")


def advance_promotion(builder: DecisionBuilder) -> None:
    """Doubles the number of promoted replicas each interval, unless one of them fails."""
    promotion = builder.state.promotion
    assert promotion is not None
    base = in_force(builder.policy, builder.state)
    replicas = builder.evidence.replicas_of(stage_of(base, promotion.setting))
    names = sorted(replica.name for replica in replicas)
    failing = [r.name for r in replicas if r.name in promotion.replicas and (r.errors or 0) >= 3]
    builder.requeue_after = min(builder.policy.interval, MAX_EVALUATION_SECONDS)
    waiting = builder.seconds_since(promotion.last_step_time) < builder.policy.interval
    doubled = 2 * len(promotion.replicas)
    if failing:
        _revert(builder, promotion.id, promotion.setting, base, f"requests fail on {failing[0]}")
    elif builder.evidence.disruption or builder.evidence.problem or waiting:
        return
    elif doubled >= min(len(names), MAX_CANDIDATES):
        _choose(builder, promotion.id, promotion.setting)
    else:
        more = replace(promotion, replicas=tuple(names[:doubled]), last_step_time=builder.now)
        builder.set(promotion=more)


def _choose(builder: DecisionBuilder, number: int, setting: Setting) -> None:
    """Makes a setting the chosen one and starts its soak."""
    record = builder.recorded(number)
    before = in_force(builder.policy, builder.state)
    seconds = min(max(6 * builder.policy.interval, 45.0), MAX_SOAK_SECONDS)
    replicas = builder.evidence.replicas_of(stage_of(before, setting))
    builder.set(
        chosen=setting,
        last_good=before,
        promotion=None,
        last_change_time=builder.now,
        soak=Soak(
            id=number,
            start_time=builder.now + timedelta(seconds=builder.policy.wash_out_seconds),
            end_time=builder.now + timedelta(seconds=seconds),
            expected_good=0.0 if record is None or record.baseline_min_good is None else record.baseline_min_good,
            restarts=sum(replica.restarts for replica in replicas),
        ),
    )
    builder.quarantine(before, f"trial {number} found a better setting")
    builder.set_phase("Soaking", f"trial {number} is promoted to all replicas; soaking")


def advance_soak(builder: DecisionBuilder) -> None:
    """Watches a promoted setting and reverts it if it regresses."""
    soak, chosen, before = builder.state.soak, builder.state.chosen, builder.state.last_good
    assert soak is not None and chosen is not None and before is not None
    evidence = builder.evidence
    builder.requeue_after = min(builder.policy.interval, MAX_EVALUATION_SECONDS)
    replicas = evidence.replicas_of(stage_of(before, chosen))
    if not evidence.disruption and sum(replica.restarts for replica in replicas) >= soak.restarts + 2:
        _revert(builder, soak.id, chosen, before, "replicas restart repeatedly")
        return
    if evidence.problem:
        if builder.now >= soak.end_time + timedelta(seconds=MAX_SOAK_SECONDS):
            _settle(builder)
        return
    requests, good = evidence.total.requests, evidence.total.good_ratio
    floor = soak.expected_good - REGRESSION - 1.0 / math.sqrt(max(1, requests))
    same_workload = similar(classify_workload(evidence, builder.state.workload), builder.state.workload)
    if requests >= 2 * MIN_REQUESTS and good < floor and same_workload:
        _revert(builder, soak.id, chosen, before, f"{good:.0%} good requests, {soak.expected_good:.0%} before")
    elif builder.now >= soak.end_time:
        _settle(builder, good if requests >= MIN_REQUESTS else None)


def _settle(builder: DecisionBuilder, good: float | None = None) -> None:
    """Ends a soak without a regression: the setting becomes the last good one."""
    chosen, soak = builder.state.chosen, builder.state.soak
    assert chosen is not None and soak is not None
    builder.set(soak=None, last_good=chosen, last_change_time=builder.now)
    builder.set(consecutive_breaches=0, last_breach_time=None)
    if good is not None and builder.state.workload is not None:
        known = BestKnown(workload=builder.state.workload, setting=chosen, good_ratio=good, time=builder.now)
        others = [each for each in builder.state.best_known if not similar(each.workload, known.workload)]
        builder.set(best_known=(*others, known)[-MAX_BEST_KNOWN:])
    builder.set_phase("Watching", f"trial {soak.id} passed its soak")
    builder.emit("Settled", f"trial {soak.id}: {format_setting(chosen)} passed its soak")


def _revert(builder: DecisionBuilder, number: int, setting: Setting, before: Setting, why: str) -> None:
    record = builder.recorded(number)
    knob = record.knob if record else (before.differing_knobs(setting) or (Knob.RAMP,))[0]
    start_time = record.start_time if record else builder.now
    builder.record("Regressed", why, knob, setting, before, id=number, start_time=start_time)
    builder.set(chosen=before, last_good=before, promotion=None, soak=None, last_change_time=builder.now)
    builder.quarantine(setting, why, hours=4.0)
    builder.cool_down(failed=True)
    builder.set_phase("Watching", f"reverted to the last good setting: {why}")
    builder.emit("Regressed", f"trial {number}: reverted to {format_setting(before)}: {why}", kind="Warning")
