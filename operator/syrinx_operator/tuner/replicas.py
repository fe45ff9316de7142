"""How many talkers and codecs the load that is coming needs. Pure.

The model says once what load some replicas serve well. What is observed corrects that. From then on each evaluation
compares it with the load that is expected when a replica that starts now is ready: replicas are added at once, and
removed when the last ten minutes did not need them.
"""

import math
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.resource.knobs import TUNED_STAGES, Setting
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import ANY, RATE_BINS, USUAL, Capacity, Curve, Peak, Replicas, StageReplicas
from syrinx_operator.tuner.builder import DecisionBuilder, alike, in_force
from syrinx_operator.tuner.evidence import MIN_REQUESTS, Evidence
from syrinx_operator.tuner.plan import Question, calibrated
from syrinx_operator.tuner.policy import Scale
from syrinx_operator.tuner.trial import end_trial
from syrinx_operator.tuner.whatif import Model

SIZES = (1, 2, 4, 8)
"""Numbers of replicas of which the first that serves a load well is the model's first point of the capacity."""
SPAN = 4
"""The second point has so many times the replicas. A square-root law says what other numbers serve."""
HYSTERESIS = timedelta(minutes=10)
"""Replicas that were needed within this time are kept."""
RATE_SECONDS, SUDDEN_SECONDS = 300.0, 30.0
"""Windows of the rate of requests, and of a sudden rise."""
JUDGED_SECONDS, LOAD_SECONDS = 45.0, 600.0
"""Least time of which it is judged how requests are served; and the time that shows what the load is like."""
LOOK_SECONDS = 10.0
"""Time between two evaluations while there are requests."""
BIN_SECONDS = 600
"""Length of the bins of the rates of the last day."""
SAME_MIX = 0.4
"""Sum of the changes of the task types' shares for which a capacity still holds."""
MAX_CORRECTION = 3.0
STILL = 0.8
"""Part of the bad requests from which on more replicas of a stage were no help."""
LESS = 0.9
"""Part of a use of the capacity with bad requests that is used from then on."""
MILD = 5.0
"""Ratio of bad requests, of what is tolerated, that shows that a capacity is nearly reached."""
FAST, SLOW = 1.03, 1.005
"""Growth of the used capacity in five minutes while requests are served well, up to what was too much, and beyond."""
_MAX_TARGET = 0.998
"""The model plays too few requests for more."""
_REQUESTS = 1600
_AMPLE_CODECS, _AMPLE_TALKERS = 8, 2
"""Codecs for each talker, and talkers for each that is needed, which do not limit the other stage."""
_TINY, _BISECTIONS = 2.0**-8, 4
"""Share of the present load for each replica that is next to none."""


class CapacityQuestion(Struct, frozen=True, kw_only=True):
    """What the capacity of replicas depends on."""

    asked: Question
    target: float
    """Ratio of requests to serve well."""
    time: datetime


AskCapacity = Callable[[CapacityQuestion], Capacity | None]
"""Returns the answer to this question, or to one asked shortly before; None while it is not known yet."""
AskModel = Callable[[DecisionBuilder, Evidence, Setting], Question | None]
"""Returns a question about a setting and the requests of a window; None while the engines' times are not known."""


def capacity(question: CapacityQuestion) -> Capacity:
    """Returns the requests per second that talkers and codecs serve well. Takes seconds."""
    asked = question.asked
    # How fast the engines are in truth, the corrections say.
    load, plant = asked.load, replace(calibrated(asked), slowdown=asked.plant.slowdown)
    # Each stage may cause half of the bad requests.
    tolerated = (1 - min(question.target, _MAX_TARGET)) / 2
    talkers = codecs = Curve()

    def bad_ratio(rate: float, talkers: int, codecs: int) -> float:
        rates = {name: each * rate / load.rate for name, each in load.rates.items()}
        counted = replace(plant, talkers=talkers, codecs=codecs)
        model = Model(replace(load, rates=rates), counted, asked.measured, _REQUESTS)
        live = model.live(asked.current.talker_max_num_seqs)
        fits = live + 2 * math.sqrt(live) <= codecs * plant.codec_resident
        return 1 - model.outcome(asked.current).well if fits else 1.0

    def of_talkers(rate: float, count: int) -> float:
        return bad_ratio(rate, count, _AMPLE_CODECS * count)

    def of_codecs(rate: float, count: int) -> float:
        return bad_ratio(rate, _AMPLE_TALKERS * max(math.ceil(talkers.needed(rate)), count), count)

    talkers = _curve(of_talkers, tolerated, load.rate / plant.talkers)
    if talkers.slope:
        codecs = _curve(of_codecs, tolerated, load.rate / plant.codecs)
    return Capacity(
        time=question.time,
        setting=asked.current,
        shares={name: rate / load.rate for name, rate in load.rates.items()},
        frames=load.frames,
        curves={Stage.TALKER: talkers, Stage.CODEC: codecs},
    )


