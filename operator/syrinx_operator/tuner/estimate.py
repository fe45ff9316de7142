"""What a setting would do to listeners: a queueing estimate from measured step times. Pure.

It ranks candidates and no more: what listeners really get is for trials to say. A talker is taken as a server that
makes min(rows, limit) frames per step of a + b * rows seconds; a codec as one whose calls take a + b * rows * frames.
Work that arrives faster than it is done waits; waiting is taken as exponential with the mean of an M/M/1 queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from syrinx_operator.resource.knobs import Setting, Stage
from syrinx_operator.tuner.evidence import Evidence, ReplicaStats
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.workload import histogram, quantile, request_rate, totals, with_failures
from syrinx_stages.contract.family import FAMILY

_UNKNOWN_SLOPE = 0.15
"""Part of a step's time that a further row is taken to add, until steps of two sizes have been measured."""
BURSTY_UTILIZATION = 0.7
"""What is asked of a stage, as a part of what it can do, from which queues cause storms, whatever the setting."""
_FULL = 0.98
"""Utilisation that is as good as all of it."""
_USUAL_FRAMES = 50.0
"""Of an utterance, while none has been counted: 4 s."""


class Curve(Struct, frozen=True):
    """Seconds of a step: fixed + each * size. The size is rows of a talker's step, rows times frames of a codec's."""

    fixed: float
    each: float

    def at(self, size: float) -> float:
        """Seconds of a step of a size."""
        return self.fixed + self.each * size


class LoadModel(Struct, frozen=True, kw_only=True):
    """What the estimate starts from."""

    rates: Mapping[str, float]
    """Requests per second by task type."""
    frames: float
    """Per request."""
    talkers: int
    codecs: int
    talker: Curve
    codec: Curve
    ramp: tuple[int, ...]
    """That of the measured calls."""
    calls: tuple[tuple[int, int, float], ...]
    """A codec's calls: rows, frames, and how many a second."""
    company: float
    """Rows of a call, on average."""
    codec_factor: float = 1.0
    """How much busier the codecs were than the chunks of their ramp explain."""
    offset: Mapping[str, float] = {}
    """Seconds to first audio that the estimate misses, by task type: measured less estimated, in the median."""


def fit_load_model(policy: Policy, evidence: Evidence, setting: Setting) -> LoadModel | None:
    """What was measured, under a setting; None while it is too little."""
    talkers = [worker for worker in evidence.replicas_of(Stage.TALKER) if worker.steps]
    codecs = [worker for worker in evidence.replicas_of(Stage.CODEC) if worker.calls]
    counts = with_failures(totals(evidence.routes), evidence)
    heard = sum(one.requests for one in evidence.routes.values())
    talker = fit_curve((rows, step.count, step.seconds) for each in talkers for rows, step in each.steps.items())
    codec = fit_curve((call.rows * call.frames, call.count, call.seconds) for each in codecs for call in each.calls)
    if talker is None or codec is None or not request_rate(evidence):
        return None
    frames = sum(worker.frames or 0 for worker in talkers)
    known = LoadModel(
        rates={task_type: each.requests / evidence.seconds for task_type, each in counts.items()},
        frames=frames / heard if heard and frames else _USUAL_FRAMES,
        talkers=len(talkers),
        codecs=len(codecs),
        talker=talker,
        codec=codec,
        ramp=setting.chunk_ramp,
        calls=tuple(
            (call.rows, call.frames, call.count / evidence.seconds / len(codecs))
            for each in codecs
            for call in each.calls
        ),
        company=_mean_rows(codecs),
    )
    chunks = sum(known.codec.at(known.company * frames) for frames in _chunks(setting.chunk_ramp, known.frames))
    explained = sum(known.rates.values()) / known.codecs / known.company * chunks
    measured = sum(each * known.codec.at(rows * frames) for rows, frames, each in known.calls)
    known = msgspec.structs.replace(known, codec_factor=min(max(measured / max(explained, 1e-9), 0.2), 5.0))
    return msgspec.structs.replace(known, offset=_offsets(policy, known, evidence, setting))


def _mean_rows(codecs: Iterable[ReplicaStats]) -> float:
    calls = [call for each in codecs for call in each.calls]
    return sum(call.rows * call.count for call in calls) / max(1, sum(call.count for call in calls))


def _offsets(policy: Policy, known: LoadModel, evidence: Evidence, setting: Setting) -> dict[str, float]:
    fixed, wait = _first_audio(known, setting)
    offsets = {}
    for task_type in known.rates if wait < math.inf else ():
        median = quantile(histogram(one for route, one in evidence.routes.items() if route.task_type == task_type), 0.5)
        objective = policy.objectives.get(task_type)
        if median is not None and objective is not None:
            # What is more than that is a queue that the estimate knows nothing of, and may well go away.
            offsets[task_type] = min(max(0.0, median - fixed - math.log(2) * wait), objective.seconds / 2)
    return offsets


def fit_curve(steps: Iterable[tuple[float, int, float]]) -> Curve | None:
    """A line through (size, count, seconds of all): least squares weighted by count; None of nothing.

    Both parts are kept from being negative: a larger step is never quicker.
    """
    points = [(size, count, seconds / count) for size, count, seconds in steps if count and size > 0]
    weight = float(sum(count for _, count, _ in points))
    if not weight:
        return None
    size = sum(count * x for x, count, _ in points) / weight
    mean = sum(count * y for _, count, y in points) / weight
    spread = sum(count * (x - size) ** 2 for x, count, _ in points)
    if spread < 0.05 * weight:
        each = _UNKNOWN_SLOPE * mean / max(size, 1.0)
    else:
        each = sum(count * (x - size) * (y - mean) for x, count, y in points) / spread
    each = min(max(each, 0.0), mean / size)
    return Curve(fixed=mean - each * size, each=each)


