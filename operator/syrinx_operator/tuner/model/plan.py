"""Chooses a setting: plays the load under many of them, and the best ones again for longer. Pure; takes seconds."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import product
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.observed.evidence import Evidence, alike, ttfa_quantile
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.state.tuning_status import Measured, State, Tried
from syrinx_operator.tuner.model.whatif import QUICK, Load, Model, Plant, Score, plant_of
from syrinx_operator.tuner.policy import Policy
from syrinx_stages.contract.stages import Stage

ROUNDS = ((80, 10), (200, 4), (600, 1))
"""(requests, settings kept) of each round. The first has every other number of rows, and the neighbors of the best."""
_GROWTH, _OVERLOAD = 1.15, 0.5
"""A setting must also serve this much more load, which counts `_GROWTH_WEIGHT`: forecasts err, and load grows. Where
most requests are bad it is less load: that shows which setting carries most."""
_GROWTH_WEIGHT = 0.25
_NEARER = 0.02
"""Ratio of engine time that a distance of 1 from the current setting must save."""
_MAX_REFERENCE = 400.0
"""Frames. A reference has at most 30 s."""
_USUAL_ERROR = 0.03
"""Of the model about a setting, as if it had been observed once."""
_ALIKE = 0.003
"""Difference of the score within which the setting with less engine time is better."""


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
    compared: tuple[Tried, ...] = ()
    """Comparisons under such a load. The model errs near them as it erred there."""
    observed_well: float | None = None
    """Ratio of requests that the current setting serves well; None if it never served such a load."""
    observed_quick: Mapping[str, float] = {}
    """The `QUICK`-quantile of their TTFA in seconds, by task type."""
    is_bold: bool = False
    """Whether the model's error counts for settings of which little is known: something must be tried."""


def question_of(policy: Policy, state: State, recent: Evidence, current: Setting, now: datetime) -> Question | None:
    """Returns a question about a setting and the requests of a window; None while the engines' times are not known."""
    talkers, codecs = recent.replicas_of(Stage.TALKER), recent.replicas_of(Stage.CODEC)
    if not state.measured.is_known or not talkers or not codecs:
        return None
    seen, rate = recent.of_arm(), recent.rate
    known = [each for each in state.tried if alike(each.rate, rate)]
    frames = sum(each.frames or 0 for each in talkers)
    reference = sum(each.frames or 0 for each in codecs) - frames
    clones = sum(each.accepted - each.refused for (name, _), each in recent.outcomes.items() if name == "Base")
    quick = {name: seconds for name in recent.rates if (seconds := ttfa_quantile(recent, name, QUICK)) is not None}
    return Question(
        load=Load(
            rates=recent.rates, frames=max(frames / max(1, seen.accepted - seen.refused), 1.0), burst=recent.burst
        ),
        plant=plant_of(
            policy,
            len(talkers),
            len(codecs),
            {"Base": min(max(reference, 0) / clones, _MAX_REFERENCE)} if clones else {},
        ),
        measured=state.measured,
        current=current,
        rows=policy.rows,
        ramps=policy.ramps,
        avoided=tuple(each.setting for each in known if now < each.until),
        compared=tuple(known),
        observed_well=1 - seen.bad_ratio,
        observed_quick=quick,
        is_bold=seen.bad_ratio > 1 - max((each.target for each in policy.objectives.values()), default=1.0),
    )


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
    doubt: float
    """Mean error of the model about a difference of two settings."""


class _Error(NamedTuple):
    """By how much the model was wrong about a setting that was compared."""

    setting: Setting
    missed: float
    weight: float
    """From 0 to 1: how exactly that is known, next to the model's usual error."""


def plan(question: Question) -> Answer:
    """Returns the best setting within the bounds. The current one stays unless another is better."""
    question = replace(question, plant=calibrated(question))
    settings = _settings(question, 2)
    for count, kept in ROUNDS:
        is_first = count == ROUNDS[0][0]
        models = _models(question, count, first=is_first)
        errors = _errors(question, models[0])
        found = _ranked(question, models, errors, settings)
        if is_first:
            best = [each.setting for each in found[:kept]]
            settings = [
                each for each in _settings(question, 1) if each not in question.avoided and _is_near(each, best)
            ]
            found = _ranked(question, models, errors, settings)
        settings = [each.setting for each in found[:kept]]
    now = next(each for each in found if each.setting == question.current)
    return Answer(current=now, best=found[0], doubt=_doubt(errors))


