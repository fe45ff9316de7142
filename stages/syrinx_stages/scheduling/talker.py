"""Chooses the rows of the talker's next step. Pure functions over what is known of each stream's playback.

Rows are ordered by deadline: the stream that underruns first goes first, and a stream without a frame is already late.
A row whose stream is further ahead of its listener than the lead limit gets a step only if no other row needs one, and
only as fast as its client receives the audio. On an engine that shares its processor, rows that are far enough ahead
join the steps that others need, but cause none.
"""

import math
from collections.abc import Iterable

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.scheduling.speed import live_demand

AHEAD_SECONDS = 1.5
"""A live stream that underruns within this time needs a step, however many of its frames are to be delivered."""

FILE_BUFFER_SECONDS = 1.0
"""How much later than a live stream's the deadlines of a whole-file request are."""

LISTENER_TIMEOUT = 60.0
"""Seconds of listener inactivity after which a stream at its lead limit is canceled."""

TEXT_TIMEOUT = 60.0
"""Seconds without text after which a stream that waits for it is canceled: longer than a gateway waits for its
client."""

_FRAME = FAMILY.frame_seconds


class Row(Struct, kw_only=True):
    """Scheduling state of one resident request. Times are seconds on one monotonic clock."""

    id: str
    accepted_at: float
    live: bool
    """Whether audio is played while it is generated; otherwise only throughput counts."""
    produced: int = 0
    """Frames of the stream: those that may be published."""
    withheld: int = 0
    """Frames generated after them, of a segment that is checked before it is sent, or under suspicion."""
    in_flight: int = 0
    """Steps in flight that contain this row: frames being generated."""
    expected: int = 0
    """Frames that a segment which is checked before it is sent usually has; 0 if frames are sent at once."""
    is_opening: bool = False
    """Its next segment is not prefilled yet."""
    first_frame_at: float | None = None
    """When the first frame was generated: the earliest start of playback.

    For a stream that was taken over: the latest time at which its playback can have started.
    """
    delivered: int = 0
    first_delivered_at: float | None = None
    """When the first delivery was reported: the start of playback."""
    last_feedback_at: float
    """When the listener was last known to be active: at the claim or a delivery."""
    text_frames: float = math.inf
    """Frames that the text so far allows; inf if it is complete."""
    last_text_at: float = 0.0
    """When text last arrived, or the row was created."""

    @property
    def frames(self) -> int:
        """Frames generated or being generated."""
        return self.produced + self.withheld + self.in_flight

    @property
    def ready_frames(self) -> int:
        """Those that are not withheld."""
        return self.produced + self.in_flight

    @property
    def waits_for_text(self) -> bool:
        """Whether the text so far allows no further frame."""
        return self.frames >= self.text_frames

    def add_text(self, text_frames: float, now: float) -> None:
        """Records that text has arrived. Playback that has run out of it meanwhile goes on with the next frame."""
        if self.waits_for_text and self.first_frame_at is not None:
            self.first_frame_at += max(0.0, now - self.underrun_at())
        self.text_frames, self.last_text_at = text_frames, now

    def plays_until(self) -> float:
        """Returns the earliest time at which playback runs out of ready frames; -inf before the first frame."""
        return -math.inf if self.first_frame_at is None else self.first_frame_at + self.ready_frames * _FRAME

    def underrun_at(self) -> float:
        """Returns by when further frames are needed: no later than `plays_until`; -inf before the first frame."""
        if not self.live:
            # Files get deadlines as if played from a buffer, so that listeners go first and no file starves.
            start = self.first_frame_at or self.accepted_at
            return start + FILE_BUFFER_SECONDS + self.frames * FAMILY.frame_seconds
        if self.first_frame_at is None:
            return -math.inf
        # A segment that is checked must be complete when playback needs it.
        return self.plays_until() - max(self.expected - self.withheld, 0) * _FRAME


_Due = tuple[float, int, float, str]
"""Deadline, steps in flight, arrival and id. In ascending order the most urgent row comes first; among rows without a
frame, those whose first frame is not in flight, by age."""


