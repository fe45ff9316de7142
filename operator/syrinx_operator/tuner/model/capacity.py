"""What talkers and codecs carry: the model's answer, corrected by what is observed. Pure."""

import math
from collections.abc import Callable
from datetime import timedelta

from msgspec.structs import replace

from syrinx_operator.resource.state.tuning_status import Capacity, Curve, Replicas, StageReplicas
from syrinx_operator.tuner.builder import DecisionBuilder, in_force
from syrinx_operator.tuner.model.plan import Question, calibrated, question_of
from syrinx_operator.tuner.model.whatif import Model
from syrinx_operator.tuner.observed.evidence import WINDOW_SECONDS, Evidence, alike
from syrinx_stages.contract.stages import Stage

BADLY_SECONDS = 45.0
"""Least time that shows that requests are served badly. That they are served well takes half a window: bursts."""
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
"""Growth of the correction in a window while requests are served well, up to what was too much, and beyond."""
_COUNTS, _SPAN = (1, 2, 4, 8), 4
"""A curve goes through the first of these numbers of replicas that serves a load well, and `_SPAN` times as many."""
_REQUESTS = 1600
"""Requests that the model plays."""
_AMPLE_CODECS, _AMPLE_TALKERS = 8, 2
"""Codecs for each talker, and talkers for each that is needed, which do not limit the other stage."""


def capacity(asked: Question, target: float) -> Capacity:
    """Returns the requests per second of which talkers and codecs serve the ratio `target` well. Takes seconds."""
    # How fast the engines are in truth, the corrections say.
    load, plant = asked.load, replace(calibrated(asked), slowdown=asked.plant.slowdown)
    # Each stage may cause half of the bad requests.
    # Three of the requests that are played are the least that shows a ratio.
    tolerated = max(1 - target, 3 / _REQUESTS) / 2
    talkers = codecs = Curve()

    def bad_ratio(rate: float, talkers: int, codecs: int) -> float:
        rates = {name: each * rate / load.rate for name, each in load.rates.items()}
        counted = replace(plant, talkers=talkers, codecs=codecs)
        model = Model(replace(load, rates=rates), counted, asked.measured, _REQUESTS)
        live = model.live(asked.current.talker_max_num_seqs)
        fits = live + 2 * math.sqrt(live) <= codecs * plant.codec_resident
        return 1 - model.score(asked.current).well if fits else 1.0

    def of_talkers(rate: float, count: int) -> float:
        return bad_ratio(rate, count, _AMPLE_CODECS * count)

    def of_codecs(rate: float, count: int) -> float:
        return bad_ratio(rate, _AMPLE_TALKERS * max(math.ceil(talkers.needed(rate)), count), count)

    talkers = _curve(of_talkers, tolerated, load.rate / plant.talkers)
    if talkers.slope:
        codecs = _curve(of_codecs, tolerated, load.rate / plant.codecs)
    return Capacity(
        setting=asked.current,
        shares=_shares(asked),
        frames=load.frames,
        curves={Stage.TALKER: talkers, Stage.CODEC: codecs},
    )


def _curve(bad_ratio: Callable[[float, int], float], tolerated: float, guess: float) -> Curve:
    """Returns the capacity of a stage, of which `bad_ratio` is a function of the rate and the number of replicas.

    `guess` is about what a replica serves. In bursts, few replicas serve not even a small load well.
    """
    first = next((count for count in _COUNTS if bad_ratio(guess / 256 * count, count) <= tolerated / 2), 0)
    if not first:
        return Curve()
    one = _most(lambda rate: bad_ratio(rate, first) <= tolerated, guess * first, 2.0, 4)
    # More replicas serve more than in proportion.
    other = _most(lambda rate: bad_ratio(rate, _SPAN * first) <= tolerated, _SPAN * one, 1.3, 2)
    root = max((other / _SPAN - one) / (1 - 1 / math.sqrt(_SPAN)) / math.sqrt(first), 0.0)
    return Curve(slope=other / (_SPAN * first) + root / math.sqrt(_SPAN * first), root=root)


def _most(serves: Callable[[float], bool], rate: float, factor: float, bisections: int) -> float:
    """Returns the largest rate that is served well, near a guess: by steps of a factor, then by bisection."""
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


def _shares(asked: Question) -> dict[str, float]:
    return {name: rate / asked.load.rate for name, rate in asked.load.rates.items()}


# What is observed ---------------------------------------------------------------------------------------------------


