"""Queueing model that predicts the ratio of good requests of a setting from measured step times. Pure.

It only ranks candidates; trials measure the real effect. A talker is a server that generates min(rows, limit) frames
per step of `a + b * rows` seconds. A codec is a server whose calls take `a + b * rows * frames` seconds. Waiting times
are exponential with the mean of an M/M/1 queue (talker) or of the Pollaczek-Khinchine formula (codec).
"""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.tuner.evidence import Evidence, ttfa_quantile
from syrinx_operator.tuner.policy import Policy
from syrinx_stages.contract.family import FAMILY

_DEFAULT_SLOPE = 0.15
"""Fraction of the mean step time that a further row is assumed to add until two batch sizes were measured."""
BURSTY_UTILIZATION = 0.7
"""Utilization of a stage from which queues build up in bursts under any setting."""
_SATURATED = 0.98
"""Utilization that counts as saturation."""
_DEFAULT_FRAMES = 50.0
"""Frames of a request (4 s of audio) until some were measured."""


class Curve(Struct, frozen=True):
    """Seconds of a step: `fixed + per_unit * size`. The size is rows for a talker, rows * frames for a codec."""

    fixed: float
    per_unit: float

    def at(self, size: float) -> float:
        """Returns the seconds of a step of a size."""
        return self.fixed + self.per_unit * size


class LoadModel(Struct, frozen=True, kw_only=True):
    """Measured parameters of the model."""

    rates: Mapping[str, float]
    """Requests per second by task type."""
    frames: float
    """Mean frames of a request."""
    talkers: int
    codecs: int
    talker: Curve
    codec: Curve
    ramp: tuple[int, ...]
    """Chunk ramp of the measured calls."""
    calls: tuple[tuple[int, int, float], ...]
    """Calls of one codec: rows, frames, calls per second."""
    mean_rows: float
    """Mean rows of a call."""
    codec_factor: float = 1.0
    """Measured codec load divided by the load that the ramp's chunks explain."""
    offset: Mapping[str, float] = {}
    """By task type: measured minus predicted median TTFA in seconds."""

    @property
    def total_rate(self) -> float:
        """Requests per second."""
        return sum(self.rates.values())


def fit_load_model(policy: Policy, evidence: Evidence, setting: Setting) -> LoadModel | None:
    """Returns the model of the load measured under a setting, or None with too little data."""
    talkers = [replica for replica in evidence.replicas_of(Stage.TALKER) if replica.steps]
    codecs = [replica for replica in evidence.replicas_of(Stage.CODEC) if replica.calls]
    calls = [call for each in codecs for call in each.calls]
    talker = fit_curve((rows, step.count, step.seconds) for each in talkers for rows, step in each.steps.items())
    codec = fit_curve((call.rows * call.frames, call.count, call.seconds) for call in calls)
    if talker is None or codec is None or not evidence.request_rate:
        return None
    requests = sum(stats.requests for stats in evidence.routes.values())
    frames = sum(replica.frames or 0 for replica in talkers)
    model = LoadModel(
        rates={task_type: each.requests / evidence.seconds for task_type, each in evidence.counts.items()},
        frames=frames / requests if requests and frames else _DEFAULT_FRAMES,
        talkers=len(talkers),
        codecs=len(codecs),
        talker=talker,
        codec=codec,
        ramp=setting.chunk_ramp,
        calls=tuple((call.rows, call.frames, call.count / evidence.seconds / len(codecs)) for call in calls),
        mean_rows=sum(call.rows * call.count for call in calls) / max(1, sum(call.count for call in calls)),
    )
    chunks = sum(codec.at(model.mean_rows * frames) for frames in _chunks(setting.chunk_ramp, model.frames))
    explained = model.total_rate / model.codecs / model.mean_rows * chunks
    measured = sum(rate * codec.at(rows * frames) for rows, frames, rate in model.calls)
    model = replace(model, codec_factor=min(max(measured / max(explained, 1e-9), 0.2), 5.0))
    return replace(model, offset=_offsets(policy, model, evidence, setting))


def fit_curve(steps: Iterable[tuple[float, int, float]]) -> Curve | None:
    """Fits a line to (size, count, total seconds) by least squares, weighted by count; None without data.

    Both coefficients are clamped to be nonnegative: a larger step is never faster.
    """
    points = [(size, count, seconds / count) for size, count, seconds in steps if count and size > 0]
    weight = float(sum(count for _, count, _ in points))
    if not weight:
        return None
    size = sum(count * x for x, count, _ in points) / weight
    mean = sum(count * y for _, count, y in points) / weight
    spread = sum(count * (x - size) ** 2 for x, count, _ in points)
    if spread < 0.05 * weight:
        slope = _DEFAULT_SLOPE * mean / max(size, 1.0)
    else:
        slope = sum(count * (x - size) * (y - mean) for x, count, y in points) / spread
    slope = min(max(slope, 0.0), mean / size)
    return Curve(fixed=mean - slope * size, per_unit=slope)


def predict(policy: Policy, model: LoadModel, setting: Setting) -> float:
    """Returns a score in [0, 1] that is mostly the predicted ratio of good requests.

    A twentieth is the capacity of the tighter stage relative to demand. It ranks settings under which no request is
    good.
    """
    latency, good = _latency(model, setting), 0.0
    uninterrupted = 1.0 - _underrun_ratio(model, setting, latency)
    for task_type, rate in model.rates.items():
        objective = policy.objectives.get(task_type)
        slack = math.inf
        if objective is not None:
            slack = objective.seconds - latency.first_audio - model.offset.get(task_type, 0.0)
        good += rate / model.total_rate * _in_time(slack, latency.wait) * uninterrupted
    return 0.95 * good + 0.05 * min(1.0, _capacity(model, setting))