def predict(policy: Policy, known: LoadModel, setting: Setting) -> float:
    """Share of requests that would be served well, from 0 to 1; where it is none, what brings it nearer is more.

    Nearer is the capacity of the tighter stage, as a part of what is asked for: a twentieth of the whole at most.
    """
    return 0.95 * _served_well(policy, known, setting) + 0.05 * min(1.0, _capacity(known, setting))


def _served_well(policy: Policy, known: LoadModel, setting: Setting) -> float:
    fixed, wait = _first_audio(known, setting)
    total = sum(known.rates.values())
    uninterrupted = 1.0 - _interrupted(known, setting)
    good = 0.0
    for task_type, each in known.rates.items():
        objective = policy.objectives.get(task_type)
        spare = math.inf if objective is None else objective.seconds - fixed - known.offset.get(task_type, 0.0)
        in_time = 0.0 if spare <= 0 or wait == math.inf else 1.0 - math.exp(-spare / max(wait, 1e-6))
        good += each / total * in_time * uninterrupted
    return good


def _first_audio(known: LoadModel, setting: Setting) -> tuple[float, float]:
    """Seconds to first audio that nothing can shorten, and the mean of those spent waiting."""
    rows, talker_wait = _talker(known, setting)
    call, codec_wait = _codec(known, setting)
    first = setting.chunk_ramp[0]
    return first * known.talker.at(min(rows + 1, setting.talker_max_num_seqs)) + call, talker_wait + codec_wait


def _capacity(known: LoadModel, setting: Setting) -> float:
    """What the tighter stage can do at most, with full steps, as a multiple of what is asked for."""
    arrivals = sum(known.rates.values())
    rows, most = setting.talker_max_num_seqs, float(setting.codec_max_num_seqs)
    talker = rows / known.talker.at(rows) * known.talkers / (arrivals * known.frames)
    each = sum(known.codec.at(most * frames) / most for frames in _chunks(setting.chunk_ramp, known.frames))
    return min(talker, known.codecs / (arrivals * each * known.codec_factor))


def _talker(known: LoadModel, setting: Setting) -> tuple[float, float]:
    """Rows that a talker runs on average, and the mean wait for one."""
    limit, full = setting.talker_max_num_seqs, _talker_full(known, setting)
    if full >= _FULL:
        return float(limit), math.inf
    work = sum(known.rates.values()) / known.talkers * known.frames
    rows = min(float(limit), work * known.talker.fixed / max(1e-9, 1.0 - work * known.talker.each))
    return rows, known.talker.at(rows) / 2 + known.talker.at(limit) * full**limit / (1.0 - full)


def _talker_full(known: LoadModel, setting: Setting) -> float:
    """What is asked of a talker, as a part of what it can do with full steps."""
    limit = setting.talker_max_num_seqs
    return sum(known.rates.values()) / known.talkers * known.frames * known.talker.at(limit) / limit


def utilization(known: LoadModel, setting: Setting, stage: Stage) -> float:
    """What is asked of a stage, as a part of what it can do."""
    if stage is Stage.TALKER:
        return _talker_full(known, setting)
    return sum(rate * seconds for rate, seconds in _calls(known, setting))


def _codec(known: LoadModel, setting: Setting) -> tuple[float, float]:
    """Seconds of the call that brings the first audio, and the mean wait for it (Pollaczek and Khinchine)."""
    calls = _calls(known, setting)
    first = known.codec.at(min(known.company, setting.codec_max_num_seqs) * setting.chunk_ramp[0])
    full = sum(rate * seconds for rate, seconds in calls)
    if full >= _FULL:
        return first, math.inf
    return first, sum(rate * seconds**2 for rate, seconds in calls) / (2.0 * (1.0 - full))


def _calls(known: LoadModel, setting: Setting) -> list[tuple[float, float]]:
    """A codec's calls: how often a second, and how long each takes.

    With the ramp that was measured they are the measured ones, those of more rows than are allowed cut into several;
    with another they follow from its chunks.
    """
    most = setting.codec_max_num_seqs
    if setting.chunk_ramp == known.ramp:
        return [
            (rate * math.ceil(rows / most), known.codec.at(rows / math.ceil(rows / most) * frames))
            for rows, frames, rate in known.calls
        ]
    company = min(known.company, most)
    each = known.codec_factor * sum(known.rates.values()) / known.codecs / company
    return [(each, known.codec.at(company * frames)) for frames in _chunks(setting.chunk_ramp, known.frames)]


def _interrupted(known: LoadModel, setting: Setting) -> float:
    """Share of streams that would run dry: whose next chunk comes later than the ones before it last."""
    rows, talker_wait = _talker(known, setting)
    _, codec_wait = _codec(known, setting)
    if math.inf in (talker_wait, codec_wait):
        return 1.0
    step = known.talker.at(rows)
    smooth, ahead, made = 1.0, 0.0, 0.0
    for frames, following in zip(setting.chunk_ramp, setting.chunk_ramp[1:], strict=False):
        ahead += frames * FAMILY.frame_seconds
        made += following * step
        spare = ahead - made - known.codec.at(following)
        smooth *= 0.0 if spare <= 0 else 1.0 - math.exp(-spare / max(codec_wait, 1e-6))
    return 1.0 - smooth


def _chunks(ramp: tuple[int, ...], frames: float) -> list[int]:
    """The chunks that an utterance is cut into; the ramp's last one repeats."""
    found: list[int] = []
    while sum(found) < frames:
        found.append(ramp[min(len(found), len(ramp) - 1)])
    return found
