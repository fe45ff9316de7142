"""A verdict that is carried out: replica by replica, then watched, and taken back if it disappoints. Pure."""

from __future__ import annotations

import math
from datetime import timedelta

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import (
    MAX_BEST_KNOWN,
    MAX_CANDIDATES,
    BestKnown,
    Promotion,
    Soak,
    Trial,
    TrialRecord,
)
from syrinx_operator.tuner.builder import DecisionBuilder, format_setting, format_value, in_force, stage_of
from syrinx_operator.tuner.trial import wash_out
from syrinx_operator.tuner.workload import (
    MIN_REQUESTS,
    classify_workload,
    good_ratio,
    similar,
    summed,
    totals,
    with_failures,
)

LOOK = 10.0
"""Seconds between two looks at most."""
REGRESSION = 0.05
"""Share of requests by which a promoted setting must fall behind what was before to be taken back."""
MAX_SOAK_SECONDS = 600.0
"""Seconds; as long again is waited for counters that are missing."""


def promote(turn: DecisionBuilder, trial: Trial) -> None:
    """Begins to carry out a verdict: at once where every replica has run the candidate, else with one of them."""
    names = sorted(worker.name for worker in turn.evidence.replicas_of(trial.knob.stage))
    if trial.design == "Switchback" or len(names) <= 1:
        _choose(turn, trial.id, trial.candidate)
        return
    first = tuple(names[:1])
    turn.set(promotion=Promotion(id=trial.id, setting=trial.candidate, replicas=first, last_step_time=turn.now))
    turn.set_phase("Promoting", f"trial {trial.id}: replica by replica")


def promote_on(turn: DecisionBuilder) -> None:
    """Twice as many replicas each interval, while none of them fails."""
    promotion = turn.state.promotion
    assert promotion is not None
    base = in_force(turn.policy, turn.state)
    workers = turn.evidence.replicas_of(stage_of(base, promotion.setting))
    names = sorted(worker.name for worker in workers)
    failing = [w.name for w in workers if w.name in promotion.replicas and (w.errors or 0) >= 3]
    turn.requeue_after = min(turn.policy.interval, LOOK)
    if failing:
        _regress(turn, promotion.id, promotion.setting, base, f"{failing[0]} ends requests with errors")
    elif (
        turn.evidence.disruption
        or turn.evidence.problem
        or turn.seconds_since(promotion.last_step_time) < turn.policy.interval
    ):
        return
    elif 2 * len(promotion.replicas) >= min(len(names), MAX_CANDIDATES):
        _choose(turn, promotion.id, promotion.setting)
    else:
        turn.set(
            promotion=Promotion(
                id=promotion.id,
                setting=promotion.setting,
                replicas=tuple(names[: 2 * len(promotion.replicas)]),
                last_step_time=turn.now,
            )
        )


def _choose(turn: DecisionBuilder, number: int, setting: Setting) -> None:
    record = next((each for each in reversed(turn.state.history) if each.id == number), None)
    before = in_force(turn.policy, turn.state)
    soak = timedelta(seconds=min(max(6 * turn.policy.interval, 45.0), MAX_SOAK_SECONDS))
    workers = turn.evidence.replicas_of(stage_of(before, setting))
    turn.set(
        chosen=setting,
        last_good=before,
        promotion=None,
        last_change_time=turn.now,
        soak=Soak(
            id=number,
            start_time=turn.now + timedelta(seconds=wash_out(turn.policy)),
            end_time=turn.now + soak,
            expected_good=0.0 if record is None or record.baseline_min_good is None else record.baseline_min_good,
            restarts=sum(worker.restarts for worker in workers),
        ),
    )
    turn.quarantine(before, f"trial {number} found something better")
    turn.set_phase("Soaking", f"trial {number} is promoted everywhere and watched")


def soak_on(turn: DecisionBuilder) -> None:
    """Watches a promoted setting; what serves worse than before is taken back."""
    soak, chosen, before = turn.state.soak, turn.state.chosen, turn.state.last_good
    assert soak is not None and chosen is not None and before is not None
    turn.requeue_after = min(turn.policy.interval, LOOK)
    workers = turn.evidence.replicas_of(stage_of(before, chosen))
    if not turn.evidence.disruption and sum(worker.restarts for worker in workers) >= soak.restarts + 2:
        _regress(turn, soak.id, chosen, before, "replicas are started anew again and again")
        return
    if turn.evidence.problem:
        if turn.now >= soak.end_time + timedelta(seconds=MAX_SOAK_SECONDS):
            _settle_down(turn)
        return
    everything = summed(with_failures(totals(turn.evidence.routes), turn.evidence).values())
    good = good_ratio(everything)
    least = soak.expected_good - REGRESSION - 1.0 / math.sqrt(max(1, everything.requests))
    enough = everything.requests >= 2 * MIN_REQUESTS
    if enough and good < least and similar(classify_workload(turn.evidence, turn.state.workload), turn.state.workload):
        _regress(turn, soak.id, chosen, before, f"{good:.0%} served well, {soak.expected_good:.0%} before")
        return
    if turn.now >= soak.end_time:
        _settle_down(turn, good if everything.requests >= MIN_REQUESTS else None)


def _settle_down(turn: DecisionBuilder, good: float | None = None) -> None:
    """A promoted setting has proved itself."""
    chosen, soak = turn.state.chosen, turn.state.soak
    assert chosen is not None and soak is not None
    turn.set(soak=None, last_good=chosen, last_change_time=turn.now, consecutive_breaches=0, last_breach_time=None)
    if good is not None and turn.state.workload is not None:
        known = BestKnown(workload=turn.state.workload, setting=chosen, good_ratio=good, time=turn.now)
        others = [each for each in turn.state.best_known if not similar(each.workload, known.workload)]
        turn.set(best_known=(*others, known)[-MAX_BEST_KNOWN:])
    turn.set_phase("Watching", f"trial {soak.id} has proved itself")
    turn.emit("Settled", f"trial {soak.id}: {format_setting(chosen)} has proved itself")


def _regress(turn: DecisionBuilder, number: int, setting: Setting, before: Setting, why: str) -> None:
    """Back to what was good before, at once."""
    record = next((each for each in reversed(turn.state.history) if each.id == number), None)
    knob = record.knob if record else (before.differing_knobs(setting) or (Knob.RAMP,))[0]
    turn.add_record(
        TrialRecord(
            id=number,
            time=turn.now,
            start_time=record.start_time if record else turn.now,
            workload=turn.state.workload,
            knob=knob,
            before=format_value(setting, knob),
            after=format_value(before, knob),
            verdict="Regressed",
            reason=why[:256],
        )
    )
    turn.set(chosen=before, last_good=before, promotion=None, soak=None, last_change_time=turn.now)
    turn.quarantine(setting, why, hours=4.0)
    turn.cool_down(failed=True)
    turn.set_phase("Watching", f"back to the last good setting: {why}")
    turn.emit("Regressed", f"trial {number}: back to {format_setting(before)}: {why}", kind="Warning")
