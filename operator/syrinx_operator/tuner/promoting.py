"""A verdict that is carried out: replica by replica, then watched, and taken back if it disappoints. Pure."""

from __future__ import annotations

import math
from datetime import timedelta

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import MAX_CANDIDATES, MAX_KNOWLEDGE, Known, Promotion, Record, Soak, Trial
from syrinx_operator.tuner.trial import wash_out
from syrinx_operator.tuner.turn import Turn, all_words, in_force, stage_of, words
from syrinx_operator.tuner.workload import LEAST_REQUESTS, alike, context, share, together, totals, with_turned

LOOK = 10.0
"""Seconds between two looks at most."""
REGRESSION = 0.05
"""Share of requests by which a promoted setting must fall behind what was before to be taken back."""
LONGEST_SOAK = 600.0
"""Seconds; as long again is waited for counters that are missing."""


def promote(turn: Turn, trial: Trial) -> None:
    """Begins to carry out a verdict: at once where every replica has run the candidate, else with one of them."""
    names = sorted(worker.name for worker in turn.evidence.of(trial.knob.stage))
    if trial.design == "Switchback" or len(names) <= 1:
        _choose(turn, trial.id, trial.candidate)
        return
    first = tuple(names[:1])
    turn.set(promotion=Promotion(id=trial.id, setting=trial.candidate, replicas=first, since=turn.now))
    turn.phase("Promoting", f"trial {trial.id}: replica by replica")


def promote_on(turn: Turn) -> None:
    """Twice as many replicas each interval, while none of them fails."""
    promotion = turn.state.promotion
    assert promotion is not None
    base = in_force(turn.policy, turn.state)
    workers = turn.evidence.of(stage_of(base, promotion.setting))
    names = sorted(worker.name for worker in workers)
    failing = [w.name for w in workers if w.name in promotion.replicas and (w.errors or 0) >= 3]
    turn.look_in = min(turn.policy.interval, LOOK)
    if failing:
        _regress(turn, promotion.id, promotion.setting, base, f"{failing[0]} ends requests with errors")
    elif turn.evidence.moving or turn.evidence.problem or turn.age(promotion.since) < turn.policy.interval:
        return
    elif 2 * len(promotion.replicas) >= min(len(names), MAX_CANDIDATES):
        _choose(turn, promotion.id, promotion.setting)
    else:
        turn.set(
            promotion=Promotion(
                id=promotion.id,
                setting=promotion.setting,
                replicas=tuple(names[: 2 * len(promotion.replicas)]),
                since=turn.now,
            )
        )


def _choose(turn: Turn, number: int, setting: Setting) -> None:
    record = next((each for each in reversed(turn.state.history) if each.id == number), None)
    before = in_force(turn.policy, turn.state)
    soak = timedelta(seconds=min(max(6 * turn.policy.interval, 45.0), LONGEST_SOAK))
    workers = turn.evidence.of(stage_of(before, setting))
    turn.set(
        chosen=setting,
        last_good=before,
        promotion=None,
        changed=turn.now,
        soak=Soak(
            id=number,
            since=turn.now + timedelta(seconds=wash_out(turn.policy)),
            until=turn.now + soak,
            expected=0.0 if record is None or record.worst is None else record.worst,
            restarts=sum(worker.restarts for worker in workers),
        ),
    )
    turn.quarantine(before, f"trial {number} found something better")
    turn.phase("Soaking", f"trial {number} is promoted everywhere and watched")


def soak_on(turn: Turn) -> None:
    """Watches a promoted setting; what serves worse than before is taken back."""
    soak, chosen, before = turn.state.soak, turn.state.chosen, turn.state.last_good
    assert soak is not None and chosen is not None and before is not None
    turn.look_in = min(turn.policy.interval, LOOK)
    workers = turn.evidence.of(stage_of(before, chosen))
    if not turn.evidence.moving and sum(worker.restarts for worker in workers) >= soak.restarts + 2:
        _regress(turn, soak.id, chosen, before, "replicas are started anew again and again")
        return
    if turn.evidence.problem:
        if turn.now >= soak.until + timedelta(seconds=LONGEST_SOAK):
            _settle_down(turn)
        return
    everything = together(with_turned(totals(turn.evidence.served), turn.evidence).values())
    good = share(everything)
    least = soak.expected - REGRESSION - 1.0 / math.sqrt(max(1, everything.requests))
    enough = everything.requests >= 2 * LEAST_REQUESTS
    if enough and good < least and alike(context(turn.evidence, turn.state.context), turn.state.context):
        _regress(turn, soak.id, chosen, before, f"{good:.0%} served well, {soak.expected:.0%} before")
        return
    if turn.now >= soak.until:
        _settle_down(turn, good if everything.requests >= LEAST_REQUESTS else None)


def _settle_down(turn: Turn, good: float | None = None) -> None:
    """A promoted setting has proved itself."""
    chosen, soak = turn.state.chosen, turn.state.soak
    assert chosen is not None and soak is not None
    turn.set(soak=None, last_good=chosen, changed=turn.now, breaches=0, breached=None)
    if good is not None and turn.state.context is not None:
        known = Known(context=turn.state.context, setting=chosen, good=good, at=turn.now)
        others = [each for each in turn.state.knowledge if not alike(each.context, known.context)]
        turn.set(knowledge=(*others, known)[-MAX_KNOWLEDGE:])
    turn.phase("Watching", f"trial {soak.id} has proved itself")
    turn.tell("Settled", f"trial {soak.id}: {all_words(chosen)} has proved itself")


def _regress(turn: Turn, number: int, setting: Setting, before: Setting, why: str) -> None:
    """Back to what was good before, at once."""
    record = next((each for each in reversed(turn.state.history) if each.id == number), None)
    knob = record.knob if record else (before.differs_from(setting) or (Knob.RAMP,))[0]
    turn.add_record(
        Record(
            id=number,
            at=turn.now,
            since=record.since if record else turn.now,
            context=turn.state.context,
            knob=knob,
            before=words(setting, knob),
            after=words(before, knob),
            verdict="Regressed",
            reason=why[:256],
        )
    )
    turn.set(chosen=before, last_good=before, promotion=None, soak=None, changed=turn.now)
    turn.quarantine(setting, why, hours=4.0)
    turn.cool_down(failed=True)
    turn.phase("Watching", f"back to the last good setting: {why}")
    turn.tell("Regressed", f"trial {number}: back to {all_words(before)}: {why}", kind="Warning")
