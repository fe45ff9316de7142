"""Which rows the talker steps next: pure, over what is known of each stream's playback.

The stream that would run dry first goes first; one that has said nothing yet counts as already late; one further
ahead of its listener than the lead limit yields its row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY

MARGIN_SECONDS = 0.25
"""A stream whose codes are less than this ahead of playback is late: codec and network need their time too."""

MARGIN_STEPS = 15
"""Or less than so many steps, where these are quick: what runs dry is filled up again before that shows."""

FILE_BUFFER_SECONDS = 1.0
"""How much later than a listener's a whole file's frames are due."""


class Row(Struct, kw_only=True):
    """What the schedule knows of one resident request. Times are seconds on one monotonic clock."""

    id: str
    accepted: float
    live: bool
    produced: int = 0
    """Frames made."""
    in_flight: int = 0
    """Frames being made: steps with this row that are not read yet."""
    first_frame: float | None = None
    """When the first frame was made: playback cannot have begun before. Of a stream taken over, the latest that its
    listener may have begun."""
    delivered: int = 0
    """Frames the client has been handed."""
    first_delivered: float | None = None
    """When the first of them was reported: playback runs from here."""
    heard: float
    """When the listener last gave a sign: the claim, or frames handed over."""

    @property
    def frames(self) -> int:
        """Frames made or being made."""
        return self.produced + self.in_flight

    def underrun_at(self) -> float:
        """The time at which playback has used up what was produced, at the earliest."""
        if not self.live:
            # Nobody listens yet: as if played from a buffer, so that listeners go first and no file starves.
            return (self.first_frame or self.accepted) + FILE_BUFFER_SECONDS + self.frames * FAMILY.frame_seconds
        if self.first_frame is None:
            return -math.inf
        return self.first_frame + self.frames * FAMILY.frame_seconds

    def lead(self, now: float) -> float:
        """Seconds of audio produced beyond what has been played."""
        played = 0.0
        if self.first_delivered is not None:
            played = min(self.delivered * FAMILY.frame_seconds, now - self.first_delivered)
        return self.frames * FAMILY.frame_seconds - played

    def playing(self, now: float) -> bool:
        """Playback has not caught up with what was handed over: the lead shrinks as time goes by."""
        return self.first_delivered is not None and now - self.first_delivered < self.delivered * FAMILY.frame_seconds


class Step(Struct, frozen=True):
    """The next step: rows in order of urgency. With none, look again at `wake` (None: when something happens)."""

    ids: tuple[str, ...]
    wake: float | None = None


def schedule(rows: Iterable[Row], now: float, max_num_seqs: int, lead_limit: float) -> Step:
    """Chooses at most `max_num_seqs` rows by deadline, without those too far ahead of their listener."""
    waiting = []
    wake = math.inf
    for row in rows:
        ahead = row.lead(now) - lead_limit if row.live else -math.inf
        if ahead < 0:
            waiting.append(row)
        elif row.playing(now):
            wake = min(wake, now + max(ahead, 0.001))
    # Of streams that have said nothing yet, those whose first frame is not being made.
    waiting.sort(key=lambda row: (row.underrun_at(), row.in_flight, row.accepted, row.id))
    ids = tuple(row.id for row in waiting[:max_num_seqs])
    return Step(ids=ids, wake=None if ids or wake == math.inf else wake)


def margin(step_seconds: float) -> float:
    """How far ahead of playback a stream's codes have to be with steps that take so long."""
    return min(MARGIN_SECONDS, MARGIN_STEPS * step_seconds)


def late(rows: Iterable[Row], now: float, lead_limit: float, margin: float) -> bool:
    """Whether a live stream is about to run dry: there is as much work as this talker can do.

    One that the lead limit holds back waits for its listener, who paused or takes nothing.
    """
    begun = [row for row in rows if row.live and row.first_frame is not None and row.lead(now) < lead_limit]
    return any(row.underrun_at() < now + margin for row in begun)


def abandoned(rows: Iterable[Row], now: float, lead_limit: float, patience: float) -> list[str]:
    """Live rows held back by the lead limit whose listener has not been heard of for `patience` seconds."""
    return [row.id for row in rows if now - row.heard > patience and row.live and row.lead(now) >= lead_limit]
