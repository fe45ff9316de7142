"""Plays requests through talkers and a codec that take the measured times, with the schedules of the services. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from syrinx_operator.tuner.model.captures import CallTimes
from syrinx_stages.contract.admission import ARRIVALS_SECONDS, BURST_SHARE, STANDING_SHARE
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CodecSettings
from syrinx_stages.scheduling import codec, codec_rows, talker
from syrinx_stages.scheduling.admission import late_margin, spare_requests, unstarted_room
from syrinx_stages.scheduling.speed import EngineSpeed
from syrinx_stages.scheduling.traits import Traits

FRAME_SECONDS = FAMILY.frame_seconds


class Request(NamedTuple):
    """A drawn request. Times are seconds."""

    accepted: float
    task_type: str
    frames: int


class TalkerTimes(NamedTuple):
    """Seconds of a talker's work."""

    steps: Sequence[float]
    """Of a step by rows, from 0 to the limit of rows."""
    prefill: float
    prepare: Mapping[str, float]
    """By task type."""
    encoded: Collection[str] = ()
    """Task types whose requests have a reference to encode."""


class Talked(NamedTuple):
    """Times of each request's frames, none of a refused one, and the talkers' busy seconds."""

    frames: Sequence[Sequence[float]]
    busy: float


class Queue:
    """The requests that wait for a talker. It refuses those that would wait for too long, as Redis' does."""

    def __init__(self, requests: Sequence[Request], patience: float, talkers: Sequence[_Talker]) -> None:
        self.requests = requests
        self._patience, self._talkers = patience, talkers
        self._waiting: deque[int] = deque()
        self._following = 0
        self._arrivals = (0.0, 0.0)
        """Time of the last request, and requests per second then: an exponential mean."""

    @property
    def next_at(self) -> float:
        """When the next request comes; inf: never."""
        following = self._following
        return self.requests[following].accepted if following < len(self.requests) else math.inf

    def is_due(self, now: float) -> bool:
        """Returns whether a request waits or has come."""
        return bool(self._waiting) or self.next_at <= now

    def has_any(self, now: float) -> bool:
        """Queues or refuses the requests that have come. Returns whether one waits."""
        while self.next_at <= now:
            self._withdraw(self.next_at)
            self._submit(self._following)
            self._following += 1
        self._withdraw(now)
        return bool(self._waiting)

    def take(self) -> int:
        """Removes the oldest request and returns its number."""
        return self._waiting.popleft()

    def _withdraw(self, now: float) -> None:
        """Removes the requests that have waited for too long."""
        while self._waiting and self.requests[self._waiting[0]].accepted < now - self._patience:
            self._waiting.popleft()

    def _submit(self, request: int) -> None:
        now, ahead = self.requests[request].accepted, len(self._waiting)
        before, arrivals = self._arrivals
        arrivals = arrivals * math.exp((before - now) / ARRIVALS_SECONDS) + 1 / ARRIVALS_SECONDS
        self._arrivals = now, arrivals
        oldest = now - self.requests[self._waiting[0]].accepted if ahead else 0.0
        rate = sum(each.speed.requests_per_second for each in self._talkers) or math.inf
        free = sum(each.spare for each in self._talkers)
        is_busy = sum(max(math.floor(each.spare), 0) for each in self._talkers) <= ahead
        wait = max(0.0, (ahead + 1 - free) / rate) if is_busy else 0.0
        is_crowded = arrivals > rate or oldest > self._patience / STANDING_SHARE
        share = (STANDING_SHARE if is_crowded else BURST_SHARE) if ahead else (BURST_SHARE if is_crowded else 1)
        if wait <= self._patience / share:
            self._waiting.append(request)


