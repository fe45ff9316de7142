"""The tuner's decision function: (policy, state, evidence, now) -> (new state, events, requeue delay). Pure.

It learns the engines' times, asks the model for the best setting when requests are not served well, and confirms the
answer by a trial. Where most requests are bad, waiting is the greater harm: the answer comes into force at once, and is
taken back if it is no improvement.
"""

from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import Forecast, Phase, Recommendation, State
from syrinx_operator.tuner import replicas
from syrinx_operator.tuner import trial as trials
from syrinx_operator.tuner.builder import (
    Ask,
    DecisionBuilder,
    Event,
    Look,
    alike,
    format_change,
    in_force,
)
from syrinx_operator.tuner.capacity import AskCapacity
from syrinx_operator.tuner.captures import plan_captures
from syrinx_operator.tuner.curves import learned
from syrinx_operator.tuner.evidence import Evidence, ttfa_quantile
from syrinx_operator.tuner.plan import Answer, Compared, Question
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.whatif import QUICK, Load, Plant

__all__ = ["Assignment", "Decision", "Event", "assignment", "decide"]

OVERRIDE_TTL_SECONDS = 60.0
"""Lifetime of a settings override that is not renewed. Covers at least three evaluations."""
WINDOW_SECONDS = 300.0
"""Requests that are evaluated: those of this time, or since the last change of settings or load."""
LEAST_SECONDS = 60.0
"""Least of it."""
MIN_REQUESTS = 20
"""Least requests that are evaluated."""
BAD_ENOUGH = 0.01
"""Ratio of bad requests from which the model is asked."""
LEAST_GAIN = 0.015
"""Predicted gain that is worth a trial."""
URGENT = 0.1
"""Ratio of bad requests from which a change comes into force without a trial."""
URGENT_MORE, URGENT_LESS = 0.3, 0.4
"""Predicted gain that such a change needs: a ratio of the requests that are served well, or of those that are bad."""
HOPELESS = 0.9
"""Ratio of bad requests from which the model need only say that a setting carries more load."""
REPLAN = timedelta(minutes=5)
"""Time until the model runs again while the load stays the same; it doubles while nothing better is found."""
MAX_DOUBLINGS = 4
LEARN_SECONDS = 60.0
"""Engine times are learned at most once in this time."""
MIN_RATE = 0.05
"""Requests per second. Below this rate a trial would take hours."""

_MAX_REFERENCE = 400.0
"""Frames. A reference has at most 30 s."""
_NO_OUTCOMES = "the gateways report no outcomes of requests; set the pipeline's image to that of this version"
_NEW_IDENTITY = "the model, image, device or engine changed"


class Decision(Struct, frozen=True, kw_only=True):
    """The state to store, from which `assignment` derives the settings, and the events to emit."""

    state: State
    events: tuple[Event, ...] = ()
    requeue_after: float
    """Seconds until the next evaluation."""


class Assignment(Struct, frozen=True, kw_only=True):
    """The settings of all replicas."""

    base: Setting
    """Setting without an override. Replicas that start run it."""
    candidate: Setting | None = None
    """Override of all replicas of talker and codec. It expires on its own unless each evaluation renews it."""
    label: str = ""
    """Label of requests, of all gateways; it expires as an override does."""


def decide(policy: Policy, state: State, look: Look, ask: Ask, ask_capacity: AskCapacity, now: datetime) -> Decision:
    """Returns the next decision. Without data it changes no setting, and it never has two changes in progress."""
    builder = DecisionBuilder(policy, state, look, ask, now)
    if _apply_spec(builder):
        _learn(builder)
        replicas.advance(builder, _question, ask_capacity)
        if builder.state.trial is not None:
            trials.advance_trial(builder)
        elif builder.state.soak is not None:
            trials.advance_soak(builder)
        else:
            _monitor(builder)
    return Decision(state=builder.state, events=tuple(builder.events), requeue_after=builder.requeue_after)


def assignment(policy: Policy, state: State) -> Assignment:
    """Returns the settings that a state implies. In modes other than Auto these are the requested ones."""
    base, trial = in_force(policy, state), state.trial
    if trial is None or policy.mode != "Auto" or policy.paused:
        return Assignment(base=base)
    candidate = trial.candidate if trials.runs_candidate(trial) else None
    return Assignment(base=base, candidate=candidate, label=trials.label(trial))


