"""Chooses the codec's next decoder call: which rows, how many frames, which shape. Pure functions.

A row is ready when the next chunk of its ramp is complete, or its input has ended or stalled before the first chunk. A
row that is about to underrun is ready with half a chunk, or with less if no row is ready. The most urgent ready row
sets the call's number of frames: without captured shapes, those of all its complete chunks for which there is time.
Other rows that are ready for the same number join the call; on an engine where padding is cheaper than another call, so
do rows with fewer.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair, CodecSettings
from syrinx_stages.runtime.speed import live_demand

UNDERRUN_MARGIN_SECONDS = FAMILY.frame_seconds
"""Added to the expected decode time of a partial chunk, so that it is published before the underrun."""
DECODE_TIME_MARGIN = 1.5
"""A call may take this multiple of its expected time."""

STALLED_SECONDS = 0.5
"""A stream without audio whose codes stop for this long gets a partial first chunk. Its talker may have reached a lead
limit that is shorter than the chunk, and then waits for playback."""

START_MARGIN_SECONDS = 0.05
"""Leading silence that is not played, of the bundled voice."""
COMPANY_SECONDS = 0.005
"""Added for each stream that plays, at most `START_MARGIN_SECONDS`: the more there are, the more start meanwhile."""
MAX_START_SECONDS = 0.8
"""The first audio waits for at most this many seconds of codes."""

PREFILL_FRAMES = 128
"""Longest prefill, as other streams wait for its end."""

LATE_SECONDS = 0.1
"""A stream with less decoded audio than this is late: the call that decodes its codes takes time, too."""
STARVED_SECONDS = 2.0
"""After this long without audio or codes a stream has probably lost its talker, and needs nothing from the codec."""


class Row(Struct, kw_only=True):
    """Scheduling state of one resident request. Times are seconds on one monotonic clock."""

    id: str
    accepted_at: float
    live: bool
    """Whether audio is played while it is generated; otherwise only throughput counts."""
    pending: int = 0
    first_codes_at: float = math.inf
    """When the first codes arrived."""
    codes_at: float = math.inf
    """When the last codes arrived."""
    context: int = 0
    """How many of these, from the first on, only rebuild decoder state: reference or already published frames."""
    skip: int = 0
    """Published frames whose codes have not arrived yet. They will be context."""
    decoded: int = 0
    """Frames of audio decoded, including calls in flight."""
    first_audio_at: float | None = None
    """When the first audio was published, which is the earliest start of playback."""
    withheld_seconds: float = 0.0
    """Published audio that the gateway does not forward: leading silence."""
    input_ended: bool = False

    def underrun_at(self) -> float:
        """Returns the earliest time at which playback runs out of decoded audio; -inf before the first audio."""
        if self.first_audio_at is None:
            return -math.inf
        return self.first_audio_at + self.decoded * FAMILY.frame_seconds - self.withheld_seconds

    def stalled_at(self) -> float:
        """Returns when a partial first chunk is decoded without waiting for more codes; inf if there is none."""
        waits = self.live and self.pending and self.first_audio_at is None and not self.context
        return self.codes_at + STALLED_SECONDS if waits else math.inf


def demands(rows: Iterable[Row], now: float) -> list[float]:
    """Returns the seconds of audio per second that each row needs, without rows that have no codes to decode yet.

    Neither counts a row that its talker has left without codes for `STARVED_SECONDS`.
    """
    found = []
    for row in rows:
        starved = not row.pending and row.underrun_at() < now - STARVED_SECONDS
        if not (row.input_ended and not row.pending) and not starved:
            lead = 0.0 if row.first_audio_at is None else row.underrun_at() - now
            found.append(live_demand(lead) if row.live else 1.0)
    return found


def is_late(rows: Iterable[Row], now: float) -> bool:
    """Returns whether a live stream whose codes are here underruns within `LATE_SECONDS`."""
    playing = (row for row in rows if row.live and row.pending and row.first_audio_at is not None)
    return any(row.underrun_at() < now + LATE_SECONDS for row in playing)


class Call(Struct, frozen=True):
    """One decoder call, computed at `shape`."""

    ids: tuple[str, ...]
    frames: tuple[int, ...]
    shape: CapturePair
    result: str
    """Value of the metric label: hit, padded or eager."""
    prefill: bool = False
    """The frames of its only row are prefilled instead of decoded."""

    @property
    def min_shape(self) -> CapturePair:
        """The smallest shape that holds the call."""
        return len(self.ids), max(self.frames)

    @property
    def padding(self) -> int:
        """Frames computed only to fill the shape."""
        return self.shape[0] * self.shape[1] - sum(self.frames)


class Plan(Struct, frozen=True):
    """The next call, or when to schedule again without new events (None: never)."""

    call: Call | None
    wake_at: float | None = None


def frames_to_chunk_end(ramp: Sequence[int], position: int) -> int:
    """Returns the frames from `position` to the end of its chunk; the ramp's last chunk repeats forever.

    Depends only on the position, so a ramp can change during a stream. Less than half a chunk, which remains after a
    partial one, is decoded with half of the next chunk.
    """
    table = _frames_by_position(tuple(ramp))
    beyond = position - len(table)
    return table[beyond % ramp[-1] - ramp[-1] if beyond >= 0 else position]


@lru_cache(maxsize=16)
def _frames_by_position(ramp: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the frames to the chunk's end for each position of the ramp and of one more last chunk."""
    table = []
    for chunk, following in pairwise((*ramp, ramp[-1], ramp[-1])):
        table += [left if 2 * left >= chunk else left + following // 2 for left in range(chunk, 0, -1)]
    return tuple(table)


def ready_frames(row: Row, ramp: Sequence[int], now: float) -> int:
    """Returns the number of frames in the row's next chunk if it is complete, or if no more input comes; else 0."""
    if row.context:
        return min(row.context, row.pending, max(ramp))
    chunk = frames_to_chunk_end(ramp, row.decoded) if row.live else max(ramp)
    if row.pending >= chunk:
        return chunk
    return row.pending if row.input_ended or (row.first_audio_at is None and row.stalled_at() <= now) else 0


class _Playing:
    """The next chunks of the rows that play, by urgency."""

    def __init__(self, rows: Iterable[Row], ramp: Sequence[int], now: float) -> None:
        self.count = 0
        """Number of these rows."""
        self.longest = 0
        """Frames of the longest one: a call that may be in progress."""
        self._urgent: list[tuple[float, int]] = []
        for row in rows:
            if row.live and row.decoded and not row.input_ended:
                frames = frames_to_chunk_end(ramp, row.decoded)
                self.count += 1
                self.longest = max(self.longest, complete_frames(row, frames, ramp, max(ramp)))
                if (underrun_at := row.underrun_at()) < now + MAX_START_SECONDS:
                    self._urgent.append((underrun_at, frames))

    def frames_before(self, deadline: float) -> int:
        """Returns the frames of the rows that underrun before a time, at most `MAX_START_SECONDS` from now."""
        return sum(frames for underrun_at, frames in self._urgent if underrun_at < deadline)


def start_frames(row: Row, playing: _Playing, ramp: Sequence[int], now: float, seconds_per_frame: float) -> int:
    """Returns how many frames a row without audio starts with: whole chunks that last until the next one is decoded.

    0 if its pending codes do not last that long. Its talker needs as long for each frame as for the previous ones. The
    codec may first finish a chunk of any other row, and decodes the chunks of rows that underrun earlier.
    """
    buffered = row.pending * FAMILY.frame_seconds
    others = DECODE_TIME_MARGIN * seconds_per_frame * (playing.longest + playing.frames_before(now + buffered))
    own = ramp[min(1, len(ramp) - 1)] * (row.codes_at - row.first_codes_at) / max(row.pending - 1, 1)
    margin = START_MARGIN_SECONDS + min(COMPANY_SECONDS * playing.count, START_MARGIN_SECONDS)
    wait = min(own + others + margin, MAX_START_SECONDS)
    if buffered < wait:
        return 0
    chunks = [end for end in accumulate(ramp) if end <= min(row.pending, max(ramp))]
    return next((end for end in chunks if end * FAMILY.frame_seconds >= wait), max(chunks, default=0))


def partial_chunk_margin(row: Row, seconds_per_frame: float) -> float:
    """Returns how long before a row underruns its partial chunk must be decoded, in seconds."""
    return UNDERRUN_MARGIN_SECONDS + DECODE_TIME_MARGIN * row.pending * seconds_per_frame


def ready_rows(
    rows: Sequence[Row], ramp: Sequence[int], now: float, seconds_per_frame: float
) -> tuple[list[tuple[Row, int]], float]:
    """Returns the rows that can be decoded now, with their numbers of frames, and when the next one becomes urgent.

    At least half a chunk of an urgent row counts as a chunk. Less costs nearly as much as a whole one, so it is decoded
    only while there is nothing else to do.
    """
    ready: list[tuple[Row, int]] = []
    less: list[tuple[Row, int]] = []
    starting: list[Row] = []
    wake_at = math.inf
    for row in rows:
        if not row.pending:
            continue
        if frames := ready_frames(row, ramp, now):
            waits = row.live and not (row.decoded or row.context or row.input_ended or row.stalled_at() <= now)
            if waits:
                starting.append(row)
            else:
                ready.append((row, frames))
        elif row.live and row.first_audio_at is not None:
            urgent_at = row.underrun_at() - partial_chunk_margin(row, seconds_per_frame)
            if urgent_at > now:
                wake_at = min(wake_at, urgent_at)
            elif 2 * row.pending >= frames_to_chunk_end(ramp, row.decoded):
                ready.append((row, row.pending))
            else:
                less.append((row, row.pending))
    if starting:
        playing = _Playing(rows, ramp, now)
        starts = ((row, start_frames(row, playing, ramp, now, seconds_per_frame)) for row in starting)
        ready += [(row, frames) for row, frames in starts if frames]
    if ready or less:
        return ready or less, now
    return [], min([wake_at, *(row.stalled_at() for row in rows)])


def prefill_frames(row: Row, context_frames: int | None) -> int:
    """Returns the number of frames that an engine with `Prefill.context_frames` can prefill now; None: it has none."""
    if context_frames is None:
        return 0
    return max(0, min(row.context, row.context + row.skip - context_frames, PREFILL_FRAMES))


def cheapest_shape(captured: Iterable[CapturePair], rows: int, frames: int) -> CapturePair | None:
    """Returns the captured shape with the fewest frames in total that holds (rows, frames), or None."""
    fitting = [shape for shape in captured if shape[0] >= rows and shape[1] >= frames]
    return min(fitting, key=lambda shape: (shape[0] * shape[1], shape)) if fitting else None


def schedule(
    rows: Iterable[Row],
    now: float,
    settings: CodecSettings,
    captured: Sequence[CapturePair],
    overhead: int,
    seconds_per_frame: float = 0.0,
    context_frames: int | None = None,
) -> Plan:
    """Chooses the next call.

    captured: shapes that the call may be padded to. overhead: the engine's `overhead_frames`. seconds_per_frame: time
    of a call for each of its frames; 0 if unknown. context_frames: see `prefill_frames`.
    """
    rows = list(rows)
    ready, wake_at = ready_rows(rows, settings.chunk_ramp, now, seconds_per_frame)
    if not ready:
        return Plan(call=None, wake_at=None if wake_at == math.inf else wake_at)
    ready.sort(key=lambda item: (item[0].underrun_at(), item[0].accepted_at, item[0].id))
    first, frames = ready[0]
    if prefilled := prefill_frames(first, context_frames):
        return Plan(Call((first.id,), (prefilled,), (1, prefilled), "eager", prefill=True))
    ready = [(row, count) for row, count in ready if not prefill_frames(row, context_frames)]
    if not captured:
        limit = min(_frames_in_time(rows, now, seconds_per_frame), max(settings.chunk_ramp))
        ready = [(row, complete_frames(row, count, settings.chunk_ramp, limit)) for row, count in ready]
        frames = ready[0][1]

    same = [row for row, count in ready if count == frames][: settings.max_num_seqs]
    batch = [(row.id, frames) for row in same[: _rows_in_time(rows, same, frames, now, seconds_per_frame)]]
    if overhead:
        smaller = [(row.id, count) for row, count in ready if count < frames]
        batch += _smaller_rows(len(batch), frames, smaller[: settings.max_num_seqs - len(batch)], captured, overhead)
    ids, call_frames = zip(*batch, strict=True)
    min_shape = (len(ids), max(call_frames))
    shape = cheapest_shape(captured, *min_shape)
    result = "eager" if shape is None else "hit" if shape == min_shape else "padded"
    return Plan(call=Call(ids=ids, frames=call_frames, shape=shape or min_shape, result=result))


def complete_frames(row: Row, frames: int, ramp: Sequence[int], limit: float) -> int:
    """Returns `frames` and those of the complete chunks that follow, at most `limit` in total.

    Fewer calls cost less, and a stream without audio does not wait for more than it needs.
    """
    while row.live and row.decoded and not row.context and row.pending > frames:
        longer = frames + frames_to_chunk_end(ramp, row.decoded + frames)
        if longer > min(row.pending, limit):
            break
        frames = longer
    return frames


def _frames_in_time(rows: Iterable[Row], now: float, seconds_per_frame: float) -> float:
    """Returns the frames of a call during which no playing stream underruns, with as much time for its own call."""
    playing = (row for row in rows if row.live and row.first_audio_at is not None)
    slack = min((row.underrun_at() - now for row in playing if row.pending or not row.input_ended), default=math.inf)
    return slack / 2 / seconds_per_frame if seconds_per_frame else 0.0


def _rows_in_time(rows: Sequence[Row], same: Sequence[Row], frames: int, now: float, seconds_per_frame: float) -> int:
    """Returns how many of `same` a call may hold, at least 1, so that no other playing stream underruns meanwhile.

    A call cannot be interrupted, so the others' next call starts only after it.
    """
    chosen = {row.id for row in same}
    playing = [row for row in rows if row.live and row.first_audio_at is not None and row.id not in chosen]
    slack = min((row.underrun_at() - now for row in playing if not row.input_ended or row.pending), default=math.inf)
    if seconds_per_frame == 0.0 or slack <= 0 or slack == math.inf:
        return len(same)
    # Half of the slack is for the other stream's own call.
    return max(1, int(slack / 2 / (seconds_per_frame * frames)))


def _smaller_rows(
    rows: int, frames: int, candidates: Sequence[tuple[str, int]], captured: Sequence[CapturePair], overhead: int
) -> Sequence[tuple[str, int]]:
    """Returns the candidates (id, fewer than `frames`) that join a call of (rows, frames), most urgent first.

    Candidates that replace padding are free. Each further one saves a call of its own, so as many join as keep the
    additional padding within a call's overhead.
    """
    own = cheapest_shape(captured, rows, frames)
    free_rows = [
        captured_rows - rows for captured_rows, length in captured if captured_rows >= rows and length >= frames
    ]
    counts = range(len(candidates) + 1) if own is None else sorted({min(n, len(candidates)) for n in free_rows})
    candidate_frames = [0, *accumulate(count for _, count in candidates)]
    max_padding = (0 if own is None else own[0] * own[1] - rows * frames) + overhead
    best = 0
    for count in counts:
        padded = cheapest_shape(captured, rows + count, frames) or (rows + count, frames)
        if padded[0] * padded[1] - rows * frames - candidate_frames[count] <= max_padding:
            best = count
    return candidates[:best]