class _Talker:
    """One talker. A row of the step in progress has its frame at the step's end."""

    def __init__(self, times: TalkerTimes, traits: Traits, resident: int, lead_limit: float) -> None:
        self.busy = 0.0
        self.speed = EngineSpeed()
        self.spare = 0.0
        """How many more requests it could serve in time when it looked last."""
        self._times, self._traits = times, traits
        self._resident, self._lead_limit = resident, lead_limit
        self._limit = len(times.steps) - 1
        self._rows: dict[str, talker.Row] = {}
        self._claimed: deque[tuple[float, int]] = deque()
        """Requests that are being prepared, and when that is done: one after the other."""
        self.speed.max_num_seqs = self._limit
        self._step_seconds = math.inf

    def turn(self, now: float, queue: Queue, frames: Sequence[list[float]]) -> float:
        """Claims, prefills and makes a step. Returns when the talker has its next turn; inf: never."""
        if queue.is_due(now):
            self._claim(now, queue)
        admitted = 0
        while self._claimed and self._claimed[0][0] <= now and admitted < self._traits.prefill_rows:
            admitted += 1
            request = self._claimed.popleft()[1]
            accepted = queue.requests[request].accepted
            self._rows[str(request)] = talker.Row(
                id=str(request), accepted_at=accepted, live=True, last_feedback_at=now
            )
        found = self._schedule(now, self._limit)
        if not found.ids:
            prepared = self._claimed[0][0] if self._claimed else math.inf
            return min(found.wake_at, prepared, queue.next_at)
        seconds = self._times.steps[len(found.ids)]
        end = now + seconds + (self._times.prefill if admitted else 0.0)
        self.busy += end - now
        self._finish(found.ids, end, queue.requests, frames)
        self.speed.add_step(len(found.ids), len(found.ids), seconds)
        is_first = self._step_seconds == math.inf
        self._step_seconds = seconds if is_first else self._step_seconds + (seconds - self._step_seconds) / 10
        return end

    def _schedule(self, now: float, limit: int) -> talker.Schedule:
        margin = late_margin(self._step_seconds)
        return talker.schedule(self._rows.values(), now, limit, self._lead_limit, self._traits.ahead_frames, margin)

    def _claim(self, now: float, queue: Queue) -> None:
        """Claims as many of the requests that wait as it can serve in time."""
        seen, claimed = self._schedule(now, 0), len(self._rows) + len(self._claimed)
        spare = spare_requests(self.speed, seen.demands, claimed, bool(seen.late))
        self.spare = min(self._resident - claimed, spare)
        ready = sum(queue.requests[each].task_type not in self._times.encoded for _, each in self._claimed)
        room = unstarted_room(len(self._claimed), ready, self._traits.prefill_rows)
        left = math.floor(min(room, self.spare))
        while queue.has_any(now) and left > 0:
            left -= 1
            request = queue.take()
            begin = max(now, self._claimed[-1][0]) if self._claimed else now
            self._claimed.append((begin + self._times.prepare.get(queue.requests[request].task_type, 0.0), request))

    def _finish(
        self, ids: Sequence[str], now: float, requests: Sequence[Request], frames: Sequence[list[float]]
    ) -> None:
        for row_id in ids:
            row, request = self._rows[row_id], int(row_id)
            if row.produced == requests[request].frames:
                # The step in which it learns of the end.
                del self._rows[row_id]
                self.speed.add_request(row.produced)
                continue
            frames[request].append(now)
            row.produced += 1
            if row.first_frame_at is None:
                row.first_frame_at = row.first_delivered_at = now
            row.delivered = row.produced


def play_talkers(
    requests: Sequence[Request],
    times: TalkerTimes,
    traits: Traits,
    *,
    talkers: int,
    resident: int,
    patience: float,
    lead_limit: float,
) -> Talked:
    """Serves requests by talkers. The one whose step ends first claims first."""
    everyone = [_Talker(times, traits, resident, lead_limit) for _ in range(talkers)]
    queue, frames = Queue(requests, patience, everyone), [list[float]() for _ in requests]
    turns = [(0.0, n) for n in range(talkers)]
    while turns:
        now, n = heappop(turns)
        if (following := everyone[n].turn(now, queue, frames)) < math.inf:
            heappush(turns, (max(following, now + 1e-6), n))
    return Talked(frames, sum(each.busy for each in everyone))


