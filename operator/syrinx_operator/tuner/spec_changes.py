"""Before anything else: follows the resource, the image and the device. Pure."""

from __future__ import annotations

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import Phase
from syrinx_operator.tuner.builder import DecisionBuilder
from syrinx_operator.tuner.search import ladder

_ANOTHER = "the model, the image, the device or the engine is another one"


def settle(turn: DecisionBuilder) -> bool:
    """Follows the resource, the image and the GPU; returns whether there is anything to tune now."""
    policy, state = turn.policy, turn.state
    if state.requested is not None and state.requested != policy.requested:
        _start_anew(turn, "the resource was edited: what it asks for is in force")
    elif state.chosen is not None and not _within_bounds(turn, state.chosen):
        _start_anew(turn, "the bounds were edited: what the resource asks for is in force")
    turn.set(requested=policy.requested, mode=policy.mode)
    _follow_identity(turn)
    if policy.mode == "Off":
        _rest(turn, "Off", "nothing is tuned, as asked for")
        return False
    if policy.paused:
        turn.supersede("paused")
        turn.set_phase("Paused", "everything stays as it is, as asked for")
        return False
    if policy.mode == "Recommend":
        _rest(turn, turn.state.phase, turn.state.message)
    return True


def _within_bounds(turn: DecisionBuilder, setting: Setting) -> bool:
    differing = turn.policy.requested.differing_knobs(setting)
    inside = all(setting.value(knob) in ladder(turn.policy, knob) for knob in differing if knob is not Knob.PAIRS)
    return inside and (Knob.PAIRS not in differing or len(setting.capture_pairs) <= turn.policy.budget.count)


def _follow_identity(turn: DecisionBuilder) -> None:
    """What was learned with another model, image, device or engine holds no more."""
    known, seen = turn.state.identity, turn.evidence.identity
    if known == seen or not seen.device:
        return
    if known is not None and known.device:
        turn.supersede(_ANOTHER)
        turn.set(
            best_known=(), quarantine=(), soak=None, last_change_time=turn.now, consecutive_breaches=0, workload=None
        )
        turn.emit("Forgotten", f"{_ANOTHER}: what was learned is forgotten")
    turn.set(identity=seen)


def _start_anew(turn: DecisionBuilder, why: str) -> None:
    """People know better: what they ask for is in force, and nothing is held against it."""
    if turn.state.chosen is not None and turn.state.trial is None:
        turn.emit("Superseded", why)
    turn.supersede(why)
    turn.set(
        chosen=None,
        last_good=None,
        quarantine=(),
        last_change_time=turn.now,
        consecutive_breaches=0,
        recommendation=None,
    )


def _rest(turn: DecisionBuilder, phase: Phase, message: str) -> None:
    """Nothing but what the resource asks for is in force."""
    turn.supersede(f"tuning.mode is {turn.policy.mode}: what the resource asks for is in force")
    if turn.state.chosen is not None:
        turn.emit("Superseded", f"tuning.mode is {turn.policy.mode}: what the resource asks for is in force")
        turn.set(chosen=None, last_good=None, last_change_time=turn.now)
    if phase == "Off":
        turn.set(recommendation=None, consecutive_breaches=0, last_breach_time=None)
    turn.set_phase(phase, message)
