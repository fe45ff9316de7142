"""Chooses which generated frames are published now, without I/O.

A stream with little published audio ahead of its listener gets each frame at once. One with more can wait, and its
frames share an entry. An entry costs Redis and its reader more than a frame, and a batch more than an entry: rows that
hold enough therefore join a batch that another row has filled.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.scheduling.talker import Row

HELD_LEAD_SECONDS = 2.0
"""Nothing is held of a stream whose published audio ends earlier: the codec may wait for a chunk of a second, too."""
HELD_FRAMES = 12
"""A row that holds so many is published: the longest chunk of a GPU's default ramp."""
MAX_BATCH = 64
"""Rows join a batch up to this number of entries, so that Redis and the readers are not busy with it for long."""
CHECK_SECONDS = 0.25
"""How often the rows are looked at which get no frames meanwhile."""


class Holder(Row, kw_only=True):
    """A row with the frames that are not published yet."""

    held: list[bytes]

    def must_publish(self, now: float) -> bool:
        """Returns whether the frames it holds must be published now."""
        lead = self.plays_until() - len(self.held) * FAMILY.frame_seconds - now
        return self.waits_for_text or lead < HELD_LEAD_SECONDS or len(self.held) >= HELD_FRAMES


H = TypeVar("H", bound=Holder)


class Holding(Generic[H]):
    """The rows, of the resident ones in `rows`, that hold frames."""

    def __init__(self, rows: Mapping[str, H]) -> None:
        self._rows = rows
        self._ids: dict[str, None] = {}
        """In the order of their first held frames. Some may have none any more, or be gone."""
        self._checked_at = 0.0

    @property
    def check_at(self) -> float:
        """When to call `take` even if no row has got a frame; inf if no row holds one."""
        return self._checked_at + CHECK_SECONDS if self._ids else math.inf

    def take(self, stepped: Sequence[H], now: float) -> list[H]:
        """Returns rows whose frames the caller publishes now, given those that have just got one."""
        for row in stepped:
            self._ids.setdefault(row.id)
        looked_at = stepped
        if now - self._checked_at >= CHECK_SECONDS:
            looked_at = list(self._holders(1))
            self._checked_at, self._ids = now, dict.fromkeys(row.id for row in looked_at)
        found = [row for row in looked_at if row.must_publish(now)]
        self._remove(found)
        if any(len(row.held) >= HELD_FRAMES for row in found):
            joining = list(islice(self._holders(HELD_FRAMES // 2), max(0, MAX_BATCH - len(found))))
            self._remove(joining)
            found += joining
        return found

    def flush(self) -> list[H]:
        """Returns all rows that hold frames: no step is due, so that none would fill an entry."""
        found = list(self._holders(1))
        self._ids.clear()
        return found

    def _holders(self, frames: int) -> Iterator[H]:
        for request_id in self._ids:
            row = self._rows.get(request_id)
            if row is not None and len(row.held) >= frames:
                yield row

    def _remove(self, rows: Sequence[H]) -> None:
        for row in rows:
            del self._ids[row.id]