# Edits of the resource --------------------------------------------------------------------------------------------


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
        _supersede(builder, "paused")
        builder.set_phase("Paused", "tuning is paused; settings stay as they are")
        return False
    if policy.mode == "Recommend":
        _revert_to_requested(builder, builder.state.phase, builder.state.message)
    return True


def _within_bounds(policy: Policy, setting: Setting) -> bool:
    """Returns whether the knobs that differ from the requested setting are within the bounds."""
    inside = all(
        setting.value(knob) in rows or setting.value(knob) == policy.requested.value(knob)
        for knob, rows in policy.rows.items()
    )
    pairs = setting.capture_pairs == policy.requested.capture_pairs or len(setting.capture_pairs) <= policy.budget.count
    return inside and pairs and setting.chunk_ramp in policy.ramps


def _apply_identity(builder: DecisionBuilder) -> None:
    """Discards what was learned if the model, image, device or engine changed."""
    known, current = builder.state.identity, builder.look(builder.now, builder.now).identity
    if known == current or not current.device:
        return
    if known is not None and known.device:
        _supersede(builder, _NEW_IDENTITY)
        fresh = State()
        builder.set(measured=fresh.measured, measured_time=builder.now, tried=(), forecast=None)
        builder.set(last_change_time=builder.now)
        builder.emit("Forgotten", f"{_NEW_IDENTITY}; the measured times were cleared")
    builder.set(identity=current)


def _supersede(builder: DecisionBuilder, why: str) -> None:
    """Ends what is in progress without a verdict of its own."""
    if builder.state.trial is not None:
        trials.end_trial(builder, builder.state.trial, "Superseded", why)
    builder.set(soak=None)


def _reset(builder: DecisionBuilder, why: str) -> None:
    """Returns to the requested setting, because the user edited the resource."""
    if builder.state.chosen is not None and builder.state.trial is None:
        builder.emit("Superseded", why)
    _supersede(builder, why)
    builder.set(chosen=None, tried=(), recommendation=None, next_plan_time=None, last_change_time=builder.now)


def _revert_to_requested(builder: DecisionBuilder, phase: Phase, message: str) -> None:
    """Returns to the requested setting because the mode is not Auto."""
    why = f"tuning.mode is {builder.policy.mode}; the values of the resource are in force"
    _supersede(builder, why)
    if builder.state.chosen is not None:
        builder.emit("Superseded", why)
        builder.set(chosen=None, last_change_time=builder.now)
    if phase == "Off":
        builder.set(recommendation=None)
    builder.set_phase(phase, message)


# Without a change in progress -------------------------------------------------------------------------------------


def _learn(builder: DecisionBuilder) -> None:
    """Learns the engines' times since they were learned last."""
    since = builder.state.measured_time or builder.now - timedelta(seconds=2 * WINDOW_SECONDS)
    if builder.seconds_since(since) < LEARN_SECONDS:
        return
    window = builder.look(since, builder.now)
    if not window.problem and window.until > since:
        builder.set(measured=learned(builder.state.measured, window), measured_time=window.until)


def _monitor(builder: DecisionBuilder) -> None:
    """Asks the model when requests are not served well, and acts on its answer."""
    recent = _recent(builder)
    if recent.problem:
        builder.set_phase("NoData", recent.problem)
        return
    seen = recent.of_arm()
    if not recent.outcomes and sum(each.requests for each in recent.streams.values()) >= MIN_REQUESTS:
        builder.set_phase("NoData", _NO_OUTCOMES)
        return
    if not seen.accepted:
        builder.set_phase("NoData", "no streaming request in the evaluation window")
        return
    rate = sum(recent.rates.values())
    if seen.accepted < MIN_REQUESTS or recent.seconds < LEAST_SECONDS or rate < MIN_RATE:
        builder.set_phase("Watching", "too few requests")
        return
    # `slo.underrunRatio` may tolerate more interruptions.
    tolerated = min(seen.interrupted, max(builder.policy.max_underrun_ratio - BAD_ENOUGH, 0.0) * seen.accepted)
    if seen.bad_ratio < BAD_ENOUGH or seen.bad - tolerated < max(3.0, BAD_ENOUGH * seen.accepted):
        builder.set_phase("Watching", f"{1 - seen.bad_ratio:.1%} of the requests are served well")
        _capture(builder, recent, rate)
        return
    _improve(builder, recent, rate)


