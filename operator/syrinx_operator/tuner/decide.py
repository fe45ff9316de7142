"""The tuner's decision function: (policy, state, evidence, now) -> (new state, events, requeue delay). Pure.

It learns the engines' times, asks the model for the best setting when requests are not served well, and confirms the
answer by a trial. Where most requests are bad, waiting is the greater harm: the answer comes into force at once, and is
rolled back if it is no improvement.
"""

from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.observed.evidence import MIN_REQUESTS, WINDOW_SECONDS, Evidence, alike
from syrinx_operator.resource.knobs import Setting, format_change
from syrinx_operator.resource.state.tuning_status import Forecast, Measured, Recommendation, State
from syrinx_operator.tuner import replicas
from syrinx_operator.tuner import trial as trials
from syrinx_operator.tuner.builder import Ask, AskCapacity, DecisionBuilder, Event, Look, in_force
from syrinx_operator.tuner.model.captures import plan_captures
from syrinx_operator.tuner.model.curves import learned
from syrinx_operator.tuner.model.plan import Answer, question_of
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.watch import advance_soak, put_in_force
from syrinx_stages.contract.stages import Stage

LEAST_SECONDS = 60.0
"""Least time whose requests are evaluated, and of which engine times are learned."""
BAD_ENOUGH = 0.01
"""Ratio of bad requests from which the model is asked."""
LEAST_GAIN = 0.015
"""Predicted gain that is worth a trial."""
URGENT, SURE = 0.1, 2.0
"""A change comes into force without a trial from this ratio of bad requests on, if the gain that the model predicts is
so many times its error."""
MOSTLY = 0.5
"""Ratio of bad requests from which any gain will do: little is left to lose."""
IDLE_INTERVALS = 3
"""Between two evaluations while there are no requests."""
MAX_DOUBLINGS = 4
"""Of the time until the model runs again, a window, while the load stays the same and nothing better is found."""


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
    idle_seconds = IDLE_INTERVALS * policy.interval
    builder = DecisionBuilder(policy, state, look, ask, ask_capacity, now, requeue_after=idle_seconds)
    if _apply_spec(builder):
        _learn(builder)
        _follow_load(builder)
        replicas.advance(builder)
        if builder.state.trial is not None:
            trials.advance_trial(builder)
        elif builder.state.soak is not None:
            advance_soak(builder)
        else:
            _monitor(builder)
    # A shorter time than the clock's resolution would change nothing.
    requeue_after = max(builder.requeue_after, datetime.resolution.total_seconds())
    return Decision(state=builder.state, events=tuple(builder.events), requeue_after=requeue_after)


def assignment(policy: Policy, state: State) -> Assignment:
    """Returns the settings that a state implies. In modes other than Auto these are the requested ones."""
    base, trial = in_force(policy, state), state.trial
    if trial is None or policy.mode != "Auto" or policy.paused:
        return Assignment(base=base)
    candidate = trial.candidate if trials.runs_candidate(trial) else None
    # Requests have no label while they do not count.
    label = trials.label(trial, trial.period) if trial.counting_time else ""
    return Assignment(base=base, candidate=candidate, label=label)


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
        _revert_to_requested(builder)
        builder.set(recommendation=None)
        builder.set_phase("Off", "tuning is off")
        return False
    if policy.paused:
        _supersede(builder, "paused")
        builder.set_phase("Paused", "tuning is paused; settings stay as they are")
        return False
    if policy.mode == "Recommend":
        _revert_to_requested(builder)
    return True


def _within_bounds(policy: Policy, setting: Setting) -> bool:
    """Returns whether the knobs that differ from the requested setting are within the bounds."""
    inside = all(
        setting.value(knob) in rows or setting.value(knob) == policy.requested.value(knob)
        for knob, rows in policy.rows.items()
    )
    pairs = setting.capture_pairs == policy.requested.capture_pairs or len(setting.capture_pairs) <= policy.budget.max
    return inside and pairs and setting.chunk_ramp in policy.ramps


def _apply_identity(builder: DecisionBuilder) -> None:
    """Discards what was learned if the model, image, device or engine changed."""
    known, current = builder.state.identity, builder.look(builder.now, builder.now).identity
    if known == current or not current.device:
        return
    if known is not None and known.device:
        why, now = "the model, image, device or engine changed", builder.now
        _supersede(builder, why)
        builder.set(measured=Measured(), measured_time=now, tried=(), forecast=None, last_change_time=now)
        builder.emit("Forgotten", f"{why}; the measured times were cleared")
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


def _revert_to_requested(builder: DecisionBuilder) -> None:
    """Returns to the requested setting because the mode is not Auto."""
    why = f"tuning.mode is {builder.policy.mode}; the values of the resource are in force"
    _supersede(builder, why)
    if builder.state.chosen is not None:
        builder.emit("Superseded", why)
        builder.set(chosen=None, last_change_time=builder.now)


# Changes of the load -----------------------------------------------------------------------------------------------


def _follow_load(builder: DecisionBuilder) -> None:
    """Forgets what a former load has shown."""
    change, known = builder.look(builder.now, builder.now).change, builder.state.load_time
    if change is None or (known is not None and change.at <= known):
        return
    why = f"the load changed: {change.what}"
    builder.emit("LoadChanged", why)
    _supersede(builder, why)
    builder.set(load_time=change.at, tried=(), forecast=None, next_plan_time=None, fruitless=0)


# Without a change in progress -------------------------------------------------------------------------------------


