"""The tuner's decision function: (policy, state, evidence, now) -> (new state, events, requeue delay). Pure.

A trial is a switchback or parallel experiment with one knob changed. Its paired differences feed a test by betting
(`stats`), which is anytime-valid, so the tuner evaluates it after each pair. `decide` first applies edits of
the resource, then advances whatever is in progress: a trial (`running`), a promotion or a soak (`promotion`). With
nothing in progress, `monitor` checks the objectives and starts the next trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from syrinx_operator.resource.knobs import Knob, Setting, Stage
from syrinx_operator.resource.tuning_status import Phase, State
from syrinx_operator.tuner.builder import DecisionBuilder, Event, in_force, stage_of
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.monitor import monitor
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.promotion import advance_promotion, advance_soak
from syrinx_operator.tuner.running import advance_trial
from syrinx_operator.tuner.search import ladder

__all__ = ["Assignment", "Decision", "Event", "assignment", "decide", "window_start"]

OVERRIDE_TTL_SECONDS = 60.0
"""Lifetime of a settings override that is not renewed. Covers at least three evaluations."""

_NEW_IDENTITY = "the model, image, device or engine changed"


class Decision(Struct, frozen=True, kw_only=True):
    """The state to store, the events to emit, and the time of the next evaluation.

    `assignment` derives the settings from the state.
    """

    state: State
    events: tuple[Event, ...] = ()
    requeue_after: float
    """Seconds until the next evaluation."""


class Assignment(Struct, frozen=True, kw_only=True):
    """The setting that each replica must run."""

    base: Setting
    """Setting of all replicas without an override. The ConfigMap holds it for replicas that start."""
    replica_overrides: Mapping[Stage, Mapping[str, Setting]] = {}
    """Overrides by replica name. An override expires on its own unless each evaluation renews it."""
    stage_overrides: Mapping[Stage, Setting] = {}
    """Overrides for all replicas of a stage."""

    def override(self, stage: Stage, replica: str) -> Setting | None:
        """Returns the override of a replica, or None."""
        return self.replica_overrides.get(stage, {}).get(replica, self.stage_overrides.get(stage))


def decide(policy: Policy, state: State, evidence: Evidence, now: datetime) -> Decision:
    """Returns the next decision. Without data it changes no setting, and it never has two changes in progress.

    `evidence` covers the window from `window_start(policy, state, now)`, or the part of it that is known.
    """
    builder = DecisionBuilder(policy, state, evidence, now)
    if _apply_spec(builder):
        if builder.state.trial is not None:
            advance_trial(builder)
        elif builder.state.promotion is not None:
            advance_promotion(builder)
        elif builder.state.soak is not None:
            advance_soak(builder)
        else:
            monitor(builder)
    return Decision(state=builder.state, events=tuple(builder.events), requeue_after=builder.requeue_after)


def assignment(policy: Policy, state: State) -> Assignment:
    """Returns the settings that a state implies. In modes other than Auto these are the requested ones."""
    base = in_force(policy, state)
    if policy.mode != "Auto" or policy.paused:
        return Assignment(base=base)
    if state.trial is not None:
        stage, period, candidate = state.trial.knob.stage, state.trial.period, state.trial.candidate
        if period.all_replicas:
            return Assignment(base=base, stage_overrides={stage: candidate})
        return Assignment(base=base, replica_overrides={stage: dict.fromkeys(period.candidate_replicas, candidate)})
    if state.promotion is not None:
        promoted = dict.fromkeys(state.promotion.replicas, state.promotion.setting)
        return Assignment(base=base, replica_overrides={stage_of(base, state.promotion.setting): promoted})
    return Assignment(base=base)


def window_start(policy: Policy, state: State, now: datetime) -> datetime:
    """Returns the start of the evidence window for the next decision."""
    if state.trial is not None:
        return state.trial.period.counting_since or now
    if state.promotion is not None:
        return state.promotion.last_step_time
    if state.soak is not None:
        return state.soak.start_time
    window = now - timedelta(seconds=min(max(10 * policy.interval, 60.0), 300.0))
    return max(window, state.last_change_time) if state.last_change_time is not None else window


def _apply_spec(builder: DecisionBuilder) -> bool:
    """Applies edits of the resource and changes of the image or GPU. Returns whether tuning may continue."""
    policy, state = builder.policy, builder.state
    if state.requested is not None and state.requested != policy.requested:
        _reset(builder, "the resource was edited; its values are in force")
    elif state.chosen is not None and not _within_bounds(policy, state.chosen):
        _reset(builder, "the bounds were edited; the values of the resource are in force")
    builder.set(requested=policy.requested, mode=policy.mode)
    _apply_identity(builder)
    if policy.mode == "Off":
        _revert_to_requested(builder, "Off", "tuning is off")
        return False
    if policy.paused:
        builder.supersede("paused")
        builder.set_phase("Paused", "tuning is paused; settings stay as they are")
        return False
    if policy.mode == "Recommend":
        _revert_to_requested(builder, builder.state.phase, builder.state.message)
    return True


def _within_bounds(policy: Policy, setting: Setting) -> bool:
    changed = policy.requested.differing_knobs(setting)
    inside = all(setting.value(knob) in ladder(policy, knob) for knob in changed if knob is not Knob.PAIRS)
    return inside and (Knob.PAIRS not in changed or len(setting.capture_pairs) <= policy.budget.count)


def _apply_identity(builder: DecisionBuilder) -> None:
    """Discards what was learned if the model, image, device or engine changed."""
    known, current = builder.state.identity, builder.evidence.identity
    if known == current or not current.device:
        return
    if known is not None and known.device:
        builder.supersede(_NEW_IDENTITY)
        builder.set(
            best_known=(),
            quarantine=(),
            soak=None,
            last_change_time=builder.now,
            consecutive_breaches=0,
            workload=None,
        )
        builder.emit("Forgotten", f"{_NEW_IDENTITY}; the best-known settings and the quarantine were cleared")
    builder.set(identity=current)


def _reset(builder: DecisionBuilder, why: str) -> None:
    """Returns to the requested setting and clears the quarantine, because the user edited the resource."""
    if builder.state.chosen is not None and builder.state.trial is None:
        builder.emit("Superseded", why)
    builder.supersede(why)
    builder.set(
        chosen=None,
        last_good=None,
        quarantine=(),
        last_change_time=builder.now,
        consecutive_breaches=0,
        recommendation=None,
    )


def _revert_to_requested(builder: DecisionBuilder, phase: Phase, message: str) -> None:
    """Returns to the requested setting because the mode is not Auto."""
    why = f"tuning.mode is {builder.policy.mode}; the values of the resource are in force"
    builder.supersede(why)
    if builder.state.chosen is not None:
        builder.emit("Superseded", why)
        builder.set(chosen=None, last_good=None, last_change_time=builder.now)
    if phase == "Off":
        builder.set(recommendation=None, consecutive_breaches=0, last_breach_time=None)
    builder.set_phase(phase, message)