def _curve(bad_ratio: Callable[[float, int], float], tolerated: float, guess: float) -> Curve:
    """Returns the capacity of a stage, of which `bad_ratio` is a function of the rate and the number of replicas.

    `guess` is about what a replica serves. In bursts, few replicas serve not even a small load well.
    """
    first = next((count for count in SIZES if bad_ratio(_TINY * guess * count, count) <= tolerated / 2), 0)
    if not first:
        return Curve()
    one = _most(lambda rate: bad_ratio(rate, first) <= tolerated, guess * first, 2.0, _BISECTIONS)
    # More replicas serve more than in proportion.
    other = _most(lambda rate: bad_ratio(rate, SPAN * first) <= tolerated, SPAN * one, 1.3, _BISECTIONS - 2)
    # Through both points.
    root = max((other / SPAN - one) / (1 - 1 / math.sqrt(SPAN)) / math.sqrt(first), 0.0)
    return Curve(slope=other / (SPAN * first) + root / math.sqrt(SPAN * first), root=root)


def _most(serves: Callable[[float], bool], rate: float, factor: float, bisections: int) -> float:
    """Returns the largest rate that is served well: that of a guess, and steps by a factor, which are then bisected."""
    is_served = serves(rate)
    for _ in range(8):
        other = rate * factor if is_served else rate / factor
        if serves(other) != is_served:
            break
        rate = other
    low, high = (rate, rate * factor) if is_served else (rate / factor, rate)
    for _ in range(bisections):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if serves(middle) else (low, middle)
    return low


# One decision -------------------------------------------------------------------------------------------------------


def advance(builder: DecisionBuilder, question: AskModel, ask: AskCapacity) -> None:
    """Decides the number of replicas once, if that is asked for."""
    if not builder.policy.scales:
        builder.set(replicas=None)
        return
    now = builder.look(builder.now, builder.now)
    _follow(builder, now)
    if builder.state.replicas is None:
        return
    if not builder.state.measured.is_known:  # Another image, model or device: what replicas can do is forgotten.
        stages = {stage: replace(part, correction=USUAL, limit=ANY) for stage, part in _memory(builder).stages.items()}
        builder.set(replicas=replace(_memory(builder), capacity=None, stages=stages))
    _record_rate(builder)
    recent = builder.look(builder.now - timedelta(seconds=RATE_SECONDS), builder.now)
    if recent.problem or recent.seconds < SUDDEN_SECONDS / 2:
        return
    if recent.rates:
        builder.requeue_after = min(builder.requeue_after, LOOK_SECONDS)
    # The load does not depend on the replicas, how it is served does.
    long = builder.look(builder.now - timedelta(seconds=LOAD_SECONDS), builder.now)
    known = builder.look(max(_memory(builder).ready_time, long.since), builder.now)
    if known.of_arm().accepted >= MIN_REQUESTS:
        if builder.state.trial is None or _memory(builder).capacity is None:
            _measure(builder, known, long, question, ask)
        if builder.state.trial is None and builder.state.soak is None:
            _correct(builder, known)
    _scale(builder, now, coming_rate(builder, replace(recent, burst=long.burst)))


def _memory(builder: DecisionBuilder) -> Replicas:
    assert builder.state.replicas is not None
    return builder.state.replicas


