"""Chooses the next candidate: known results first, then one-knob moves ranked by the load model. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain

from msgspec import Struct

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import Goal, State
from syrinx_operator.tuner.captures import plan_captures
from syrinx_operator.tuner.estimate import fit_load_model, predict, utilization
from syrinx_operator.tuner.evidence import CONGESTED_UTILIZATION, Evidence, overloaded, similar
from syrinx_operator.tuner.policy import Policy

_LADDER_KNOBS = (Knob.TALKER_ROWS, Knob.CODEC_ROWS, Knob.RAMP)
_MAX_DISTANCE = 3
"""Ladder steps that one trial may move: a factor of eight in rows."""
_DISTANCE_ORDER = (3, 1, 2)
"""Order of distances on an unexplored knob: large steps first, because noise hides the effect of small ones."""
_PROMISING_GAIN = 0.1
"""Predicted gain that overrides the rotation of the knobs."""
_MIN_GAIN = -0.25
"""Predicted loss up to which a move is still tried, because the load model is only approximate."""


class Proposal(Struct, frozen=True, kw_only=True):
    """A candidate that differs from the current setting in one knob."""

    knob: Knob
    setting: Setting
    """All knobs, with the change."""
    goal: Goal
    rationale: str


def propose(
    policy: Policy, state: State, evidence: Evidence, current: Setting, now: datetime, *, missed: bool
) -> Proposal | None:
    """Returns the most promising candidate, or None if every setting was tried under this workload.

    While no objective is `missed`, only captured shapes are proposed: they save engine time and do not affect TTFA.
    """
    quarantined = [q.setting for q in state.quarantine if similar(q.workload, state.workload) and now < q.until]
    moves: tuple[Iterator[Proposal], ...] = ()
    if missed:
        moves = (_best_known(state, current), _ladder_moves(policy, state, evidence, current))
    for proposal in chain(*moves, _captures(policy, evidence, current)):
        knob, setting = proposal.knob, proposal.setting
        allowed = knob is Knob.PAIRS or setting.value(knob) in _ladder(policy, knob)
        if allowed and setting != current and setting not in quarantined:
            return proposal
    return None


def within_bounds(policy: Policy, setting: Setting) -> bool:
    """Returns whether the knobs that differ from the requested setting are within the bounds."""
    changed = policy.requested.differing_knobs(setting)
    inside = all(setting.value(knob) in _ladder(policy, knob) for knob in changed if knob is not Knob.PAIRS)
    return inside and (Knob.PAIRS not in changed or len(setting.capture_pairs) <= policy.budget.count)


def _ladder(policy: Policy, knob: Knob) -> Sequence[object]:
    return policy.ramps if knob is Knob.RAMP else policy.rows[knob]


def _best_known(state: State, current: Setting) -> Iterator[Proposal]:
    """Yields the knobs of the best-known setting of this workload, one at a time."""
    for known in state.best_known:
        if similar(known.workload, state.workload):
            for knob in current.differing_knobs(known.setting):
                setting = current.with_value(knob, known.setting.value(knob))
                rationale = f"part of the best-known setting of this workload ({known.good_ratio:.0%} good requests)"
                yield Proposal(knob=knob, setting=setting, goal="GoodRequests", rationale=rationale)


def _ladder_moves(policy: Policy, state: State, evidence: Evidence, current: Setting) -> Iterator[Proposal]:
    """Yields ladder moves, ordered by failures, rotation of the knobs, predicted gain, and distance.

    Without a predicted gain, neighbors on knobs that already brought an improvement come first.
    """
    model = fit_load_model(policy, evidence, current)
    now = predict(policy, model, current) if model else 0.0
    effective, tries = _experience(state)
    failures = {q.setting: q.failures for q in state.quarantine if similar(q.workload, state.workload)}
    moves = []
    for knob in _LADDER_KNOBS:
        values, value = _ladder(policy, knob), current.value(knob)
        for index, other in enumerate(values) if value in values else ():
            distance = abs(index - values.index(value))
            if not 1 <= distance <= _MAX_DISTANCE:
                continue
            setting = current.with_value(knob, other)
            gain = predict(policy, model, setting) - now if model else 0.0
            nearness = distance - 2 * _MAX_DISTANCE if knob in effective else _DISTANCE_ORDER.index(distance)
            rounded = max(0.0, round(gain, 2))
            rotation = 0 if rounded >= _PROMISING_GAIN else tries[knob]
            order = (failures.get(setting, 0), rotation, -rounded, nearness, _LADDER_KNOBS.index(knob))
            moves.append((order, gain, knob, setting))
    for _, gain, knob, setting in sorted(moves, key=lambda move: move[0]):
        if gain <= _MIN_GAIN:
            continue
        load = utilization(model, current, knob.stage) if model else 0.0
        yield Proposal(knob=knob, setting=setting, goal=_goal(policy, evidence, load), rationale=_rationale(gain))


def _rationale(gain: float) -> str:
    if gain > 0.01:
        return f"the load model predicts {100 * gain:+.0f} points of good requests"
    if gain > 0.001:
        return "the load model predicts more capacity"
    return "the load model predicts no harm"


def _experience(state: State) -> tuple[set[Knob], Counter[Knob]]:
    """Returns the knobs that were promoted under this workload, and the trials of each since the last promotion."""
    effective: set[Knob] = set()
    tries: Counter[Knob] = Counter()
    for record in state.history:
        if similar(record.workload, state.workload):
            tries[record.knob] += 1
            if record.verdict == "Promoted":
                effective.add(record.knob)
                tries.clear()
    return effective, tries


def _goal(policy: Policy, evidence: Evidence, load: float) -> Goal:
    """Returns the metric that separates two settings best at this load.

    Under overload almost no request is good under any setting, so throughput is compared. Near saturation the queue
    carries over between periods for minutes, so engine time per frame is compared, which drives the queue.
    """
    if overloaded(policy, evidence):
        return "Throughput"
    return "EngineTime" if load > CONGESTED_UTILIZATION else "GoodRequests"


def _captures(policy: Policy, evidence: Evidence, current: Setting) -> Iterator[Proposal]:
    """Yields the computed set of captured shapes. A trial then verifies it."""
    codecs = evidence.replicas_of(Stage.CODEC)
    calls = [call for replica in codecs for call in replica.calls]
    costs = [cost for replica in codecs for cost in replica.captures]
    if policy.budget.count == 0 or not calls:
        return
    plan = plan_captures(calls, costs, current.capture_pairs, policy.budget, current.codec_max_num_seqs)
    if plan is not None:
        setting = current.with_value(Knob.PAIRS, plan.shapes)
        yield Proposal(knob=Knob.PAIRS, setting=setting, goal="EngineTime", rationale=plan.rationale)
