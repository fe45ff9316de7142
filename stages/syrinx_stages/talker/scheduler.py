"""Chooses the rows of the talker's next step. Pure functions over what is known of each stream's playback.

Rows are ordered by deadline: the stream that underruns first goes first, and a stream without a frame is already late.
A row whose stream is further ahead of its listener than the lead limit waits. On an engine that shares its processor, a
row that is far enough ahead joins the steps that others need, but causes none.
"""

import math
from collections.abc import Iterable

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.runtime.speed import live_demand

LATE_MARGIN_SECONDS = 0.25
"""A stream with less lead than this is late: codec and network need time, too."""

LATE_MARGIN_STEPS = 15
"""Upper bound of the same margin in steps: with short steps, a stream recovers before the lack is audible."""

AHEAD_SECONDS = 1.5
"""A live stream that underruns within this time needs a step, however many of its frames are to be delivered."""

FILE_BUFFER_SECONDS = 1.0
"""How much later than a live stream's the deadlines of a whole-file request are."""


class Row(Struct, kw_only=True):
    """Scheduling state of one resident request. Times are seconds on one monotonic clock."""

    id: str
    accepted_at: float
    live: bool
    """Whether audio is played while it is generated; otherwise only throughput counts."""
    produced: int = 0
    in_flight: int = 0
    """Steps in flight that contain this row: frames being generated."""
    first_frame_at: float | None = None
    """When the first frame was generated: the earliest start of playback.

    For a stream that was taken over: the latest time at which its playback can have started.
    """
    delivered: int = 0
    first_delivered_at: float | None = None
    """When the first delivery was reported: the start of playback."""
    last_feedback_at: float
    """When the listener was last known to be active: at the claim or a delivery."""

    @property
    def frames(self) -> int:
        """Frames generated or being generated."""
        return self.produced + self.in_flight

    def underrun_at(self) -> float:
        """Returns the earliest time at which playback runs out of generated frames; -inf before the first frame."""
        if not self.live:
            # Files get deadlines as if played from a buffer, so that listeners go first and no file starves.
            start = self.first_frame_at or self.accepted_at
            return start + FILE_BUFFER_SECONDS + self.frames * FAMILY.frame_seconds
        if self.first_frame_at is None:
            return -math.inf
        return self.first_frame_at + self.frames * FAMILY.frame_seconds

    def lead(self, now: float) -> float:
        """Returns the seconds of audio generated beyond what has been played."""
        played = 0.0
        if self.first_delivered_at is not None:
            played = min(self.delivered * FAMILY.frame_seconds, now - self.first_delivered_at)
        return self.frames * FAMILY.frame_seconds - played

    def needs_frames_at(self, ahead_frames: float) -> float:
        """Returns the time from which on a step is due for this row: -inf for now, see `TalkerEngine.ahead_frames`."""
        if not self.live or self.frames - self.delivered < ahead_frames:
            return -math.inf
        return self.underrun_at() - AHEAD_SECONDS

    def is_playing(self, now: float) -> bool:
        """Returns whether playback has not reached the last delivered frame, so that the lead shrinks with time."""
        delivered_seconds = self.delivered * FAMILY.frame_seconds
        return self.first_delivered_at is not None and now - self.first_delivered_at < delivered_seconds


class Step(Struct, frozen=True):
    """The next step, or when to schedule again without new events (None: never)."""

    ids: tuple[str, ...]
    wake_at: float | None = None


def schedule(
    rows: Iterable[Row], now: float, max_num_seqs: int, lead_limit: float, ahead_frames: float = math.inf
) -> Step:
    """Returns at most `max_num_seqs` rows by deadline, without live rows whose lead reaches `lead_limit` seconds.

    No rows if none needs a frame. ahead_frames: see `TalkerEngine.ahead_frames`.
    """
    due = []
    wake_at = needed_at = math.inf
    for row in rows:
        excess = row.lead(now) - lead_limit if row.live else -math.inf
        if excess < 0:
            due.append(row)
            needed_at = min(needed_at, row.needs_frames_at(ahead_frames))
        elif row.is_playing(now):
            wake_at = min(wake_at, now + max(excess, 0.001))
    if needed_at > now:
        wake_at = min(wake_at, needed_at)
        return Step(ids=(), wake_at=None if wake_at == math.inf else wake_at)
    # Among rows without a frame, those whose first frame is not in flight go first.
    due.sort(key=lambda row: (row.underrun_at(), row.in_flight, row.accepted_at, row.id))
    return Step(ids=tuple(row.id for row in due[:max_num_seqs]))


def late_margin(step_seconds: float) -> float:
    """Returns the lead in seconds below which a stream is late, for steps of this duration."""
    return min(LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS * step_seconds)


def demands(rows: Iterable[Row], now: float, lead_limit: float) -> list[float]:
    """Returns the seconds of audio per second that each row needs. A paused listener's needs none."""
    found = []
    for row in rows:
        if not row.live:
            found.append(1.0)
        elif row.lead(now) < lead_limit or row.is_playing(now):
            found.append(live_demand(row.underrun_at() - now))
    return found


def is_overloaded(rows: Iterable[Row], now: float, lead_limit: float, margin: float) -> bool:
    """Returns whether a live stream underruns within `margin` seconds: this talker has as much work as it can do.

    A row at the lead limit does not count. It waits for its listener, who paused or does not read.
    """
    started = [row for row in rows if row.live and row.first_frame_at is not None and row.lead(now) < lead_limit]
    return any(row.underrun_at() < now + margin for row in started)


def abandoned(rows: Iterable[Row], now: float, lead_limit: float, timeout: float) -> list[str]:
    """Returns the live rows at the lead limit whose listener has been inactive for `timeout` seconds."""
    return [row.id for row in rows if now - row.last_feedback_at > timeout and row.live and row.lead(now) >= lead_limit]