def _capture(builder: DecisionBuilder, recent: Evidence, rate: float) -> None:
    """While requests are served well: has the codecs capture the shapes that save decoder time."""
    policy, state, current = builder.policy, builder.state, in_force(builder.policy, builder.state)
    costs = [cost for codec in recent.replicas_of(Stage.CODEC)[:1] for cost in codec.captures]
    asked: dict[tuple[int, int], float] = {}
    for call in (call for codec in recent.replicas_of(Stage.CODEC) for call in codec.calls):
        asked[call.rows, call.frames] = asked.get((call.rows, call.frames), 0.0) + call.count
    found = plan_captures(
        state.measured.calls, asked, costs, current.capture_pairs, policy.budget, current.codec_max_num_seqs
    )
    setting = current if found is None else replace(current, capture_pairs=found.shapes)
    is_tried = any(each.setting == setting and builder.now < each.until for each in state.tried)
    if found is None or is_tried or recent.disruption:
        builder.set(recommendation=None)
        return
    saved = (
        "captured calls were not measured yet" if found.saved is None else f"saves {found.saved:.0%} of decoder time"
    )
    if policy.mode == "Recommend":
        _recommend(builder, current, setting, saved)
        return
    number = state.trial_count + 1
    builder.set(trial_count=number, recommendation=None)
    builder.emit("PutInForce", f"change {number}, {format_change(current, setting)}: {saved}")
    builder.remember(current, setting, 0.0, rate, hours=4.0)
    trials.put_in_force(builder, number, setting, recent.of_arm().bad_ratio, rate)


def _recommend(builder: DecisionBuilder, current: Setting, setting: Setting, why: str) -> None:
    known = builder.state.recommendation
    change = format_change(current, setting)
    if known is None or known.setting != setting:
        builder.set(recommendation=Recommendation(setting=setting, rationale=why[:256]))
        builder.emit("Recommended", f"try {change}: {why}")
    builder.set_phase("Watching", f"try {change}")


def _recent(builder: DecisionBuilder) -> Evidence:
    """Returns the requests to evaluate: those under the setting in force and the present load."""
    begin = builder.now - timedelta(seconds=WINDOW_SECONDS)
    if builder.state.last_change_time is not None:
        begin = max(begin, builder.state.last_change_time + timedelta(seconds=trials.WASH_OUT_SECONDS))
    whole = builder.look(min(begin, builder.now), builder.now)
    if whole.seconds > 3 * LEAST_SECONDS:
        last = builder.look(builder.now - timedelta(seconds=1.5 * LEAST_SECONDS), builder.now)
        requests, rate = last.of_arm().accepted, sum(whole.rates.values())
        expected = rate * last.seconds
        spread = 4 * (whole.burst * max(expected, 1.0)) ** 0.5
        if requests >= MIN_REQUESTS and abs(requests - expected) > max(spread, 0.25 * expected):
            return last
    return whole


def _improve(builder: DecisionBuilder, recent: Evidence, rate: float) -> None:
    state, current = builder.state, in_force(builder.policy, builder.state)
    planned = state.forecast
    is_same = (
        planned is not None
        and alike(planned.rate, rate)
        and abs(planned.observed - 1 + recent.of_arm().bad_ratio) < 0.1
    )
    if state.next_plan_time is not None and builder.now < state.next_plan_time and is_same:
        return
    if recent.disruption:
        builder.set_phase("Watching", recent.disruption)
        return
    if not is_same:
        builder.set(fruitless=0)
    question = _question(builder, recent, current)
    if question is None:
        builder.set_phase("Watching", "the engines' times are not known yet")
        return
    answer = builder.ask(question)
    if answer is None or answer.current.setting != current:  # Not known yet, or of a setting that was replaced.
        builder.requeue_after = 1.0
        return
    _act(builder, recent, rate, answer)


