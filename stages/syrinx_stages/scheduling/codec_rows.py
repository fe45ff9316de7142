"""The codec's resident rows: the state of each, and of all of them what a choice among hundreds asks for, in arrays."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.scheduling.speed import COMFORTABLE_SECONDS, HEADROOM

STALLED_SECONDS = 0.5
"""A stream without audio whose codes stop for this long gets a partial first chunk. Its talker may have reached a lead
limit that is shorter than the chunk, and then waits for playback."""
LATE_SECONDS = 0.1
"""A stream with less decoded audio than this is late: the call that decodes its codes takes time, too."""
STARVED_SECONDS = 2.0
"""After this long without audio or codes a stream has probably lost its talker, and needs nothing from the codec."""
_COLUMNS = np.dtype(
    [
        ("underrun_at", "f8"),
        ("partial_until", "f8"),
        ("stalled_at", "f8"),
        ("pending", "i4"),
        ("chunk", "i4"),
        ("whole", "i4"),
        ("longest", "i4"),
        ("live", "?"),
        ("started", "?"),
        ("needs_calls", "?"),
        ("company", "?"),
    ]
)


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
    segment_ended: bool = False
    """No further codes of the segment that is being decoded come."""
    following: int = 0
    """Frames of the segments after it that have arrived."""
    input_ended: bool = False
    waits_for_text: bool = False
    """No further codes come before further text does."""

    def resume(self, now: float) -> None:
        """Lets playback that has run out of audio go on with the next frames: the text for them came only now."""
        if self.first_audio_at is not None:
            self.first_audio_at += max(0.0, now - self.underrun_at())

    def underrun_at(self) -> float:
        """Returns the earliest time at which playback runs out of decoded audio; -inf before the first audio."""
        if self.first_audio_at is None:
            return -math.inf
        return self.first_audio_at + self.decoded * FAMILY.frame_seconds - self.withheld_seconds

    def stalled_at(self) -> float:
        """Returns when a partial first chunk is decoded without waiting for more codes; inf if there is none."""
        waits = self.live and self.pending and self.first_audio_at is None and not self.context
        return self.codes_at + (0.0 if self.waits_for_text else STALLED_SECONDS) if waits else math.inf

    def next_chunk(self, ramp: Sequence[int]) -> int:
        """Returns the frames of the next chunk."""
        return frames_to_chunk_end(ramp, self.decoded) if self.live else max(ramp)

    def whole_chunk(self, ramp: Sequence[int]) -> int:
        """Returns the frames that wait for no others: those of the next chunk if it is complete, or all; else 0."""
        if self.context:
            return min(self.context, self.pending, max(ramp))
        chunk = self.next_chunk(ramp)
        return chunk if self.pending >= chunk else self.pending if self.segment_ended else 0


R = TypeVar("R", bound=Row)


class Rows(dict[str, R], Generic[R]):
    """Rows by request id. Tell it with `changed` when the fields of one have changed."""

    def __init__(self, rows: Iterable[R] = ()) -> None:
        super().__init__()
        self.ramp: tuple[int, ...] = (1,)
        """Frames of the chunks, see `use_ramp`."""
        self._slots: dict[str, int] = {}
        self._ids: list[str] = []
        """By slot. The slots are dense: the last row takes that of one that leaves."""
        self._columns: NDArray[Any] = np.zeros(64, _COLUMNS)
        for row in rows:
            self[row.id] = row

    def use_ramp(self, ramp: Sequence[int]) -> None:
        """Sets the chunk ramp."""
        if tuple(ramp) != self.ramp:
            self.ramp = tuple(ramp)
            for row in self.values():
                self.changed(row)

    def __setitem__(self, request_id: str, row: R) -> None:
        super().__setitem__(request_id, row)
        if request_id not in self._slots:
            self._slots[request_id] = len(self._ids)
            self._ids.append(request_id)
            if len(self._ids) > len(self._columns):
                self._columns = np.resize(self._columns, 2 * len(self._columns))
        self.changed(row)

    def __delitem__(self, request_id: str) -> None:
        super().__delitem__(request_id)
        slot, last = self._slots.pop(request_id), self._ids.pop()
        if last != request_id:
            self._ids[slot], self._slots[last] = last, slot
            self._columns[slot] = self._columns[len(self._ids)]

    def pop(self, request_id: str, default: Any = None) -> Any:
        """Removes a row and returns it, or `default` if there is none."""
        row = self.get(request_id, default)
        if request_id in self:
            del self[request_id]
        return row

    def changed(self, row: R) -> None:
        """Reads the fields of one of the rows again."""
        needs_calls = bool(row.pending or row.following) or not row.input_ended
        company = row.live and row.decoded > 0 and not row.input_ended
        chunk = row.next_chunk(self.ramp)
        longest = complete_frames(row, chunk, self.ramp, max(self.ramp)) if company else 0
        whole = row.whole_chunk(self.ramp) if row.pending else 0
        started = row.first_audio_at is not None
        underrun_at = row.underrun_at()
        is_partial = row.live and started and row.pending > 0 and not whole
        partial_until = underrun_at if is_partial else math.inf
        numbers = underrun_at, partial_until, row.stalled_at(), row.pending, chunk, whole, longest
        self._columns[self._slots[row.id]] = (*numbers, row.live, started, needs_calls, company)

    def _at(self, chosen: NDArray[np.bool_]) -> list[R]:
        return [self[self._ids[slot]] for slot in np.flatnonzero(chosen)]

    @property
    def _all(self) -> NDArray[Any]:
        return self._columns[: len(self._ids)]

    def due(self, now: float, margin: float, frame_margin: float) -> tuple[list[tuple[R, int]], float]:
        """Returns the rows that may be decoded now, and when the next one can be without further codes (inf: never).

        With each row comes its `whole_chunk`. A stream with part of a chunk can be decoded `margin` seconds, and
        `frame_margin` for each of its frames, before it underruns.
        """
        rows = self._all
        whole = rows["whole"]
        at = np.minimum(rows["partial_until"] - margin - frame_margin * rows["pending"], rows["stalled_at"])
        chosen = (whole > 0) | (at <= now)
        due = list(zip(self._at(chosen), whole[chosen].tolist(), strict=True))
        return due, float(at[at > now].min(initial=math.inf))

    def without_codes_to_come(self) -> list[R]:
        """Returns the rows whose input has ended and of which all codes are decoded or being decoded."""
        return self._at(~self._all["needs_calls"])

    def demands(self, now: float) -> list[float]:
        """Returns the seconds of audio per second that each row needs, without rows that have no codes to decode yet.

        Neither counts a row that its talker has left without codes for `STARVED_SECONDS`.
        """
        rows = self._all
        starved = (rows["pending"] == 0) & (rows["underrun_at"] < now - STARVED_SECONDS)
        counted = rows[rows["needs_calls"] & ~starved]
        hurries = counted["live"] & (counted["underrun_at"] - now < COMFORTABLE_SECONDS)
        demands: list[float] = np.where(hurries, HEADROOM, 1.0).tolist()
        return demands

    def is_late(self, now: float) -> bool:
        """Returns whether a live stream whose codes are here underruns within `LATE_SECONDS`."""
        rows = self._all
        playing = rows["live"] & rows["started"] & (rows["pending"] > 0)
        return bool((playing & (rows["underrun_at"] < now + LATE_SECONDS)).any())

    def slack(self, now: float, without: Sequence[Row] = ()) -> float:
        """Returns the seconds until a playing stream underruns, other than those in `without`; inf if there is none."""
        rows = self._all
        playing = rows["live"] & rows["started"] & rows["needs_calls"]
        playing[[self._slots[row.id] for row in without]] = False
        return float(rows["underrun_at"][playing].min(initial=math.inf)) - now

    def company(self) -> tuple[int, int]:
        """Returns the number of streams that go on playing, and the frames of the longest call for one of them."""
        rows = self._all
        return int(rows["company"].sum()), int(rows["longest"].max(initial=0))

    def frames_before(self, deadline: float) -> int:
        """Returns the frames of the chunks of the streams that go on playing and underrun before a time."""
        rows = self._all
        return int(rows["chunk"][rows["company"] & (rows["underrun_at"] < deadline)].sum())


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
