"""What talkers and codecs carry: the model's answer, corrected by what is observed. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import product

from msgspec.structs import replace

from syrinx_operator.observed.evidence import MIN_REQUESTS, Evidence, alike
from syrinx_operator.resource.state.tuning_status import LOG_WORTHS, Capacity, Curve, Worth
from syrinx_operator.tuner.builder import DecisionBuilder, in_force
from syrinx_operator.tuner.model.plan import Question, calibrated, question_of
from syrinx_operator.tuner.model.whatif import Model
from syrinx_operator.tuner.watch import BACKLOG_SECONDS
from syrinx_stages.contract.stages import Stage

SAME_MIX = 0.4
"""Sum of the changes of the task types' shares for which a capacity still holds."""
JUDGED_SECONDS = 60.0
"""Time whose requests are weighed together."""
STEEP, MOST = 6.0, 0.45
"""The ratio of bad requests grows with this power of what is used of a stage's capacity, up to `MOST`."""
LEAST = 0.2
"""Part of what is tolerated: fewer bad requests say no more, because how soon they begin differs."""
WEIGHT = 0.5
"""Part of the requests that count: those that wait for the same ones are served alike."""
DRIFT = 0.04
"""Chance that the worth of a replica changes by a tenth in `JUDGED_SECONDS`."""
_COUNTS, _SPAN = (1, 2, 4, 8), 4
"""A curve goes through the first of these numbers of replicas that serves a load well, and `_SPAN` times as many."""
_REQUESTS = 800
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


def measure(builder: DecisionBuilder, load: Evidence) -> None:
    """Asks the model for the capacity, unless it is known for this setting and mix of requests, those of a window."""
    memory, setting = builder.replicas, in_force(builder.policy, builder.state)
    asked = question_of(builder.policy, builder.state, load, setting, builder.now)
    if load.seconds < JUDGED_SECONDS or asked is None or _holds(memory.capacity, asked):
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


def judge(builder: DecisionBuilder) -> None:
    """Learns what a replica is worth from how the present ones have served the requests since the last time."""
    memory = builder.replicas
    since = max(memory.judged_time, memory.ready_time + timedelta(seconds=BACKLOG_SECONDS))
    known = builder.look(min(since, builder.now), builder.now)
    if memory.capacity is None or known.seconds < JUDGED_SECONDS or known.of_arm().accepted < MIN_REQUESTS:
        return
    curves, rate = memory.capacity.curves, known.rate
    use = {stage: curves[stage].needed(rate) / max(part.ready, 1) for stage, part in memory.stages.items()}
    worth = weighed({stage: part.worth for stage, part in memory.stages.items()}, use, 1 - _target(builder), known)
    stages = {stage: replace(part, worth=worth[stage]) for stage, part in memory.stages.items()}
    builder.set(replicas=replace(memory, stages=stages, judged_time=builder.now))


def weighed(
    worth: Mapping[Stage, Worth], use: Mapping[Stage, float], tolerated: float, known: Evidence
) -> dict[Stage, Worth]:
    """Returns what replicas are worth after a window of requests: Bayes' rule, on a grid of both stages' worths.

    use: what the load uses of each stage's capacity, according to the model. tolerated: ratio of bad requests there.
    """
    seen, (one, other) = known.of_arm(), worth
    requests, ratio = WEIGHT * seen.accepted / known.dispersion, seen.bad_ratio
    bad = {
        stage: [min(tolerated * (use[stage] / math.exp(each)) ** STEEP, MOST) for each in LOG_WORTHS] for stage in worth
    }
    found = {stage: [0.0] * len(LOG_WORTHS) for stage in worth}
    for (i, first), (j, second) in product(enumerate(worth[one].chances), enumerate(worth[other].chances)):
        expected = max(bad[one][i] + bad[other][j], LEAST * tolerated)
        surprise = ratio * math.log(ratio / expected) if ratio else 0.0
        surprise += (1 - ratio) * math.log((1 - ratio) / (1 - expected)) if ratio < 1 else 0.0
        chance = first * second * math.exp(-requests * surprise)
        found[one][i] += chance
        found[other][j] += chance
    return {stage: _spread(chances, worth[stage]) for stage, chances in found.items()}


def _spread(chances: Sequence[float], before: Worth) -> Worth:
    """Returns a distribution whose total is 1,000, after `DRIFT`; the one before if nothing can be as it was seen."""
    if not (total := sum(chances)):
        return before
    around = zip((chances[0], *chances), chances, (*chances[1:], chances[-1]), strict=False)
    moved = ((1 - DRIFT) * middle + DRIFT * (left + right) / 2 for left, middle, right in around)
    return Worth(tuple(round(1000 * each / total, 2) for each in moved))


def _target(builder: DecisionBuilder) -> float:
    """Returns the strictest ratio of requests to serve well."""
    return max(each.target for each in builder.policy.objectives.values())