class Schedule(Struct, frozen=True):
    """The next step, and what all rows together need, found in one pass."""

    ids: list[str]
    """The rows of the step, the most urgent one first; none if no row needs a frame."""
    wake_at: float
    """When to schedule again without new events if there is no step; inf: never."""
    demands: list[float]
    """Seconds of audio per second that each row needs, without paused listeners."""
    late: list[str]
    """Live streams that underrun within the margin. One that is still late with the frames in flight then means that
    this talker has as much work as it can do."""
    abandoned: list[str]
    """Rows at the lead limit whose listener has been inactive for `LISTENER_TIMEOUT`, and rows without text for
    `TEXT_TIMEOUT`."""


def schedule(
    rows: Iterable[Row],
    now: float,
    max_num_seqs: int,
    lead_limit: float,
    ahead_frames: float = math.inf,
    margin: float = 0.0,
) -> Schedule:
    """Returns the next step, of at most `max_num_seqs` rows.

    Live rows whose lead reaches `lead_limit` seconds are in a step only if no row needs one and their clients have all
    but `lead_limit` seconds. ahead_frames: see `TalkerEngine.ahead_frames`. margin: the lead in seconds below which a
    stream is late. A row at the lead limit is never late. With a thousand rows, a pass takes part of a millisecond.
    """
    due: list[_Due] = []
    spare: list[_Due] = []
    demands: list[float] = []
    abandoned: list[str] = []
    late: list[str] = []
    wake_at = needed_at = math.inf
    for row in rows:
        # What Row's properties say, written out: calls would be half of the time.
        ready = row.produced + row.in_flight
        frames = ready + row.withheld
        if frames >= row.text_frames:
            # It is neither due nor late, and its place is kept: the text may come at any time.
            demands.append(1.0)
            if (timeout_at := row.last_text_at + TEXT_TIMEOUT) < now:
                abandoned.append(row.id)
            else:
                wake_at = min(wake_at, timeout_at + 0.001)
            continue
        if row.is_opening:
            demands.append(1.0)
            continue
        if not row.live:
            due.append((row.underrun_at(), row.in_flight, row.accepted_at, row.id))
            demands.append(1.0)
            needed_at = -math.inf
            continue
        missing = row.expected - row.withheld
        playable = ready if missing <= 0 else ready - missing
        first_frame_at, first_delivered_at = row.first_frame_at, row.first_delivered_at
        underrun_at = -math.inf if first_frame_at is None else first_frame_at + playable * _FRAME
        delivered_seconds = row.delivered * _FRAME
        listened = 0.0 if first_delivered_at is None else now - first_delivered_at
        # What is withheld is no lead: it cannot be listened to before further steps.
        excess = ready * _FRAME - (listened if listened < delivered_seconds else delivered_seconds) - lead_limit
        if excess < 0:
            due.append((underrun_at, row.in_flight, row.accepted_at, row.id))
            demands.append(live_demand(underrun_at - now))
            if first_frame_at is not None and first_frame_at + ready * _FRAME < now + margin:
                late.append(row.id)
            if playable - row.delivered < ahead_frames:
                needed_at = -math.inf
            elif underrun_at - AHEAD_SECONDS < needed_at:
                needed_at = underrun_at - AHEAD_SECONDS
            continue
        if (ready - row.delivered) * _FRAME < lead_limit:
            spare.append((underrun_at, row.in_flight, row.accepted_at, row.id))
        abandoned_at = row.last_feedback_at + LISTENER_TIMEOUT
        if abandoned_at < now:
            abandoned.append(row.id)
        else:
            wake_at = min(wake_at, abandoned_at + 0.001)
        if first_delivered_at is not None and listened < delivered_seconds:
            # The listener plays what was delivered, so that the lead shrinks with time.
            demands.append(live_demand(underrun_at - now))
    if needed_at > now:
        wake_at = min(wake_at, needed_at)
        due = due + spare if spare or len(due) == 1 else []
    return Schedule(_first(due, max_num_seqs), wake_at, demands, late, abandoned)


def _first(due: list[_Due], count: int) -> list[str]:
    return [request_id for *_, request_id in sorted(due)[:count]] if count else []
