"""What to try next: what was best before, what the estimate promises, then knob after knob. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from syrinx_operator.resource.knobs import Knob, Setting, Stage
from syrinx_operator.resource.tuning_status import Goal, State
from syrinx_operator.tuner.capture_plan import plan_captures
from syrinx_operator.tuner.estimate import fit_load_model, predict, utilization
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.workload import CONGESTED_UTILIZATION, overloaded, similar

_SEARCHED = (Knob.TALKER_ROWS, Knob.CODEC_ROWS, Knob.RAMP)
_REACH = 3
"""Rungs that one trial may move: a factor of eight in rows."""
_ORDER = (3, 1, 2)
"""Distances as they are tried where nothing is known: far first, for a small step's effect drowns in bursts."""
_PROMISING = 0.1
"""Estimated gain from which a knob need not wait for its turn."""
_HOPELESS = -0.25
"""What a neighbour may be estimated to lose and still be tried: the estimate errs, but not that much."""


class Proposal(Struct, frozen=True, kw_only=True):
    """A change of one knob."""

    knob: Knob
    setting: Setting
    """All knobs, with the change."""
    goal: Goal
    rationale: str


def propose(
    policy: Policy, state: State, evidence: Evidence, current: Setting, now: datetime, *, missed: bool
) -> Proposal | None:
    """The change most worth a trial; None if all were tried under this workload.

    While no objective is `missed`, only captured shapes: they save work and change nothing that listeners hear.
    """
    blocked = quarantined(state, now)
    found = _proposals(policy, state, evidence, current) if missed else _captures(policy, evidence, current)
    for proposal in found:
        if proposal.setting not in blocked and proposal.setting != current and _allowed(policy, proposal):
            return proposal
    return None


def quarantined(state: State, now: datetime) -> list[Setting]:
    """Settings that are not to be tried now, under this workload."""
    return [each.setting for each in state.quarantine if similar(each.workload, state.workload) and now < each.until]


def _proposals(policy: Policy, state: State, evidence: Evidence, current: Setting) -> Iterator[Proposal]:
    yield from _known(state, current)
    yield from _searched(policy, state, evidence, current)
    yield from _captures(policy, evidence, current)


def _known(state: State, current: Setting) -> Iterator[Proposal]:
    """What was best under this workload, one knob after the other."""
    for known in state.best_known:
        if similar(known.workload, state.workload):
            for knob in current.differing_knobs(known.setting):
                setting = current.with_value(knob, known.setting.value(knob))
                why = f"part of what served {known.good_ratio:.0%} well under this workload before"
                yield Proposal(knob=knob, setting=setting, goal="Listeners", rationale=why)


def _searched(policy: Policy, state: State, evidence: Evidence, current: Setting) -> Iterator[Proposal]:
    """Moves on the ladders: what was not tried yet, on knobs not tried lately, and the most promising first.

    Where the estimate promises nothing, first the neighbours on knobs that made a difference under this workload.
    """
    known = fit_load_model(policy, evidence, current)
    now = predict(policy, known, current) if known else 0.0
    matters, tries = _experience(state)
    failures = {each.setting: each.failures for each in state.quarantine if similar(each.workload, state.workload)}
    moves = []
    for knob in _SEARCHED:
        for distance, setting in _moves(ladder(policy, knob), current, knob):
            gain = predict(policy, known, setting) - now if known else 0.0
            near = distance - 2 * _REACH if knob in matters else _ORDER.index(distance)
            promising = max(0.0, round(gain, 2))
            turn = 0 if promising >= _PROMISING else tries[knob]
            order = (failures.get(setting, 0), turn, -promising, near, _SEARCHED.index(knob))
            moves.append((order, gain, knob, setting))
    for _, gain, knob, setting in sorted(moves, key=lambda move: move[0]):
        if gain <= _HOPELESS:
            continue
        why = "no estimate speaks against it"
        if gain > 0.001:
            why = "more capacity by the measured step times"
        if gain > 0.01:
            why = f"the measured step times promise {gain:+.0%} of requests served well"
        full = utilization(known, current, knob.stage) if known else 0.0
        yield Proposal(knob=knob, setting=setting, goal=_goal(policy, evidence, full), rationale=why)


def _experience(state: State) -> tuple[set[Knob], Counter[Knob]]:
    """Knobs that made a difference under this workload, and how often each was tried since the last one did."""
    matters: set[Knob] = set()
    tries: Counter[Knob] = Counter()
    for record in state.history:
        if similar(record.workload, state.workload):
            tries[record.knob] += 1
            if record.verdict == "Promoted":
                matters.add(record.knob)
                tries.clear()
    return matters, tries


def _goal(policy: Policy, evidence: Evidence, full: float) -> Goal:
    """What tells two settings apart.

    Where more is asked for than can be done, hardly anybody is served well whatever is tried: who makes more frames
    is nearer. Where a stage is about to be full, queues decide, which remember for minutes: less work shortens them.
    """
    if overloaded(policy, evidence):
        return "Throughput"
    return "Work" if full > CONGESTED_UTILIZATION else "Listeners"


def ladder(policy: Policy, knob: Knob) -> Sequence[object]:
    """The values that a knob may have, in order."""
    return policy.ramps if knob is Knob.RAMP else policy.rows[knob]


def _moves(values: Sequence[object], current: Setting, knob: Knob) -> Iterator[tuple[int, Setting]]:
    """Values within reach, and how far they are."""
    value = current.value(knob)
    at = values.index(value) if value in values else -1
    for index, other in enumerate(values):
        distance = abs(index - at)
        if at >= 0 and 1 <= distance <= _REACH:
            yield distance, current.with_value(knob, other)


def _captures(policy: Policy, evidence: Evidence, current: Setting) -> Iterator[Proposal]:
    """Captured shapes are computed from what the codecs were asked for, and verified by a trial."""
    codecs = evidence.replicas_of(Stage.CODEC)
    calls = [call for worker in codecs for call in worker.calls]
    captures = [capture for worker in codecs for capture in worker.captures]
    if policy.budget.count == 0 or not calls:
        return
    planned = plan_captures(calls, captures, current.capture_pairs, policy.budget, current.codec_max_num_seqs)
    if planned is not None:
        setting = current.with_value(Knob.PAIRS, planned.shapes)
        yield Proposal(knob=Knob.PAIRS, setting=setting, goal="Work", rationale=planned.rationale)


def _allowed(policy: Policy, proposal: Proposal) -> bool:
    value = proposal.setting.value(proposal.knob)
    return proposal.knob is Knob.PAIRS or value in ladder(policy, proposal.knob)