def utilization(model: LoadModel, setting: Setting, stage: Stage) -> float:
    """Returns the demand on a stage divided by its capacity with full batches. Exceeds 1 under overload."""
    if stage is Stage.CODEC:
        return sum(rate * seconds for rate, seconds in _codec_calls(model, setting))
    limit = setting.talker_max_num_seqs
    return model.total_rate / model.talkers * model.frames * model.talker.at(limit) / limit


def _offsets(policy: Policy, model: LoadModel, evidence: Evidence, setting: Setting) -> dict[str, float]:
    latency = _latency(model, setting)
    offsets: dict[str, float] = {}
    for task_type in model.rates if latency.wait < math.inf else ():
        median = ttfa_quantile(evidence.routes, task_type, 0.5)
        objective = policy.objectives.get(task_type)
        if median is not None and objective is not None:
            excess = median - latency.first_audio - math.log(2) * latency.wait
            # An excess above half of the objective is a queue that the model does not explain; it may be transient.
            offsets[task_type] = min(max(0.0, excess), objective.seconds / 2)
    return offsets


def _in_time(slack: float, wait: float) -> float:
    """Returns the probability that an exponential wait of mean `wait` is shorter than `slack`."""
    return 0.0 if slack <= 0 or wait == math.inf else 1.0 - math.exp(-slack / max(wait, 1e-6))


def _capacity(model: LoadModel, setting: Setting) -> float:
    """Returns the capacity of the tighter stage with full batches, as a multiple of the demand."""
    rows, codec_rows = setting.talker_max_num_seqs, float(setting.codec_max_num_seqs)
    talker = rows / model.talker.at(rows) * model.talkers / (model.total_rate * model.frames)
    request = sum(
        model.codec.at(codec_rows * frames) / codec_rows for frames in _chunks(setting.chunk_ramp, model.frames)
    )
    return min(talker, model.codecs / (model.total_rate * request * model.codec_factor))


class _Latency(NamedTuple):
    """Predicted mean times in seconds."""

    step: float
    """Of the talker."""
    first_audio: float
    """Service time to first audio."""
    talker_wait: float
    """For a row; infinite under saturation."""
    codec_wait: float
    """For a call; infinite under saturation."""

    @property
    def wait(self) -> float:
        """Wait for first audio."""
        return self.talker_wait + self.codec_wait


def _latency(model: LoadModel, setting: Setting) -> _Latency:
    limit, load = setting.talker_max_num_seqs, utilization(model, setting, Stage.TALKER)
    rows, talker_wait = float(limit), math.inf
    if load < _SATURATED:
        frame_rate = model.total_rate / model.talkers * model.frames
        rows = min(rows, frame_rate * model.talker.fixed / max(1e-9, 1.0 - frame_rate * model.talker.per_unit))
        talker_wait = model.talker.at(rows) / 2 + model.talker.at(limit) * load**limit / (1.0 - load)
    calls = _codec_calls(model, setting)
    load, codec_wait = sum(rate * seconds for rate, seconds in calls), math.inf
    if load < _SATURATED:
        codec_wait = sum(rate * seconds**2 for rate, seconds in calls) / (2.0 * (1.0 - load))
    steps = setting.chunk_ramp[0] * model.talker.at(min(rows + 1, limit))
    call = model.codec.at(min(model.mean_rows, setting.codec_max_num_seqs) * setting.chunk_ramp[0])
    return _Latency(model.talker.at(rows), steps + call, talker_wait, codec_wait)


def _codec_calls(model: LoadModel, setting: Setting) -> list[tuple[float, float]]:
    """Returns the calls of a codec as (calls per second, seconds per call).

    For the measured ramp these are the measured calls, split where they exceed the row limit. For another ramp they
    follow from its chunks.
    """
    limit = setting.codec_max_num_seqs
    if setting.chunk_ramp == model.ramp:
        return [
            (rate * math.ceil(rows / limit), model.codec.at(rows / math.ceil(rows / limit) * frames))
            for rows, frames, rate in model.calls
        ]
    rows = min(model.mean_rows, limit)
    rate = model.codec_factor * model.total_rate / model.codecs / rows
    return [(rate, model.codec.at(rows * frames)) for frames in _chunks(setting.chunk_ramp, model.frames)]


def _underrun_ratio(model: LoadModel, setting: Setting, latency: _Latency) -> float:
    """Returns the ratio of streams in which a chunk arrives after the previous ones were played."""
    if latency.wait == math.inf:
        return 1.0
    uninterrupted, buffered, generation = 1.0, 0.0, 0.0
    for frames, following in pairwise(setting.chunk_ramp):
        buffered += frames * FAMILY.frame_seconds
        generation += following * latency.step
        uninterrupted *= _in_time(buffered - generation - model.codec.at(following), latency.codec_wait)
    return 1.0 - uninterrupted


def _chunks(ramp: tuple[int, ...], frames: float) -> list[int]:
    """Returns the chunks of a request of `frames` frames. The last entry of the ramp repeats."""
    chunks: list[int] = []
    while sum(chunks) < frames:
        chunks.append(ramp[min(len(chunks), len(ramp) - 1)])
    return chunks