def _follow(builder: DecisionBuilder, now: Evidence) -> None:
    """Follows which replicas there are, and how long one takes to become ready."""
    memory, scales = builder.state.replicas, builder.policy.scales
    present = {stage: now.replicas_of(stage) for stage in TUNED_STAGES}
    if memory is None and (now.disruption or not all(present.values())):
        return
    known = memory or Replicas(ready_time=builder.now, judged_time=builder.now)
    stages = {}
    for stage, replicas in present.items():
        part = known.stages.get(stage, StageReplicas(count=len(replicas)))
        # The count of others is not decided here.
        is_own = stage in scales and scales[stage].mode == "Auto" and stage in known.stages
        count = part.count if is_own or now.disruption else len(replicas)
        stages[stage] = replace(part, count=count, ready=sum(each.ready for each in replicas))
    if any(stages[stage].ready != part.ready for stage, part in known.stages.items()):
        # What was observed of other replicas says nothing about these.
        known = replace(known, ready_time=builder.now)
        builder.set(last_change_time=builder.now)
    if known.added_time is not None and all(part.ready >= part.count for part in stages.values()):
        took = min(builder.seconds_since(known.added_time), float(BIN_SECONDS))
        known = replace(known, added_time=None, start_seconds=round((known.start_seconds + took) / 2))
    builder.set(replicas=replace(known, stages=stages))


# The load that is coming --------------------------------------------------------------------------------------------


def _record_rate(builder: DecisionBuilder) -> None:
    """Keeps the mean rate of the last complete bin."""
    memory, number = _memory(builder), int(builder.now.timestamp()) // BIN_SECONDS - 1
    if number <= memory.last_bin:
        return
    begin = datetime.fromtimestamp(number * BIN_SECONDS, builder.now.tzinfo)
    window = builder.look(begin, begin + timedelta(seconds=BIN_SECONDS))
    rate = sum(window.rates.values())
    if not rate or window.seconds < BIN_SECONDS / 2:
        return  # The state of an idle pipeline does not change.
    rates = list(memory.rates or (0.0,) * RATE_BINS)
    for each in range(max(memory.last_bin + 1, number - RATE_BINS + 1), number):
        rates[each % RATE_BINS] = 0.0
    rates[number % RATE_BINS] = float(f"{rate:.3g}")
    builder.set(replicas=replace(memory, rates=tuple(rates), last_bin=number))


def coming_rate(builder: DecisionBuilder, recent: Evidence) -> float:
    """Returns the requests per second to expect until a replica that starts now is ready: the largest of the present
    rate, of a sudden rise, of the trend, and of the growth at the same time yesterday."""
    lead = _memory(builder).start_seconds + builder.policy.interval
    rate = _bound(recent, 1.0)
    found = [rate, _as_yesterday(builder, rate, lead)]
    for before, after in _pairs(builder, SUDDEN_SECONDS, recent.burst):
        lowest = _bound(after, -2.0)
        # A certain rise goes on for as long again.
        is_rising = _bound(after, -3.0) > _bound(before, 3.0)
        found.append(2 * lowest - _bound(before) if is_rising else lowest)
    # A trend shows in the last minutes and in those before. A step does not for long.
    slopes = [
        (_bound(after) - _bound(before)) / seconds
        for seconds in (RATE_SECONDS, 2 * RATE_SECONDS)
        for before, after in _pairs(builder, seconds, recent.burst)
    ]
    if len(slopes) == 2:
        found.append(_bound(recent) + min(slopes) * (RATE_SECONDS / 2 + lead))
    return max(found)


def _pairs(builder: DecisionBuilder, seconds: float, burst: float) -> Iterator[tuple[Evidence, Evidence]]:
    """Yields the last seconds and as many before, if enough of both is known. Short ones do not show the bursts."""
    middle = builder.now - timedelta(seconds=seconds)
    before, after = (
        replace(builder.look(end - timedelta(seconds=seconds), end), burst=burst) for end in (middle, builder.now)
    )
    if min(before.seconds, after.seconds) > seconds / 2:
        yield before, after


def _bound(window: Evidence, deviations: float = 0.0) -> float:
    """Returns the rate of a window and some of its standard deviations."""
    count = float(window.of_arm().accepted)
    return max(0.0, count + deviations * math.sqrt(window.dispersion * count)) / window.seconds


