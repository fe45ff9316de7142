"""Chooses the codec's next decoder call: which rows, how many frames, which shape. Pure functions.

A row is ready when the next chunk of its ramp is complete, or its input has ended, or has stalled or waits for text
before the first chunk. A row that is about to underrun is ready with half a chunk, or with less if no row is ready.
The most urgent ready row sets the call's number of frames: without captured shapes, those of all its complete chunks
for which there is time. Other rows that are ready for the same number join the call; on an engine where a call costs
more than padding, so do those with fewer.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair, CodecSettings
from syrinx_stages.scheduling.codec_rows import R, Row, Rows, complete_frames

UNDERRUN_MARGIN_SECONDS = FAMILY.frame_seconds
"""Added to the expected decode time of a partial chunk, so that it is published before the underrun."""
DECODE_TIME_MARGIN = 1.5
"""A call may take this multiple of its expected time."""

START_MARGIN_SECONDS = 0.05
"""Leading silence that is not played, of the bundled voice."""
COMPANY_SECONDS = 0.005
"""Added for each stream that plays, at most `START_MARGIN_SECONDS`: the more there are, the more start meanwhile."""
MAX_START_SECONDS = 0.8
"""The first audio waits for at most this many seconds of codes."""

PREFILL_FRAMES = 128
"""Longest prefill, as other streams wait for its end."""


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


class Schedule(Struct, frozen=True):
    """The next call, or when to schedule again without new events (None: never)."""

    call: Call | None
    wake_at: float | None = None


def start_frames(row: Row, rows: Rows[R], company: tuple[int, int], now: float, seconds_per_frame: float) -> int:
    """Returns how many frames a row without audio starts with: whole chunks that last until the next one is decoded.

    company: see `Rows.company`. 0 if its pending codes do not last that long. Its talker needs as long for each frame
    as for the previous ones. The codec may first finish a chunk of any other row, and decodes the chunks of rows that
    underrun earlier.
    """
    ramp, (count, longest) = rows.ramp, company
    buffered = row.pending * FAMILY.frame_seconds
    earlier = rows.frames_before(now + min(buffered, MAX_START_SECONDS))
    others = DECODE_TIME_MARGIN * seconds_per_frame * (longest + earlier)
    own = ramp[min(1, len(ramp) - 1)] * (row.codes_at - row.first_codes_at) / max(row.pending - 1, 1)
    margin = START_MARGIN_SECONDS + min(COMPANY_SECONDS * count, START_MARGIN_SECONDS)
    wait = min(own + others + margin, MAX_START_SECONDS)
    if buffered < wait:
        return 0
    chunks = [end for end in accumulate(ramp) if end <= min(row.pending, max(ramp))]
    return next((end for end in chunks if end * FAMILY.frame_seconds >= wait), max(chunks, default=0))


def ready_rows(rows: Rows[R], now: float, seconds_per_frame: float) -> tuple[list[tuple[R, int]], float]:
    """Returns the rows that can be decoded now, with their numbers of frames, and when the next one becomes urgent.

    At least half a chunk of an urgent row counts as a chunk. Less costs nearly as much as a whole one, so it is decoded
    only while there is nothing else to do.
    """
    ready: list[tuple[R, int]] = []
    less: list[tuple[R, int]] = []
    starting: list[R] = []
    due, wake_at = rows.due(now, UNDERRUN_MARGIN_SECONDS, DECODE_TIME_MARGIN * seconds_per_frame)
    for row, whole in due:
        if not whole:
            enough = row.stalled_at() <= now or 2 * row.pending >= row.next_chunk(rows.ramp)
            (ready if enough else less).append((row, row.pending))
        elif row.decoded or row.context or row.segment_ended or not row.live or row.stalled_at() <= now:
            ready.append((row, whole))
        else:
            starting.append(row)
    if starting:
        company = rows.company()
        starts = ((row, start_frames(row, rows, company, now, seconds_per_frame)) for row in starting)
        ready += [(row, frames) for row, frames in starts if frames]
    return (ready or less, now) if ready or less else ([], wake_at)


def prefill_frames(row: Row, context_frames: int | None) -> int:
    """Returns the number of frames that an engine with `Prefill.context_frames` can prefill now; None: it has none."""
    if context_frames is None:
        return 0
    return max(0, min(row.context, row.context + row.skip - context_frames, PREFILL_FRAMES))


def holds(shape: CapturePair, rows: int, frames: int) -> bool:
    """Returns whether a call of (rows, frames) can be padded to a shape."""
    return shape[0] >= rows and shape[1] >= frames


def cheapest_shape(captured: Iterable[CapturePair], rows: int, frames: int) -> CapturePair | None:
    """Returns the captured shape with the fewest frames in total that holds (rows, frames), or None."""
    fitting = [shape for shape in captured if holds(shape, rows, frames)]
    return min(fitting, key=lambda shape: (shape[0] * shape[1], shape)) if fitting else None


def schedule(
    rows: Rows[R],
    now: float,
    settings: CodecSettings,
    captured: Sequence[CapturePair],
    overhead: int,
    seconds_per_frame: float = 0.0,
    context_frames: int | None = None,
) -> Schedule:
    """Chooses the next call.

    captured: shapes that the call may be padded to. overhead: the engine's `overhead_frames`. seconds_per_frame: time
    of a call for each of its frames; 0 if unknown. context_frames: see `prefill_frames`.
    """
    rows.use_ramp(settings.chunk_ramp)
    ready, wake_at = ready_rows(rows, now, seconds_per_frame)
    if not ready:
        return Schedule(call=None, wake_at=None if wake_at == math.inf else wake_at)
    ready.sort(key=lambda item: (item[0].underrun_at(), item[0].accepted_at, item[0].id))
    first, frames = ready[0]
    if prefilled := prefill_frames(first, context_frames):
        return Schedule(Call((first.id,), (prefilled,), (1, prefilled), "eager", prefill=True))
    ready = [(row, count) for row, count in ready if not prefill_frames(row, context_frames)]
    if not captured:
        limit = min(_frames_in_time(rows.slack(now), seconds_per_frame), max(rows.ramp))
        ready = [(row, complete_frames(row, count, rows.ramp, limit)) for row, count in ready]
        frames = ready[0][1]

    same = [row for row, count in ready if count == frames][: settings.max_num_seqs]
    in_time = _rows_in_time(len(same), frames, rows.slack(now, same), seconds_per_frame)
    batch = [(row.id, frames) for row in same[:in_time]]
    if overhead:
        room = max((shape[0] for shape in captured if holds(shape, len(batch), frames)), default=settings.max_num_seqs)
        fewer = [(row.id, count) for row, count in ready if count < frames]
        batch += fewer[: max(0, min(room, settings.max_num_seqs) - len(batch))]
    ids, call_frames = zip(*batch, strict=True)
    min_shape = (len(ids), max(call_frames))
    shape = cheapest_shape(captured, *min_shape)
    result = "eager" if shape is None else "hit" if shape == min_shape else "padded"
    return Schedule(call=Call(ids=ids, frames=call_frames, shape=shape or min_shape, result=result))


def _frames_in_time(slack: float, seconds_per_frame: float) -> float:
    """Returns the frames of a call during which no playing stream underruns, with as much time for its own call."""
    return slack / 2 / seconds_per_frame if seconds_per_frame else 0.0


def _rows_in_time(count: int, frames: int, slack: float, seconds_per_frame: float) -> int:
    """Returns how many rows of `count` a call may hold, at least 1, so that no other stream underruns meanwhile.

    slack: seconds until one of the others does. A call cannot be interrupted, so their next call starts only after it.
    """
    if seconds_per_frame == 0.0 or slack <= 0 or slack == math.inf:
        return count
    # Half of the slack is for the other stream's own call.
    return max(1, int(slack / 2 / (seconds_per_frame * frames)))
