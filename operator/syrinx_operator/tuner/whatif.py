"""What if: serves a drawn load by a model of the pipeline under a setting. Pure.

A request waits for a talker none of whose streams is late, is prepared beside its steps, is prefilled, and becomes a
row of them. The frames that a stream has become chunks by the ramp, or parts of one near an underrun, and rows of the
codec's calls. The stream whose playback ends first is served first. Codecs take turns in claiming. Talkers do not wait
for codecs, so that one run of a talker serves all settings of the codec.
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
from syrinx_stages.contract.admission import MAX_UNSTARTED, late_margin
from syrinx_stages.contract.family import FAMILY

FRAME_SECONDS = FAMILY.frame_seconds
QUICK = 0.1
"""Quantile of the TTFA that hardly depends on queues."""
_ASK_SECONDS = 1.0
"""Time within which a talker that was not late gets a request that comes."""
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
    slowdown: float = 1.0
    """Factor of all engine times, for what else the model does not explain."""


class Request(NamedTuple):
    """A drawn request."""

    accepted: float
    task_type: str
    frames: int


class Score(NamedTuple):
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
        self._talked = _Played[_Talked]()
        self._outcomes: dict[tuple[object, ...], _Played[Score]] = {}

    def score(self, setting: Setting) -> Score:
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

    def _decode(self, talked: _Talked, setting: Setting, limit: int) -> tuple[Score, int]:
        codecs, frames, busy = self._plant.codecs, talked.frames, talked.busy
        well, most, ttfas = 0, 0, dict[str, list[float]]()
        times = call_times(self._measured.calls, setting.capture_pairs)
        chunks = _chunks(setting.chunk_ramp, max(map(len, frames), default=0))
        for codec in range(codecs):
            served = [r for r in range(codec, len(self._requests), codecs) if frames[r]]
            streams = [self._stream(self._requests[r], frames[r], chunks, max(setting.chunk_ramp)) for r in served]
            seconds, rows = _decode(streams, times, limit, self._plant.slowdown)
            busy, most = busy + seconds, max(most, rows)
            for r, stream in zip(served, streams, strict=True):
                accepted, task_type, _ = self._requests[r]
                ttfa = stream.first_audio - accepted + self._plant.offsets.get(task_type, 0.0)
                ttfas.setdefault(task_type, []).append(ttfa)
                in_time = ttfa <= self._plant.limits.get(task_type, math.inf)
                well += r >= self._judged and in_time and not stream.interrupted
        audio = FRAME_SECONDS * sum(map(len, frames))
        quick = {task_type: sorted(found)[int(QUICK * len(found))] for task_type, found in ttfas.items()}
        return Score(well / (len(self._requests) - self._judged), busy / max(audio, FRAME_SECONDS), quick), most

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
        """Most rows of a talker."""
        self._requests, self._steps, self._plant = requests, steps, plant
        self._prefill, self._prepare = prefill, prepare
        self._rows: list[list[tuple[float, int]]] = [[] for _ in range(plant.talkers)]
        """Of each talker, sorted: when the playback of a stream ends, and its request."""
        self._prepared_at = [0.0] * plant.talkers
        """When each talker's last claimed request is prepared."""
        self._asked_until = [-math.inf] * plant.talkers
        """Until when each talker, which was not late, gets a request that comes."""
        self._step_seconds = [steps[1]] * plant.talkers
        """Moving average of each talker's steps."""
        self._limit = len(steps) - 1
        self._following = 0
        """The oldest request that waits, or the next that comes."""

    def run(self) -> None:
        """Serves all requests."""
        claimed: list[deque[tuple[float, int]]] = [deque() for _ in self._rows]
        turns = [(0.0, talker) for talker in range(len(claimed))]
        while turns:
            now, talker = heappop(turns)
            rows, coming, begin = self._rows[talker], claimed[talker], now
            while self._claim(talker, coming, now) and not rows and coming[0][0] > now:
                continue  # An idle talker claims what it can.
            if coming and coming[0][0] <= now:
                rows.insert(0, (-math.inf, coming.popleft()[1]))
                now += self._prefill
            if rows:
                now += self._step(talker, now)
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

    def _claim(self, talker: int, coming: deque[tuple[float, int]], now: float) -> bool:
        """Claims a request, to be prepared after those before it. Returns whether one waited and there was room."""
        requests, rows = self._requests, self._rows[talker]
        while self._following < len(requests) and requests[self._following].accepted < now - self._plant.patience:
            self._following += 1
        if len(coming) >= min(MAX_UNSTARTED, self._plant.talker_resident - len(rows)):
            return False
        waits = self._following < len(requests) and requests[self._following].accepted <= now
        # A stream that plays runs out of frames soon.
        is_late = rows and rows[0][0] < now + late_margin(self._step_seconds[talker])
        if not is_late:
            self._asked_until[talker] = now + _ASK_SECONDS
        elif waits and requests[self._following].accepted < self._asked_until[talker]:
            self._asked_until[talker] = -math.inf
        else:
            return False
        if not waits:
            return False
        prepare = self._prepare.get(requests[self._following].task_type, 0.0)
        self._prepared_at[talker] = max(now, self._prepared_at[talker]) + prepare
        coming.append((self._prepared_at[talker], self._following))
        self._following += 1
        return True

    def _step(self, talker: int, now: float) -> float:
        """Makes a frame of the most urgent rows. Removes those that have ended. Returns the seconds."""
        rows = self._rows[talker]
        batch, following = rows[: self._limit], rows[self._limit :]
        seconds = self._steps[len(batch)]
        self._step_seconds[talker] += 0.1 * (seconds - self._step_seconds[talker])
        self.most = max(self.most, len(rows))
        now += seconds
        for due, r in batch:
            times = self.frames[r]
            times.append(now)
            if len(times) < self._requests[r].frames:
                following.append(((due if len(times) > 1 else now) + FRAME_SECONDS, r))
        following.sort()
        self._rows[talker] = following
        return seconds


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

    __slots__ = (
        *("_chunk", "_chunks", "_complete_at", "_emitted", "_reference", "_times"),
        *("accepted", "due", "first_audio", "frames", "interrupted"),
    )

    def __init__(self, accepted: float, times: Sequence[float], chunks: Sequence[int], reference: list[int]) -> None:
        self.accepted = accepted
        self.first_audio = math.inf
        self.interrupted = False
        self.due = -math.inf
        """When its playback ends: what has no audio yet comes before all that plays."""
        self.frames = 0
        """Frames of the next chunk that are there."""
        self._times, self._chunks, self._reference = times, chunks, reference
        self._emitted = 0

    def next_chunk(self) -> float:
        """Returns when the next chunk is complete, or part of it if playback would end before; never after the end."""
        if self._reference:
            self._chunk, self._complete_at = self._reference[-1], self.accepted
            return self.accepted
        emitted, times = self._emitted, self._times
        if emitted == len(times):
            return math.inf
        self._chunk = min(self._chunks[emitted], len(times) - emitted)
        self._complete_at = complete = times[emitted + self._chunk - 1]
        early = self.due - FRAME_SECONDS
        return complete if not emitted or complete <= early else min(complete, max(times[emitted], early))

    def has_half(self, now: float) -> bool:
        """Counts the frames of the next chunk that are there. Returns whether they are half of it."""
        if now >= self._complete_at:
            self.frames = self._chunk
            return True
        emitted = self._emitted
        self.frames = bisect_right(self._times, now, emitted, emitted + self._chunk) - emitted
        return 2 * self.frames >= self._chunks[emitted]

    def emit(self, now: float) -> None:
        """Plays the decoded frames."""
        if self._reference:
            self._reference.pop()
            return
        if not self._emitted:
            self.first_audio = self.due = now
        elif now > self.due:
            self.interrupted, self.due = True, now
        self.due += self.frames * FRAME_SECONDS
        self._emitted += self.frames