def _question(builder: DecisionBuilder, recent: Evidence, current: Setting) -> Question | None:
    policy, measured = builder.policy, builder.state.measured
    talkers, codecs = recent.replicas_of(Stage.TALKER), recent.replicas_of(Stage.CODEC)
    if not measured.is_known or not talkers or not codecs:
        return None
    rate = sum(recent.rates.values())
    known = [each for each in builder.state.tried if alike(each.rate, rate)]
    frames = sum(each.frames or 0 for each in talkers)
    reference = sum(each.frames or 0 for each in codecs) - frames
    clones = recent.rates.get("Base", 0.0) * recent.seconds
    started = max(1, recent.of_arm().accepted - recent.of_arm().refused)
    limits = {name: objective.seconds for name, objective in policy.objectives.items()}
    quick = {name: seconds for name in recent.rates if (seconds := ttfa_quantile(recent, name, QUICK)) is not None}
    return Question(
        load=Load(rates=recent.rates, frames=max(frames / started, 1.0), burst=recent.burst),
        plant=Plant(
            talkers=len(talkers),
            codecs=len(codecs),
            talker_resident=policy.residents[Stage.TALKER],
            codec_resident=policy.residents[Stage.CODEC],
            patience=policy.max_queue_seconds,
            limits=limits,
            reference={"Base": min(max(reference, 0) / clones, _MAX_REFERENCE)} if clones else {},
        ),
        measured=measured,
        current=current,
        rows=policy.rows,
        ramps=policy.ramps,
        avoided=tuple(each.setting for each in known if builder.now < each.until),
        compared=tuple(Compared(each.setting, each.baseline, each.difference) for each in known),
        observed_well=1 - recent.of_arm().bad_ratio,
        observed_quick=quick,
    )


def _promised(gain: float, well: float, bad_ratio: float) -> float:
    """Returns the predicted gain; that over what is observed if it is less, unless nothing is to lose."""
    return gain if bad_ratio >= HOPELESS else min(gain, well - 1 + bad_ratio)


def _urgent_gain(bad_ratio: float) -> float:
    """Returns the predicted gain with which a change comes into force without a trial."""
    return min(URGENT_MORE * (1 - bad_ratio), URGENT_LESS * bad_ratio)


def _act(builder: DecisionBuilder, recent: Evidence, rate: float, answer: Answer) -> None:
    """Recommends the best setting, tries it, or puts it in force."""
    seen, best = recent.of_arm(), answer.best
    builder.set(
        forecast=Forecast(
            time=builder.now,
            rate=rate,
            observed=1 - seen.bad_ratio,
            current=answer.current.well,
            best=best.well,
            setting=best.setting,
        ),
        next_plan_time=builder.now + REPLAN * 2 ** min(builder.state.fruitless, MAX_DOUBLINGS),
        fruitless=builder.state.fruitless + 1,
    )
    gain = min(best.score - answer.current.score, seen.bad_ratio)
    doubt = answer.error * min(builder.state.fruitless - 1, MAX_DOUBLINGS) / (2 * MAX_DOUBLINGS)
    if gain < LEAST_GAIN + doubt or best.setting == answer.current.setting:
        builder.set(recommendation=None)
        builder.set_phase("Watching", f"{seen.bad_ratio:.1%} of the requests are bad, and no setting is better")
        return
    change = format_change(answer.current.setting, best.setting)
    why = f"{seen.bad_ratio:.1%} of the requests are bad; the model says {1 - best.well:.1%}"
    if builder.policy.mode == "Recommend":
        _recommend(builder, answer.current.setting, best.setting, why)
    elif seen.bad_ratio >= URGENT and _promised(gain, best.well, seen.bad_ratio) >= _urgent_gain(seen.bad_ratio):
        number = builder.state.trial_count + 1
        builder.set(trial_count=number, recommendation=None)
        builder.emit("PutInForce", f"change {number}, {change}: {why}")
        trials.put_in_force(builder, number, best.setting, seen.bad_ratio, rate, urgent=True)
    else:
        trials.start_trial(builder, best.setting, why, recent)
