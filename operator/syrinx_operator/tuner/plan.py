"""Chooses a setting: plays the load under all of them, and the best ones again for longer. Pure; takes seconds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import Measured
from syrinx_operator.tuner.whatif import Load, Model, Outcome, Plant

_ROUNDS = ((120, 16), (400, 4), (1200, 1))
"""(requests, settings kept) of each round. The first has all settings."""
_GROWTH, _OVERLOAD = 1.15, 0.7
"""A setting must also serve this much more load, which counts `_GROWTH_WEIGHT`: forecasts err, and load grows. Where
most requests are bad it is less load: that shows which setting carries most."""
_GROWTH_WEIGHT = 0.25
_MOST_ARE_BAD = 0.5
_NEARER = 0.02
"""Ratio of engine time that a distance of 1 from the current setting must save."""
_SLOWDOWN = (0.6, 2.5)
"""Range of the factor of all engine times that the model may need to agree with what is observed."""
_AGREES, _AGREES_BADLY = 0.01, 0.1
"""Difference from what is observed that is not corrected where all requests are served well, and where none is."""
_BISECTIONS = 6
_CALIBRATION_REQUESTS = 1200
_ALIKE = 0.003
"""Difference of the score within which the setting with less engine time is better."""


class Compared(NamedTuple):
    """What a comparison has shown."""

    setting: Setting
    baseline: Setting
    difference: float
    """Ratio of requests served well, setting minus baseline."""


class Question(Struct, frozen=True, kw_only=True):
    """What a plan depends on."""

    load: Load
    plant: Plant
    measured: Measured
    current: Setting
    rows: Mapping[Knob, tuple[int, ...]]
    ramps: tuple[tuple[int, ...], ...]
    avoided: tuple[Setting, ...] = ()
    """Settings that failed under such a load."""
    compared: tuple[Compared, ...] = ()
    """Comparisons under such a load. The model errs near them as it erred there."""
    observed_well: float | None = None
    """Ratio of requests that the current setting serves well; None if it never served such a load."""
    observed_quick: Mapping[str, float] = {}
    """The `QUICK`-quantile of their TTFA in seconds, by task type."""


class Forecast(Struct, frozen=True):
    """What the model says of a setting."""

    setting: Setting
    well: float
    """Ratio of requests served well."""
    busy: float
    """Engine seconds for each second of audio."""
    score: float


class Answer(Struct, frozen=True):
    """The best setting, and the current one under the same requests."""

    current: Forecast
    best: Forecast
    error: float
    """Median error of the model about the comparisons."""


def plan(question: Question) -> Answer:
    """Returns the best setting within the bounds. The current one stays unless another is better."""
    question = replace(question, plant=calibrated(question))
    settings = [each for each in _settings(question) if each not in question.avoided]
    current = question.current
    for count, kept in _ROUNDS:
        models = _models(question, count, first=kept == _ROUNDS[0][1])
        errors = _errors(question, models[0])
        found = [_forecast(models, errors, each) for each in {current: None, **dict.fromkeys(settings)}]
        best = max(each.score for each in found)
        found.sort(key=lambda each: _order(each, best, current))
        settings = [each.setting for each in found[:kept]]
    now = next(each for each in found if each.setting == current)
    error = statistics.median(abs(missed) for _, missed in errors) if errors else 0.0
    return Answer(current=now, best=found[0], error=error)


def _order(each: Forecast, best: float, current: Setting) -> tuple[bool, float]:
    """Sort key, best first: of those that are as good, the one with least engine time, or else the nearest."""
    if best - each.score > _ALIKE:
        return True, -each.score
    return False, each.busy * (1 + _NEARER * _distance(each.setting, current))


def calibrated(question: Question) -> Plant:
    """Returns the plant under which the model agrees with what was observed of the current setting, if anything was."""
    if question.observed_well is None:
        return question.plant
    plain = _current(question, question.plant)
    offsets = {}
    for task_type, seconds in question.observed_quick.items():
        most = question.plant.limits.get(task_type, math.inf) / 2
        unexplained = question.observed_well * max(seconds - plain.quick.get(task_type, seconds), 0.0)
        offsets[task_type] = min(unexplained, most)
    plant = replace(question.plant, offsets=offsets)
    low, high = _SLOWDOWN
    tolerance = _AGREES + _AGREES_BADLY * (1 - question.observed_well) ** 2
    if abs(_current(question, plant).well - question.observed_well) < tolerance:
        return plant
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        is_better = _current(question, replace(plant, slowdown=middle)).well > question.observed_well
        low, high = (middle, high) if is_better else (low, middle)
    return replace(plant, slowdown=math.sqrt(low * high))


def _current(question: Question, plant: Plant) -> Outcome:
    return Model(question.load, plant, question.measured, _CALIBRATION_REQUESTS).outcome(question.current)


def _settings(question: Question) -> Sequence[Setting]:
    current = question.current
    # From the largest limits: those that are not reached need no run of their own.
    talkers, codecs = (sorted(question.rows[knob], reverse=True) for knob in (Knob.TALKER_ROWS, Knob.CODEC_ROWS))
    return [
        Setting(
            talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp, capture_pairs=current.capture_pairs
        )
        for talker, codec, ramp in product(talkers, codecs, question.ramps)
    ]


def _models(question: Question, count: int, *, first: bool) -> list[Model]:
    """Returns the models of the load, and of another one: of more load from the second round on, or of less."""
    load, plant, measured = question.load, question.plant, question.measured
    models = [Model(load, plant, measured, count)]
    is_overload = question.observed_well is not None and question.observed_well < _MOST_ARE_BAD
    if is_overload or not first:
        factor = _OVERLOAD if is_overload else _GROWTH
        rates = {name: rate * factor for name, rate in load.rates.items()}
        models.append(Model(replace(load, rates=rates), plant, measured, count, seed=1))
    return models


def _errors(question: Question, model: Model) -> list[tuple[Setting, float]]:
    """Returns by how much the model was wrong about settings that were compared."""
    found = []
    for setting, baseline, difference in question.compared:
        missed = difference - (model.outcome(setting).well - model.outcome(baseline).well)
        # The model agrees about the current setting.
        found.append((baseline, -missed) if setting == question.current else (setting, missed))
    return found


def _distance(one: Setting, other: Setting) -> float:
    """Returns how different two settings are: 1 for a factor of four in rows, or about as much in the first chunk."""
    return sum(
        abs(math.log2(a / b)) / 2
        for a, b in (
            (one.talker_max_num_seqs, other.talker_max_num_seqs),
            (one.codec_max_num_seqs, other.codec_max_num_seqs),
            (one.chunk_ramp[0], other.chunk_ramp[0]),
        )
    )


def _forecast(models: Sequence[Model], errors: Sequence[tuple[Setting, float]], setting: Setting) -> Forecast:
    expected, *others = (model.outcome(setting) for model in models)
    other = others[0] if others else expected
    near = [(math.exp(-_distance(setting, known)), error) for known, error in errors]
    error = sum(weight * value for weight, value in near) / max(1.0, sum(weight for weight, _ in near))
    score = (1 - _GROWTH_WEIGHT) * expected.well + _GROWTH_WEIGHT * other.well + error
    return Forecast(setting, min(max(expected.well + error, 0.0), 1.0), expected.busy, score)