def measure(builder: DecisionBuilder, load: Evidence, known: Evidence) -> None:
    """Asks the model for the capacity, unless it is known for this setting and mix of requests.

    `load` is a window of requests, `known` is the part of it that the present replicas served.
    """
    memory, setting = builder.replicas, in_force(builder.policy, builder.state)
    # What is observed corrects the first answer at once.
    if load.seconds < WINDOW_SECONDS / 2 or (memory.capacity is None and _is_well(builder, known) is None):
        return
    asked = question_of(builder.policy, builder.state, load, setting, builder.now)
    if asked is None or _holds(memory.capacity, asked):
        return
    found = builder.ask_capacity(asked, _target(builder))
    if found is None:
        builder.requeue_after = min(builder.requeue_after, 2.0)
    elif found.setting == setting:
        builder.set(replicas=replace(memory, capacity=found))


def _holds(known: Capacity | None, asked: Question) -> bool:
    if known is None or known.setting != asked.current:
        return False
    shares = _shares(asked)
    change = sum(abs(shares.get(name, 0.0) - known.shares.get(name, 0.0)) for name in {*shares, *known.shares})
    return change < SAME_MIX and alike(asked.load.frames, known.frames)


def _is_well(builder: DecisionBuilder, known: Evidence) -> bool | None:
    """Returns whether the ready replicas serve the requests well; None while that is not known."""
    seen = known.of_arm()
    tolerated = (1 - _target(builder)) * seen.accepted
    if known.seconds >= BADLY_SECONDS and seen.bad > tolerated + 2 * math.sqrt(known.dispersion * tolerated) + 1:
        return False
    return True if known.seconds >= WINDOW_SECONDS / 2 and seen.bad <= tolerated / 2 else None


def correct(builder: DecisionBuilder, known: Evidence) -> None:
    """Corrects the capacity by how the present replicas serve the requests of a window."""
    memory, is_well = builder.replicas, _is_well(builder, known)
    if memory.capacity is None or is_well is None:
        return
    rate, curves = sum(known.rates.values()), memory.capacity.curves
    use = {stage: curves[stage].needed(rate) / max(part.ready, 1) for stage, part in memory.stages.items()}
    if is_well:
        new = _raised(memory, use, grows=builder.seconds_since(memory.judged_time) >= WINDOW_SECONDS)
    elif not _is_bad_now(builder):
        return
    elif all(use[stage] <= part.correction for stage, part in memory.stages.items()):
        new = _blaming(memory, use, known.of_arm().bad_ratio)
    elif known.of_arm().bad_ratio < MILD * (1 - _target(builder)):
        # It was to be expected. As few are bad, it is not far from what they serve well.
        new = _with(memory, {stage: max(memory.stages[stage].correction, LESS * use[stage]) for stage in use})
    else:
        return
    if new != memory:
        builder.set(replicas=replace(new, judged_time=builder.now))


def _raised(memory: Replicas, use: dict[Stage, float], *, grows: bool) -> Replicas:
    """Returns the corrections after requests were served well: at least what was used."""

    def grown(part: StageReplicas) -> float:
        factor = FAST if part.correction * FAST < LESS * part.limit else SLOW
        # Only what was served well shows that the model promises too little.
        return max(part.correction, min(part.correction * factor, 1.0)) if grows else part.correction

    return _with(memory, {stage: max(grown(part), use[stage]) for stage, part in memory.stages.items()})


def _blaming(memory: Replicas, use: dict[Stage, float], bad: float) -> Replicas:
    """Returns the corrections after too many requests were bad: less for the stage that is nearest to its limit, or for
    the other one if more replicas of the first were no help."""
    blamed = max(use, key=lambda stage: use[stage] / memory.stages[stage].correction)
    if blamed is memory.blamed and bad > STILL * memory.blamed_bad:
        blamed = next(stage for stage in use if stage is not blamed)
    part = replace(memory.stages[blamed], limit=round(use[blamed], 3))
    known = replace(memory, stages={**memory.stages, blamed: part}, blamed=blamed, blamed_bad=bad)
    return _with(known, {blamed: LESS * use[blamed]})


def _with(memory: Replicas, corrections: dict[Stage, float]) -> Replicas:
    stages = {
        stage: replace(memory.stages[stage], correction=round(min(correction, MAX_CORRECTION), 3))
        for stage, correction in corrections.items()
    }
    return replace(memory, stages={**memory.stages, **stages})


def _is_bad_now(builder: DecisionBuilder) -> bool:
    """Returns whether requests were bad in the last minute, under the present load."""
    last = builder.look(builder.now - timedelta(minutes=1), builder.now).of_arm()
    return last.bad > (1 - _target(builder)) * last.accepted


def _target(builder: DecisionBuilder) -> float:
    """Returns the strictest ratio of requests to serve well."""
    return max(each.target for each in builder.policy.objectives.values())
