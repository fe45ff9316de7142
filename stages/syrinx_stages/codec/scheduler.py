"""Which frames the codec decodes next, and in which shape: pure.

A stream is ready when it has a whole chunk of its ramp or has ended, and, if none is, when it is about to run dry.
The most urgent ready stream sets the number of frames; others ready for the same number join its call, and with an
engine that computes frames of padding for less than a call, those ready for fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair, CodecSettings

RESERVE_SECONDS = FAMILY.frame_seconds
"""A stream this close to running dry is given what there is, if the codec has nothing else to do."""


class Row(Struct, kw_only=True):
    """What the schedule knows of one resident request. Times are seconds on one monotonic clock."""

    id: str
    accepted: float
    live: bool
    pending: int = 0
    """Frames waiting to be decoded."""
    silent: int = 0
    """Of these, how many come first and are decoded for their state alone (reference, or already played)."""
    emitted: int = 0
    """Frames of audio given out."""
    first_audio: float | None = None
    """When the first audio was given out: playback cannot have begun before."""
    withheld: float = 0.0
    """Seconds of what was given out that the listener is not sent: its leading silence."""
    ended: bool = False
    """No further frames will come."""

    def underrun_at(self) -> float:
        """The time at which playback has used up what was given out, at the earliest."""
        if self.first_audio is None:
            return -math.inf
        return self.first_audio + self.emitted * FAMILY.frame_seconds - self.withheld


class Call(Struct, frozen=True):
    """One decoder call, computed at `shape`; `result` as in the metric."""

    ids: tuple[str, ...]
    frames: tuple[int, ...]
    """What each row gives."""
    shape: CapturePair
    result: str

    @property
    def wanted(self) -> CapturePair:
        """The smallest shape that holds it."""
        return len(self.ids), max(self.frames)

    @property
    def padding(self) -> int:
        """Frames that are computed for nothing."""
        return self.shape[0] * self.shape[1] - sum(self.frames)


class Plan(Struct, frozen=True):
    """The next call, or the time to look again (None: when something happens)."""

    call: Call | None
    wake: float | None = None


def to_boundary(ramp: Sequence[int], emitted: int) -> int:
    """Frames from `emitted` to the end of the chunk it falls in; the ramp's last chunk repeats for ever.

    It depends on the position alone, so a ramp can change while the stream plays.
    """
    end = 0
    for frames in ramp:
        end += frames
        if emitted < end:
            return end - emitted
    return ramp[-1] - (emitted - end) % ramp[-1]


def chunk_ready(row: Row, ramp: Sequence[int]) -> int:
    """Frames of the row's next chunk if they are all there, or if no others will come; else 0."""
    largest = max(ramp)
    if row.silent:
        return min(row.silent, row.pending, largest)
    wanted = to_boundary(ramp, row.emitted) if row.live else largest
    return wanted if row.pending >= wanted else row.pending if row.ended else 0


def cheapest(pairs: Iterable[CapturePair], rows: int, frames: int) -> CapturePair | None:
    """The captured shape with the least work that holds (rows, frames)."""
    fitting = [pair for pair in pairs if pair[0] >= rows and pair[1] >= frames]
    return min(fitting, key=lambda pair: (pair[0] * pair[1], pair)) if fitting else None


def schedule(
    rows: Iterable[Row], now: float, settings: CodecSettings, captured: Sequence[CapturePair], overhead: int
) -> Plan:
    """Chooses the next call.

    captured: the shapes that it may be padded to. overhead: what a call takes beside its frames, in frames, or 0 if
    rows with different numbers of frames shall not share one.
    """
    rows = list(rows)
    ready = [(row, frames) for row in rows if (frames := chunk_ready(row, settings.chunk_ramp))]
    if not ready:
        # Part of a chunk costs nearly as much as a whole one: only while there is nothing else to do.
        playing = [row for row in rows if row.pending and row.live and row.first_audio is not None]
        ready = [(row, row.pending) for row in playing if row.underrun_at() - now <= RESERVE_SECONDS]
        if not ready:
            return Plan(call=None, wake=min((row.underrun_at() - RESERVE_SECONDS for row in playing), default=None))
    ready.sort(key=lambda item: (item[0].underrun_at(), item[0].accepted, item[0].id))
    wanted = ready[0][1]
    equal = [row.id for row, frames in ready if frames == wanted][: settings.max_num_seqs]
    smaller = [(row.id, frames) for row, frames in ready if frames < wanted] if overhead else []
    joining = _joining(equal, wanted, smaller[: settings.max_num_seqs - len(equal)], captured, overhead)
    return Plan(call=_call([(row_id, wanted) for row_id in equal] + joining, captured))


def _joining(
    equal: Sequence[str],
    wanted: int,
    smaller: Sequence[tuple[str, int]],
    captured: Sequence[CapturePair],
    overhead: int,
) -> list[tuple[str, int]]:
    """Which rows with fewer than the `wanted` frames come along: as many as are worth it, the most urgent first.

    Where padding would be computed, their frames cost nothing. Beyond that they save a call of their own, so they may
    bring as much more padding as takes no longer than what a call takes beside its frames: `overhead` frames.
    """
    rows = len(equal)
    own = cheapest(captured, rows, wanted)
    sizes = [shape[0] - rows for shape in captured if shape[0] >= rows and shape[1] >= wanted]
    counts = range(len(smaller) + 1) if own is None else sorted({min(size, len(smaller)) for size in sizes})
    given = [0, *accumulate(frames for _, frames in smaller)]
    most = (0 if own is None else own[0] * own[1] - rows * wanted) + overhead
    best = 0
    for count in counts:
        shape = cheapest(captured, rows + count, wanted) or (rows + count, wanted)
        if shape[0] * shape[1] - rows * wanted - given[count] <= most:
            best = count
    return list(smaller[:best])


def _call(rows: Sequence[tuple[str, int]], captured: Sequence[CapturePair]) -> Call:
    ids, frames = zip(*rows, strict=True)
    own = (len(ids), max(frames))
    shape = cheapest(captured, *own)
    result = "eager" if shape is None else "hit" if shape == own else "padded"
    return Call(ids=ids, frames=frames, shape=shape or own, result=result)
