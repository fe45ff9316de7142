"""What if: serves a drawn load by a model of the pipeline under a setting. Pure.

A request waits for a talker, is prepared beside its steps, is prefilled, and becomes a row of them. The frames that a
stream has become chunks by the ramp, and rows of the codec's calls. Whoever's playback ends first goes first. Codecs
take turns in claiming. Talkers do not wait for codecs, so that one run of a talker serves all settings of the codec.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush, nsmallest
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.tuning_status import Measured
from syrinx_operator.tuner.captures import CallTimes, call_times
from syrinx_operator.tuner.curves import step_seconds
from syrinx_stages.contract.family import FAMILY

FRAME_SECONDS = FAMILY.frame_seconds
# As the schedulers of the stages, which are not part of the operator's image.
UNDERRUN_MARGIN_SECONDS = FAMILY.frame_seconds
LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS = 0.25, 15
_URGENT = 1e9
"""What has no audio yet comes before all that plays."""
_SPREAD = 0.12
"""Standard deviation of the log time of a step or call."""
QUICK = 0.1
"""Quantile of the TTFA that hardly depends on queues."""
_LENGTHS = 5
"""Lengths of a request that are played, at least."""
_MOST = 4
"""But not more than this many times the requests that were asked for."""
_LENGTH_SPREAD = 0.5
"""Standard deviation of the log length. Counters tell only the mean."""


_JITTER = random.Random(0)
_FACTORS = tuple(math.exp(_JITTER.gauss(0, _SPREAD) - _SPREAD**2 / 2) for _ in range(1021))
"""Of the times of successive steps and calls."""


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
    slowdown: float = 1.0
    """Factor of all engine times, for what else the model does not explain."""


class Request(NamedTuple):
    """A drawn request."""

    accepted: float
    task_type: str
    frames: int


class Outcome(NamedTuple):
    """Of all requests under a setting."""

    well: float
    """Ratio of requests that are heard in time and never interrupted."""
    busy: float
    """Engine seconds for each second of audio."""
    quick: Mapping[str, float]
    """By task type: the TTFA in seconds within which a tenth of the requests that are not refused are."""


T = TypeVar("T")


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
        # Some lengths of a request are played, so that queues have time to grow; the first one is not judged.
        length = load.frames * FRAME_SECONDS
        # Requests r, r + n, ... on an n-th of the replicas, as if all took turns: that shows more time.
        n = math.gcd(plant.talkers, plant.codecs)
        count = min(max(count, round(_LENGTHS * length * load.rate / n)), _MOST * count)
        self._plant = replace(plant, talkers=plant.talkers // n, codecs=plant.codecs // n)
        self._measured = measured
        self._requests = draw(load, count * n, seed)[::n]
        self._judged = sum(request.accepted < length for request in self._requests[: count // 4])
        self._talked = _Played[_Talked]()
        self._outcomes: dict[tuple[object, ...], _Played[Outcome]] = {}

    def outcome(self, setting: Setting) -> Outcome:
        """Returns how a setting serves the load."""
        talked = self._talked.get(setting.talker_max_num_seqs, self._talk)
        # Talked results live as long as this model, so that their identity is theirs alone.
        played = self._outcomes.setdefault((id(talked), setting.chunk_ramp, setting.capture_pairs), _Played())
        return played.get(setting.codec_max_num_seqs, lambda limit: self._decode(talked, setting, limit))

    def live(self, rows: int) -> float:
        """Returns the mean number of live streams with a limit of rows."""
        frames = self._talked.get(rows, self._talk).frames
        spent = sum(each[-1] - request.accepted for request, each in zip(self._requests, frames, strict=True) if each)
        return spent / max(self._requests[-1].accepted - self._requests[0].accepted, FRAME_SECONDS)

    def _talk(self, rows: int) -> tuple[_Talked, int]:
        slowdown = self._plant.slowdown
        steps = [slowdown * seconds for seconds in step_seconds(self._measured, rows)]
        prefill = slowdown * self._measured.prefill_seconds / max(self._measured.prefills, 1.0)
        prepare = {each.task_type: slowdown * each.seconds / each.count for each in self._measured.prepares}
        talkers = _Talkers(self._requests, steps, prefill, prepare, self._plant)
        talkers.run()
        return _Talked(talkers.frames, talkers.busy), talkers.most

    def _decode(self, talked: _Talked, setting: Setting, limit: int) -> tuple[Outcome, int]:
        codecs, frames, busy = self._plant.codecs, talked.frames, talked.busy
        well, most, ttfas = 0, 0, dict[str, list[float]]()
        times = call_times(self._measured.calls, setting.capture_pairs, self._plant.slowdown)
        chunks = _chunks(setting.chunk_ramp, max(map(len, frames), default=0))
        for codec in range(codecs):
            served = [r for r in range(codec, len(self._requests), codecs) if frames[r]]
            streams = [self._stream(self._requests[r], frames[r], chunks, max(setting.chunk_ramp)) for r in served]
            seconds, rows = _decode(streams, times, limit)
            busy, most = busy + seconds, max(most, rows)
            for r, stream in zip(served, streams, strict=True):
                accepted, task_type, _ = self._requests[r]
                ttfa = stream.first_audio - accepted + self._plant.offsets.get(task_type, 0.0)
                ttfas.setdefault(task_type, []).append(ttfa)
                in_time = ttfa <= self._plant.limits.get(task_type, math.inf)
                well += r >= self._judged and in_time and not stream.interrupted
        audio = FRAME_SECONDS * sum(map(len, frames))
        quick = {task_type: sorted(found)[int(QUICK * len(found))] for task_type, found in ttfas.items()}
        return Outcome(well / (len(self._requests) - self._judged), busy / max(audio, FRAME_SECONDS), quick), most

    def _stream(self, request: Request, times: Sequence[float], chunks: Sequence[int], largest: int) -> _Stream:
        reference = round(self._plant.reference.get(request.task_type, 0.0))
        parts = [largest] * (reference // largest) + [reference % largest] * (reference % largest > 0)
        return _Stream(request.accepted, times, chunks, parts)


class _Talked(NamedTuple):
    """Times of each request's frames, none of a refused one, and the talkers' busy seconds."""

    frames: Sequence[Sequence[float]]
    busy: float


class _Played(Generic[T]):
    """Results by limit of rows."""

    def __init__(self) -> None:
        self._results: dict[int, T] = {}
        self._enough: tuple[int, T] | None = None
        """A limit from which on all results are equal."""

    def get(self, limit: int, play: Callable[[int], tuple[T, int]]) -> T:
        """Returns the result of a limit. `play` returns it, and the most rows that would have run without a limit."""
        if self._enough is not None and limit >= self._enough[0]:
            return self._enough[1]
        if limit not in self._results:
            result, most = play(limit)
            self._results[limit] = result
            if most <= limit:
                self._enough = most, result
        return self._results[limit]


class _Talkers:
    """All talkers. Whoever ends its step first claims the oldest request."""

    def __init__(
        self,
        requests: Sequence[Request],
        steps: Sequence[float],
        prefill: float,
        prepare: Mapping[str, float],
        plant: Plant,
    ) -> None:
        self.frames: list[list[float]] = [[] for _ in requests]
        """Times of each request's frames; none of a refused one."""
        self.busy = 0.0
        """Seconds of all talkers."""
        self.most = 0
        """Most active requests of a talker."""
        self._requests, self._steps, self._plant = requests, steps, plant
        self._prefill, self._prepare = prefill, prepare
        self._prepared_at = [0.0] * plant.talkers
        """When each talker's last claimed request is prepared."""
        self._limit = len(steps) - 1
        self._following = 0
        """The oldest request that waits, or the next that comes."""
        self._taken = 0

    def run(self) -> None:
        """Serves all requests."""
        active: list[list[int]] = [[] for _ in range(self._plant.talkers)]
        claimed: list[deque[tuple[float, int]]] = [deque() for _ in active]
        turns = [(0.0, talker) for talker in range(len(active))]
        while turns:
            now, talker = heappop(turns)
            rows, coming, begin = active[talker], claimed[talker], now
            while self._claim(talker, rows, coming, now) and not rows and coming[0][0] > now:
                continue  # An idle talker claims what it can.
            if coming and coming[0][0] <= now:
                rows.append(coming.popleft()[1])
                now += self._prefill
            if rows:
                now += self._step(rows, now)
                self.busy += now - begin
            elif (following := self._next_turn(coming, now)) < math.inf:
                now = following
            else:
                continue
            heappush(turns, (now, talker))

    def _next_turn(self, coming: Sequence[tuple[float, int]], now: float) -> float:
        """Returns when a talker without rows has something to do: a request is prepared, or the next one comes."""
        prepared = coming[0][0] if coming else math.inf
        if self._following == len(self._requests) or self._requests[self._following].accepted <= now:
            return prepared
        return min(prepared, self._requests[self._following].accepted)

    def _claim(self, talker: int, rows: Sequence[int], coming: deque[tuple[float, int]], now: float) -> bool:
        """Claims a request, to be prepared after those before it. Returns whether one waited and there was room."""
        requests = self._requests
        while self._following < len(requests) and requests[self._following].accepted < now - self._plant.patience:
            self._following += 1
        if self._following == len(requests) or requests[self._following].accepted > now:
            return False
        resident = len(rows) + len(coming)
        if resident >= self._limit and (resident == self._plant.talker_resident or self._is_late(rows, now)):
            return False
        prepare = self._prepare.get(requests[self._following].task_type, 0.0)
        self._prepared_at[talker] = max(now, self._prepared_at[talker]) + prepare
        coming.append((self._prepared_at[talker], self._following))
        self._following += 1
        self.most = max(self.most, resident + 1)
        return True

    def _is_late(self, rows: Sequence[int], now: float) -> bool:
        """Returns whether a stream that plays runs out of frames soon."""
        late = now + min(LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS * self._steps[self._limit])
        frames = self.frames
        return any(frames[r] and frames[r][0] + len(frames[r]) * FRAME_SECONDS < late for r in rows)

    def _step(self, rows: list[int], now: float) -> float:
        """Makes a frame of the most urgent rows. Removes those that have ended. Returns the seconds."""
        batch = rows if len(rows) <= self._limit else nsmallest(self._limit, rows, key=self._due)
        seconds = self._steps[len(batch)] * _FACTORS[self._taken % len(_FACTORS)]
        self._taken += 1
        now += seconds
        ended = False
        for r in batch:
            times = self.frames[r]
            times.append(now)
            ended |= len(times) == self._requests[r].frames
        if ended:
            rows[:] = [r for r in rows if len(self.frames[r]) < self._requests[r].frames]
        return seconds

    def _due(self, r: int) -> float:
        times = self.frames[r]
        return times[0] + len(times) * FRAME_SECONDS if times else self._requests[r].accepted - _URGENT