def _learn(builder: DecisionBuilder) -> None:
    """Learns the engines' times since they were learned last."""
    since = builder.state.measured_time or builder.now - timedelta(seconds=2 * WINDOW_SECONDS)
    if builder.seconds_since(since) < LEAST_SECONDS:
        return
    window = builder.look(since, builder.now)
    # Without work nothing is learned, and an idle pipeline has nothing to write.
    if not window.problem and window.until > since and any(each.has_worked for each in window.replicas):
        builder.set(measured=learned(builder.state.measured, window), measured_time=window.until)


def _monitor(builder: DecisionBuilder) -> None:
    """Asks the model when requests are not served well, and acts on its answer."""
    recent = _recent(builder)
    if recent.problem:
        builder.set_phase("NoData", recent.problem)
        return
    seen = recent.of_arm()
    if not seen.accepted:
        builder.set_phase("NoData", "no streaming request in the evaluation window")
        return
    builder.requeue_after = min(builder.requeue_after, builder.policy.interval)
    if seen.accepted < MIN_REQUESTS or recent.seconds < LEAST_SECONDS:
        builder.set_phase("Watching", "too few requests")
        return
    # `slo.underrunRatio` may tolerate more interruptions.
    tolerated = min(seen.interrupted, max(builder.policy.max_underrun_ratio - BAD_ENOUGH, 0.0) * seen.accepted)
    if seen.bad - tolerated < max(3.0, BAD_ENOUGH * seen.accepted):
        builder.set_phase("Watching", f"{1 - seen.bad_ratio:.1%} of the requests are served well")
        _capture(builder, recent)
    else:
        _improve(builder, recent)


def _capture(builder: DecisionBuilder, recent: Evidence) -> None:
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
    builder.remember(current, setting, 0.0, 0.0, recent.rate, hours=4.0)
    _put_in_force(builder, setting, saved, recent)


def _put_in_force(
    builder: DecisionBuilder, setting: Setting, why: str, recent: Evidence, *, promised_bad: float | None = None
) -> None:
    """Makes a setting the chosen one without a trial."""
    number, change = builder.state.trial_count + 1, format_change(in_force(builder.policy, builder.state), setting)
    builder.set(trial_count=number, recommendation=None)
    builder.emit("PutInForce", f"change {number}, {change}: {why}")
    put_in_force(builder, number, setting, recent.of_arm().bad_ratio, recent.rate, promised_bad)


def _recommend(builder: DecisionBuilder, current: Setting, setting: Setting, why: str) -> None:
    known = builder.state.recommendation
    change = format_change(current, setting)
    if known is None or known.setting != setting:
        builder.set(recommendation=Recommendation(setting=setting, rationale=why[:256]))
        builder.emit("Recommended", f"try {change}: {why}")
    builder.set_phase("Watching", f"try {change}")


def _recent(builder: DecisionBuilder) -> Evidence:
    """Returns the requests to evaluate: those under the setting in force and the present load."""
    state, begin = builder.state, builder.now - timedelta(seconds=WINDOW_SECONDS)
    if state.last_change_time is not None:
        begin = max(begin, state.last_change_time + timedelta(seconds=trials.WASH_OUT_SECONDS))
    if state.load_time is not None:
        begin = max(begin, state.load_time)
    return builder.look(min(begin, builder.now), builder.now)


def _improve(builder: DecisionBuilder, recent: Evidence) -> None:
    state, current = builder.state, in_force(builder.policy, builder.state)
    planned = state.forecast
    is_same = (
        planned is not None
        and alike(planned.rate, recent.rate)
        and abs(planned.observed - 1 + recent.of_arm().bad_ratio) < 0.1
    )
    if state.next_plan_time is not None and builder.now < state.next_plan_time and is_same:
        return
    if recent.disruption:
        builder.set_phase("Watching", recent.disruption)
        return
    question = question_of(builder.policy, state, recent, current, builder.now)
    if question is None:
        builder.set_phase("Watching", "the engines' times are not known yet")
        return
    answer = builder.ask(question)
    if answer is None or answer.current.setting != current:  # Not known yet, or of a setting that was replaced.
        builder.requeue_after = 1.0
        return
    _act(builder, recent, answer)


def _act(builder: DecisionBuilder, recent: Evidence, answer: Answer) -> None:
    """Recommends the best setting, tries it, or puts it in force."""
    seen, best, fruitless = recent.of_arm(), answer.best, builder.state.fruitless
    builder.set(
        forecast=Forecast(
            time=builder.now,
            rate=recent.rate,
            observed=1 - seen.bad_ratio,
            current=answer.current.well,
            best=best.well,
            setting=best.setting,
        ),
        next_plan_time=builder.now + timedelta(seconds=WINDOW_SECONDS * 2 ** min(fruitless, MAX_DOUBLINGS)),
    )
    gain = min(best.score - answer.current.score, seen.bad_ratio)
    if gain < LEAST_GAIN or best.setting == answer.current.setting:
        builder.set(recommendation=None, fruitless=fruitless + 1)
        builder.set_phase("Watching", f"{seen.bad_ratio:.1%} of the requests are bad, and no setting is better")
        return
    builder.set(fruitless=0)
    is_sure = min(gain, best.well - 1 + seen.bad_ratio) >= SURE * answer.doubt
    why = f"{seen.bad_ratio:.1%} of the requests are bad; the model says {1 - best.well:.1%}"
    if builder.policy.mode == "Recommend":
        _recommend(builder, answer.current.setting, best.setting, why)
    elif seen.bad_ratio >= (URGENT if is_sure else MOSTLY):
        _put_in_force(builder, best.setting, why, recent, promised_bad=1 - best.well)
    elif problem := trials.undecidable(gain + answer.doubt, recent):
        builder.set(fruitless=fruitless + 1)
        builder.set_phase("Watching", f"{why}; {problem}")
    else:
        trials.start_trial(builder, best.setting, why, recent, gain, answer.doubt)