class Stream:
    """A request's way through a codec."""

    def __init__(self, accepted: float, times: Sequence[float], reference: int) -> None:
        """`times` are those of its frames. With the first one come `reference` frames that only rebuild the decoder's
        state."""
        self.accepted, self.times, self.reference = accepted, times, reference
        self.first_audio = math.inf
        self.interrupted = False
        self._plays_until = math.inf

    def play(self, now: float, frames: int) -> None:
        """Plays decoded frames."""
        if self.first_audio == math.inf:
            self.first_audio = self._plays_until = now
        elif now > self._plays_until:
            self.interrupted, self._plays_until = True, now
        self._plays_until += frames * FRAME_SECONDS


def play_codec(
    streams: Sequence[Stream], times: CallTimes, settings: CodecSettings, traits: Traits, slowdown: float
) -> tuple[float, int]:
    """Runs one codec until all streams have ended. Returns its busy seconds, and the most rows of a call."""
    coming = _coming(streams)
    rows: codec_rows.Rows[codec_rows.Row] = codec_rows.Rows()
    speed, at, now, busy, most = EngineSpeed(), 0, 0.0, 0.0, 1
    speed.full_step_frames = None if traits.overhead_frames else settings.chunk_ramp[-1]
    while True:
        while at < len(coming) and coming[at][0] <= now:
            _receive(rows, streams, *coming[at])
            at += 1
        plan = codec.schedule(rows, now, settings, times.shapes, traits.overhead_frames, speed.seconds_per_frame)
        if plan.call is None:
            wake_at, is_due = math.inf if plan.wake_at is None else plan.wake_at, False
            # Most frames complete no chunk.
            while not is_due and at < len(coming) and coming[at][0] < wake_at:
                is_due = _receive(rows, streams, *coming[at])
                now = coming[at][0]
                at += 1
            if not is_due:
                if wake_at == math.inf:
                    return busy, most
                now = max(wake_at, now + 1e-6)
            continue
        call = plan.call
        seconds = slowdown * times.at(*call.min_shape)
        now, busy, most = now + seconds, busy + seconds, max(most, len(call.ids))
        speed.add_step(len(call.ids), sum(call.frames), seconds)
        for row_id, frames in zip(call.ids, call.frames, strict=True):
            _emit(rows, streams[int(row_id)], row_id, frames, now)


def _coming(streams: Sequence[Stream]) -> list[tuple[float, int]]:
    """Returns when frames arrive, and of which stream."""
    return sorted((at, number) for number, each in enumerate(streams) for at in each.times)


def _receive(rows: codec_rows.Rows[codec_rows.Row], streams: Sequence[Stream], now: float, number: int) -> bool:
    """Adds a frame to a row. Returns whether a call may be due for it."""
    stream, row_id = streams[number], str(number)
    if (row := rows.get(row_id)) is None:
        row = rows[row_id] = codec_rows.Row(id=row_id, accepted_at=stream.accepted, live=True)
        row.pending = row.context = stream.reference
    row.pending += 1
    row.codes_at, row.first_codes_at = now, min(row.first_codes_at, now)
    row.input_ended = row.segment_ended = now == stream.times[-1]
    rows.changed(row)
    return row.pending == 1 or row.whole_chunk(rows.ramp) > 0


def _emit(rows: codec_rows.Rows[codec_rows.Row], stream: Stream, row_id: str, frames: int, now: float) -> None:
    row = rows[row_id]
    row.pending -= frames
    if row.context:
        row.context -= frames
    else:
        row.decoded += frames
        row.first_audio_at = now if row.first_audio_at is None else row.first_audio_at
        stream.play(now, frames)
    if row.decoded == len(stream.times):
        del rows[row_id]
    else:
        rows.changed(row)