def _decode(streams: Sequence[_Stream], times: CallTimes, limit: int, slowdown: float) -> tuple[float, int]:
    """Runs one codec until all streams have ended. Returns its busy seconds, and the most rows without a limit."""
    coming = sorted((stream.next_chunk(), r) for r, stream in enumerate(streams))
    waiting: list[tuple[int, _Stream]] = []
    now, busy, most = 0.0, 0.0, 0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            r = heappop(coming)[1]
            waiting.append((r, streams[r]))
        # Less than half a chunk only if there is nothing else to do.
        ready = [each for each in waiting if each[1].has_half(now)] or waiting
        if len(ready) > 1:
            frames = min(ready, key=_due)[1].frames
            ready = [each for each in ready if each[1].frames == frames]
            most = max(most, len(ready))
            if len(ready) > limit:
                ready = nsmallest(limit, ready, key=_due)
        seconds = slowdown * times.at(len(ready), ready[0][1].frames)
        now += seconds
        busy += seconds
        waiting = [each for each in waiting if each not in ready] if len(waiting) > len(ready) else []
        for r, stream in ready:
            stream.emit(now)
            at = stream.next_chunk()
            if at < math.inf:
                heappush(coming, (at, r))
    return busy, max(most, 1)


def _due(waiting: tuple[int, _Stream]) -> float:
    return waiting[1].due
