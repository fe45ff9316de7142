"""What if: serves a drawn load by a model of the pipeline under a setting. Pure.

Talkers claim, and both stages choose their next step or call, by the functions of `scheduling` that the services call.
What is left out: talkers do not wait for codecs, so that one run of a talker serves all settings of the codec; a
request is one segment; codecs take turns in claiming.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.state.tuning_status import Measured
from syrinx_operator.tuner.model.captures import call_times
from syrinx_operator.tuner.model.curves import step_seconds
from syrinx_operator.tuner.model.playing import (
    FRAME_SECONDS,
    Request,
    Stream,
    Talked,
    TalkerTimes,
    play_codec,
    play_talkers,
)
from syrinx_operator.tuner.policy import Policy
from syrinx_stages.contract.settings import CodecSettings
from syrinx_stages.contract.stages import Stage
from syrinx_stages.scheduling.traits import Traits

QUICK = 0.1
"""Quantile of the TTFA that hardly depends on queues."""
_LENGTH_SPREAD = 0.5
"""Standard deviation of the log length. Counters tell only the mean."""


class Load(Struct, frozen=True, kw_only=True):
    """What clients ask for."""

    rates: Mapping[str, float]
    """Requests per second by task type."""
    frames: float
    """Mean frames of a request."""
    burst: float = 1.0
    """Mean requests of an arrival: 1 is a Poisson process."""

    @property
    def rate(self) -> float:
        """Requests per second."""
        return sum(self.rates.values())


class Plant(Struct, frozen=True, kw_only=True):
    """What serves them."""

    talkers: int
    codecs: int
    talker_resident: int
    codec_resident: int
    patience: float
    """Seconds after which a waiting request is refused."""
    limits: Mapping[str, float]
    """TTFA objective in seconds by task type."""
    reference: Mapping[str, float] = {}
    """By task type: frames that a codec decodes before those of the request."""
    offsets: Mapping[str, float] = {}
    """By task type: seconds of the TTFA that the model does not explain."""
    lead_limit: float
    """Seconds of codes ahead of playback at which a stream yields its row."""
    traits: Traits
    """How its engines want to be called."""
    slowdown: float = 1.0
    """Factor of all engine times, for what else the model does not explain."""


class Score(NamedTuple):
    """Of all requests under a setting."""

    well: float
    """Ratio of requests that are heard in time and never interrupted."""
    busy: float
    """Engine seconds for each second of audio."""
    quick: Mapping[str, float]
    """By task type: the TTFA in seconds within which a tenth of the requests that are not refused are."""
    served: float = 1.0
    """Ratio of requests that are not refused."""
    ttfas: Sequence[float] = ()
    """The TTFA of each of those in seconds, in ascending order."""


def plant_of(policy: Policy, talkers: int, codecs: int, reference: Mapping[str, float]) -> Plant:
    """Returns what serves a pipeline. reference: see `Plant`."""
    return Plant(
        talkers=talkers,
        codecs=codecs,
        talker_resident=policy.residents[Stage.TALKER],
        codec_resident=policy.residents[Stage.CODEC],
        patience=policy.max_queue_seconds,
        limits={name: objective.seconds for name, objective in policy.objectives.items()},
        lead_limit=policy.lead_limit,
        traits=policy.traits,
        reference=reference,
    )


def draw(load: Load, count: int, seed: int) -> list[Request]:
    """Returns requests in order of time."""
    randoms = random.Random(seed)
    types, weights = list(load.rates), list(load.rates.values())
    now, left, found = 0.0, 0, []
    for _ in range(count):
        if left == 0:
            now += randoms.expovariate(load.rate / load.burst)
            # Geometric: 1 with a mean of 1.
            left = 1 if load.burst <= 1 else math.ceil(math.log(1 - randoms.random()) / math.log(1 - 1 / load.burst))
        left -= 1
        (task_type,) = randoms.choices(types, weights)
        length = load.frames * math.exp(randoms.gauss(0, _LENGTH_SPREAD) - _LENGTH_SPREAD**2 / 2)
        found.append(Request(now, task_type, max(1, round(length))))
    return found


class Model:
    """The pipeline under a load. Remembers what it has played: a limit that is never reached is like any larger one."""

    def __init__(self, load: Load, plant: Plant, measured: Measured, count: int, seed: int = 0) -> None:
        # At least five lengths of a request are played, so that queues have time to grow, if that takes no more than
        # four times the requests; the first length is not judged.
        length = load.frames * FRAME_SECONDS
        # Requests r, r + n, ... on an n-th of the replicas, as if all took turns: that shows more time.
        n = math.gcd(plant.talkers, plant.codecs)
        count = min(max(count, round(5 * length * load.rate / n)), 4 * count)
        self._plant = replace(plant, talkers=plant.talkers // n, codecs=plant.codecs // n)
        self._measured = measured
        self._requests = draw(load, count * n, seed)[::n]
        self._judged = sum(request.accepted < length for request in self._requests[: count // 4])
        self._talked: dict[int, Talked] = {}
        self._played: dict[tuple[object, ...], dict[int, tuple[Score, int]]] = {}
        """By codec's limit of rows, for the talkers' frames and the rest of a setting: the score, and the most rows
        that ran."""

    def score(self, setting: Setting) -> Score:
        """Returns how a setting serves the load."""
        talked, limit = self._talk_of(setting.talker_max_num_seqs), setting.codec_max_num_seqs
        played = self._played.setdefault((id(talked), setting.chunk_ramp, setting.capture_pairs), {})
        limit = min((each for each, (_, most) in played.items() if most < each <= limit), default=limit)
        if limit not in played:
            played[limit] = self._decode(talked, setting, limit)
        return played[limit][0]

    def _talk_of(self, rows: int) -> Talked:
        if rows not in self._talked:
            talked = self._talk(rows)
            self._talked[rows] = next((each for each in self._talked.values() if each == talked), talked)
        return self._talked[rows]

    def live(self, rows: int) -> float:
        """Returns the mean number of live streams with a limit of rows."""
        frames = self._talk_of(rows).frames
        spent = sum(each[-1] - request.accepted for request, each in zip(self._requests, frames, strict=True) if each)
        return spent / max(self._requests[-1].accepted - self._requests[0].accepted, FRAME_SECONDS)

    def _talk(self, rows: int) -> Talked:
        plant, slowdown = self._plant, self._plant.slowdown
        times = TalkerTimes(
            steps=[slowdown * seconds for seconds in step_seconds(self._measured, rows)],
            prefill=slowdown * self._measured.prefill_seconds / max(self._measured.prefills, 1.0),
            prepare={each.task_type: slowdown * each.seconds / each.count for each in self._measured.prepares},
            encoded=plant.reference,
        )
        return play_talkers(
            self._requests,
            times,
            plant.traits,
            talkers=plant.talkers,
            resident=plant.talker_resident,
            patience=plant.patience,
            lead_limit=plant.lead_limit,
        )

    def _decode(self, talked: Talked, setting: Setting, limit: int) -> tuple[Score, int]:
        plant, codecs, frames, busy = self._plant, self._plant.codecs, talked.frames, talked.busy
        well, most, ttfas = 0, 0, dict[str, list[float]]()
        times = call_times(self._measured.calls, setting.capture_pairs)
        settings = CodecSettings(max_num_seqs=limit, chunk_ramp=setting.chunk_ramp)
        for codec in range(codecs):
            served = [r for r in range(codec, len(self._requests), codecs) if frames[r]]
            streams = [self._stream(self._requests[r], frames[r]) for r in served]
            seconds, rows = play_codec(streams, times, settings, plant.traits, plant.slowdown)
            busy, most = busy + seconds, max(most, rows)
            for r, stream in zip(served, streams, strict=True):
                accepted, task_type, _ = self._requests[r]
                ttfa = stream.first_audio - accepted + plant.offsets.get(task_type, 0.0)
                ttfas.setdefault(task_type, []).append(ttfa)
                in_time = ttfa <= plant.limits.get(task_type, math.inf)
                well += r >= self._judged and in_time and not stream.interrupted
        audio = FRAME_SECONDS * sum(map(len, frames))
        quick = {task_type: sorted(found)[int(QUICK * len(found))] for task_type, found in ttfas.items()}
        accepted = sum(map(bool, frames)) / len(frames)
        judged = len(self._requests) - self._judged
        every = sorted(itertools.chain(*ttfas.values()))
        return Score(well / judged, busy / max(audio, FRAME_SECONDS), quick, accepted, every), most

    def _stream(self, request: Request, times: Sequence[float]) -> Stream:
        return Stream(request.accepted, times, round(self._plant.reference.get(request.task_type, 0.0)))