def _as_yesterday(builder: DecisionBuilder, rate: float, lead: float) -> float:
    """Returns the rate if it grows as at this time yesterday, but not beyond what it was then."""
    memory, now = _memory(builder), builder.now.timestamp()
    then, before = (
        memory.rates[number % RATE_BINS] if memory.last_bin - RATE_BINS < number <= memory.last_bin else 0.0
        for number in (int(moment) // BIN_SECONDS - RATE_BINS for moment in (now + lead, now))
    )
    return min(then, rate * then / before) if before else then


# What replicas can do -----------------------------------------------------------------------------------------------


def _measure(builder: DecisionBuilder, known: Evidence, long: Evidence, question: AskModel, ask: AskCapacity) -> None:
    """Asks the model for the capacity of replicas, unless it is known for this setting and mix."""
    memory, setting = _memory(builder), in_force(builder.policy, builder.state)
    if memory.capacity is None and _verdict(builder, known) is None:
        return  # What is observed corrects the first answer at once.
    if long.seconds < RATE_SECONDS / 2:
        return  # Bursts do not show in less.
    asked = question(builder, long, setting)
    if asked is None or _holds(builder, memory.capacity, asked):
        return
    found = ask(CapacityQuestion(asked=asked, target=_target(builder), time=builder.now))
    if found is None:
        builder.requeue_after = min(builder.requeue_after, 2.0)
    elif found.setting == setting:
        builder.set(replicas=replace(memory, capacity=found))


def _holds(builder: DecisionBuilder, known: Capacity | None, asked: Question) -> bool:
    if known is None or known.setting != asked.current:
        return False
    shares = {name: rate / asked.load.rate for name, rate in asked.load.rates.items()}
    change = sum(abs(shares.get(name, 0.0) - known.shares.get(name, 0.0)) for name in {*shares, *known.shares})
    return change < SAME_MIX and alike(asked.load.frames, known.frames)


def _verdict(builder: DecisionBuilder, known: Evidence) -> bool | None:
    """Returns whether the ready replicas serve the requests well; None while that is not known."""
    seen = known.of_arm()
    tolerated = (1 - _target(builder)) * seen.accepted
    if known.seconds >= JUDGED_SECONDS and seen.bad > tolerated + 2 * math.sqrt(known.burst * tolerated) + 1:
        return False
    return True if known.seconds >= RATE_SECONDS / 2 and seen.bad <= tolerated / 2 else None


def _correct(builder: DecisionBuilder, known: Evidence) -> None:
    """Corrects the capacity by what is observed. If requests are bad, it is that of the stage which is nearest to its
    limit; or of the other, if more replicas of the first were no help."""
    memory, is_good = _memory(builder), _verdict(builder, known)
    if memory.capacity is None or is_good is None:
        return
    curves, stages, bad = memory.capacity.curves, dict(memory.stages), known.of_arm().bad_ratio
    rate = sum(known.rates.values())
    use = {stage: curves[stage].needed(rate) / max(part.ready, 1) for stage, part in stages.items()}
    if is_good:
        grows = builder.seconds_since(memory.judged_time) >= RATE_SECONDS
        for stage, part in stages.items():
            factor = 1.0 if not grows else FAST if part.correction * FAST < LESS * part.limit else SLOW
            # Only what was served well shows that the model promises too little.
            usual = max(part.correction, min(part.correction * factor, 1.0))
            stages[stage] = _corrected(part, max(usual, use[stage]))
    elif not _is_bad_now(builder):
        return
    elif any(use[stage] > part.correction for stage, part in stages.items()):
        # It was to be expected. If few are bad, it is not far from what they serve well.
        if bad < MILD * (1 - _target(builder)):
            for stage, part in stages.items():
                stages[stage] = _corrected(part, max(part.correction, LESS * use[stage]))
    else:
        blamed = max(stages, key=lambda stage: use[stage] / stages[stage].correction)
        if blamed is memory.blamed and bad > STILL * memory.blamed_bad:
            blamed = next(stage for stage in stages if stage is not blamed)
        stages[blamed] = replace(_corrected(stages[blamed], LESS * use[blamed]), limit=round(use[blamed], 3))
        memory = replace(memory, blamed=blamed, blamed_bad=bad)
    if stages != memory.stages:
        builder.set(replicas=replace(memory, stages=stages, judged_time=builder.now))


def _is_bad_now(builder: DecisionBuilder) -> bool:
    """Returns whether requests were bad in the last minute, under the present load."""
    last = builder.look(builder.now - timedelta(seconds=2 * SUDDEN_SECONDS), builder.now).of_arm()
    return last.bad > (1 - _target(builder)) * last.accepted


def _corrected(part: StageReplicas, correction: float) -> StageReplicas:
    return replace(part, correction=round(min(correction, MAX_CORRECTION), 3))


def _target(builder: DecisionBuilder) -> float:
    """Returns the strictest ratio of requests to serve well."""
    return max(each.target for each in builder.policy.objectives.values())


# Scaling ------------------------------------------------------------------------------------------------------------


def _scale(builder: DecisionBuilder, now: Evidence, rate: float) -> None:
    memory, scales = _memory(builder), builder.policy.scales
    if memory.capacity is None or not all(memory.capacity.curves[stage].slope for stage in scales):
        return
    wanted = {
        stage: max(1, math.ceil(memory.capacity.curves[stage].needed(rate) / part.correction - 1e-6))
        for stage, part in memory.stages.items()
    }
    if builder.policy.colocated:
        wanted = dict.fromkeys(wanted, max(wanted.values()))
    may_remove = not (now.disruption or builder.state.trial or builder.state.soak)
    stages = {
        stage: _scaled(part, wanted[stage], scales[stage], builder.now, may_remove=may_remove)
        if stage in scales
        else replace(part, wanted=wanted[stage])
        for stage, part in memory.stages.items()
    }
    builder.set(replicas=replace(memory, stages=stages))
    _report(builder, memory, rate)


def _scaled(part: StageReplicas, wanted: int, scale: Scale, now: datetime, *, may_remove: bool) -> StageReplicas:
    """Returns a stage with its new count, in mode Recommend with the recommended one."""
    goal = min(max(wanted, scale.minimum), scale.maximum)
    before = part.count if scale.mode == "Auto" or part.recommended is None else part.recommended
    before = min(max(before, scale.minimum), scale.maximum)
    peaks: tuple[Peak, ...] = ()
    if goal < before:
        lasting = [each for each in part.peaks or (Peak(now, before),) if now - each.time < HYSTERESIS]
        peaks = (*(each for each in lasting if each.count > goal), Peak(now, goal))
    count = min(before, max(each.count for each in peaks)) if peaks and may_remove else max(before, goal)
    if scale.mode == "Auto":
        return replace(part, wanted=wanted, peaks=peaks, count=count, recommended=None)
    return replace(part, wanted=wanted, peaks=peaks, recommended=count)


def _report(builder: DecisionBuilder, before: Replicas, rate: float) -> None:
    """Writes an event for what has changed, and ends a trial that added replicas would disturb."""
    memory = _memory(builder)
    changed = {stage: part for stage, part in memory.stages.items() if part.count != before.stages[stage].count}
    advised = {stage: part for stage, part in memory.stages.items() if part.recommended not in (None, part.count)}
    advised = {stage: part for stage, part in advised.items() if part.recommended != before.stages[stage].recommended}
    lead = memory.start_seconds + builder.policy.interval
    for stage, part in {**changed, **advised}.items():
        former = before.stages[stage].count
        why = f"{rate:.3g} requests/s are expected within {lead:.0f} s, and {former} serve {able(before, stage):.3g}"
        is_own = stage in changed
        count = part.count if is_own else part.recommended
        reason = ("ScaledUp" if part.count > former else "ScaledDown") if is_own else "ScalingRecommended"
        why = f"{stage}: {former} -> {count} replicas: {why}"
        builder.set(replicas=replace(_memory(builder), why=why[:256]))
        builder.emit(reason, why)
    if any(part.count > before.stages[stage].count for stage, part in changed.items()):
        if (trial := builder.state.trial) is not None:
            end_trial(builder, trial, "Superseded", "replicas are added")
        builder.set(replicas=replace(_memory(builder), added_time=builder.now))
    if changed:
        builder.requeue_after = min(builder.requeue_after, 1.0)


def able(memory: Replicas, stage: Stage) -> float:
    """Returns the requests per second that a stage's replicas serve well, once their capacity is known."""
    part = memory.stages[stage]
    return memory.capacity.curves[stage].served(part.correction * part.count) if memory.capacity else 0.0


def summary(memory: Replicas) -> str:
    """Returns the numbers and the last change as a line of text."""
    counts = ", ".join(
        f"{stage} {part.count}" + (f" ({part.recommended} recommended)" if part.recommended is not None else "")
        for stage, part in memory.stages.items()
    )
    return f"{counts}; {memory.why}" if memory.why else counts