def _chunks(ramp: Sequence[int], length: int) -> list[int]:
    """Returns, by number of emitted frames, those to the chunk's end. A rest of less than half joins the next one."""
    found: list[int] = []
    ends, sizes = 0, list(ramp)
    while len(found) <= length:
        size, following = (sizes * 2)[:2] if len(sizes) == 1 else sizes[:2]
        ends += size
        rests = range(size, 0, -1)
        found += [rest if 2 * rest >= size else rest + following // 2 for rest in rests]
        sizes = sizes[1:] or sizes
    return found


class _Stream:
    """A request's way through a codec."""

    __slots__ = ("_chunks", "_emitted", "_reference", "_times", "accepted", "due", "first_audio", "interrupted")

    def __init__(self, accepted: float, times: Sequence[float], chunks: Sequence[int], reference: list[int]) -> None:
        self.accepted = accepted
        self.first_audio = math.inf
        self.interrupted = False
        self.due = accepted - _URGENT
        """When its playback ends."""
        self._times, self._chunks, self._reference = times, chunks, reference
        self._emitted = 0

    def ready_at(self) -> float:
        """Returns when the next chunk is complete, or half of it if playback would end before; never after the end."""
        if self._reference:
            return self.accepted
        emitted, times = self._emitted, self._times
        left = len(times) - emitted
        if not left:
            return math.inf
        chunk = self._chunks[emitted]
        if chunk > left:
            chunk = left
        complete = times[emitted + chunk - 1]
        early = self.due - UNDERRUN_MARGIN_SECONDS
        if not emitted or complete <= early:
            return complete
        return min(complete, max(times[emitted + (chunk + 1) // 2 - 1], early))

    def frames_at(self, now: float) -> int:
        """Returns the frames of the next chunk that are there."""
        if self._reference:
            return self._reference[-1]
        emitted = self._emitted
        end = min(emitted + self._chunks[emitted], len(self._times))
        return end - emitted if self._times[end - 1] <= now else bisect_right(self._times, now) - emitted

    def emit(self, frames: int, now: float) -> None:
        """Plays decoded frames."""
        if self._reference:
            self._reference.pop()
            return
        if not self._emitted:
            self.first_audio = self.due = now
        elif now > self.due:
            self.interrupted, self.due = True, now
        self.due += frames * FRAME_SECONDS
        self._emitted += frames


def _decode(streams: Sequence[_Stream], times: CallTimes, limit: int) -> tuple[float, int]:
    """Runs one codec until all streams have ended. Returns its busy seconds, and the most rows without a limit."""
    coming = [(stream.ready_at(), r) for r, stream in enumerate(streams)]
    coming.sort()
    ready: dict[int, int] = {}
    now, busy, most, calls = 0.0, 0.0, 0, 0
    while coming or ready:
        if not ready:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            r = heappop(coming)[1]
            ready[r] = streams[r].frames_at(now)
        if len(ready) == 1:
            batch = list(ready)
            frames = ready[batch[0]]
        else:
            frames = ready[min(ready, key=lambda r: streams[r].due)]
            batch = [r for r, wanted in ready.items() if wanted == frames]
        most = max(most, len(batch))
        if len(batch) > limit:
            batch = nsmallest(limit, batch, key=lambda r: streams[r].due)
        seconds = times.at(len(batch), frames) * _FACTORS[calls % len(_FACTORS)]
        calls += 1
        now += seconds
        busy += seconds
        for r in batch:
            del ready[r]
            streams[r].emit(frames, now)
            at = streams[r].ready_at()
            if at < math.inf:
                heappush(coming, (at, r))
    return busy, most