def _ranked(
    question: Question,
    models: Sequence[Model],
    errors: Sequence[_Error],
    settings: Sequence[Setting],
) -> list[Forecast]:
    """Returns the forecasts of settings and of the current one, best first."""
    found = [_forecast(question, models, errors, each) for each in dict.fromkeys((question.current, *settings))]
    best = max(each.score for each in found)
    return sorted(found, key=lambda each: _order(each, best, question.current))


def _is_near(setting: Setting, others: Sequence[Setting]) -> bool:
    """Returns whether a setting has the ramp of one of the others, and about as many rows."""
    return any(setting.chunk_ramp == each.chunk_ramp and _distance(setting, each) <= 1 for each in others)


def _order(each: Forecast, best: float, current: Setting) -> tuple[bool, float]:
    """Sort key, best first: of those that are as good, the one with least engine time, or else the nearest."""
    if best - each.score > _ALIKE:
        return True, -each.score
    return False, each.busy * (1 + _NEARER * _distance(each.setting, current))


def calibrated(question: Question) -> Plant:
    """Returns the plant under which the model agrees with what was observed of the current setting, if anything was."""
    if question.observed_well is None:
        return question.plant

    def current(plant: Plant) -> Score:
        return Model(question.load, plant, question.measured, ROUNDS[-1][0]).score(question.current)

    plain = current(question.plant)
    offsets = {}
    for task_type, seconds in question.observed_quick.items():
        most = question.plant.limits.get(task_type, math.inf) / 2
        unexplained = question.observed_well * max(seconds - plain.quick.get(task_type, seconds), 0.0)
        offsets[task_type] = min(unexplained, most)
    plant = replace(question.plant, offsets=offsets)
    # Where many requests are bad the model is less exact.
    tolerance = 0.01 + 0.1 * (1 - question.observed_well) ** 2
    low, high = 0.6, 2.5
    for _ in range(7):
        well = current(plant).well
        if abs(well - question.observed_well) < tolerance:
            break
        low, high = (plant.slowdown, high) if well > question.observed_well else (low, plant.slowdown)
        plant = replace(plant, slowdown=math.sqrt(low * high))
    return plant


def _settings(question: Question, step: int) -> Sequence[Setting]:
    """Returns the settings with each number of rows, or with every other one."""
    current = question.current
    # From the largest limits: those that are not reached need no run of their own.
    talkers, codecs = (
        sorted(question.rows[knob], reverse=True)[::step] for knob in (Knob.TALKER_ROWS, Knob.CODEC_ROWS)
    )
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
    is_overload = question.observed_well is not None and question.observed_well < 0.5
    if is_overload or not first:
        factor = _OVERLOAD if is_overload else _GROWTH
        rates = {name: rate * factor for name, rate in load.rates.items()}
        models.append(Model(replace(load, rates=rates), plant, measured, count, seed=1))
    return models


def _errors(question: Question, model: Model) -> list[_Error]:
    found = []
    for each in question.compared:
        missed = each.difference - (model.score(each.setting).well - model.score(each.baseline).well)
        weight = _USUAL_ERROR**2 / (_USUAL_ERROR**2 + each.error**2)
        # The model agrees about the current setting.
        is_current = each.setting == question.current
        found.append(_Error(each.baseline if is_current else each.setting, -missed if is_current else missed, weight))
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


def _forecast(question: Question, models: Sequence[Model], errors: Sequence[_Error], setting: Setting) -> Forecast:
    expected, *others = (model.score(setting) for model in models)
    other = others[0] if others else expected
    near = [(each.weight * math.exp(-_distance(setting, each.setting)), each.missed) for each in errors]
    error = sum(weight * value for weight, value in near) / max(1.0, sum(weight for weight, _ in near))
    score = (1 - _GROWTH_WEIGHT) * expected.well + _GROWTH_WEIGHT * other.well + error
    if question.is_bold:
        known = max([math.exp(-_distance(setting, question.current)), *(weight for weight, _ in near)])
        score += _doubt(errors) * (1 - known)
    return Forecast(setting, min(max(expected.well + error, 0.0), 1.0), expected.busy, score)


def _doubt(errors: Sequence[_Error]) -> float:
    missed, weight = sum(each.weight * abs(each.missed) for each in errors), sum(each.weight for each in errors)
    return (_USUAL_ERROR + missed) / (1 + weight)
