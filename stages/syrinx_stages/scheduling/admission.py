"""How many requests a talker claims. Streams in progress come first: none while one is late."""

import math
from collections.abc import Sequence

from syrinx_stages.scheduling.speed import EngineSpeed

MAX_UNSTARTED = 4
"""Claimed requests of which no frame is being generated yet, while references are encoded: enough to keep the engine
busy. Others wait for whichever replica is free. Without a reference, at most one is ready beyond those of the next
prefill."""

LATE_MARGIN_SECONDS = 0.25
"""A stream with less lead than this is late: codec and network need time, too."""

LATE_MARGIN_STEPS = 15
"""Upper bound of the same margin in steps: with short steps, a stream recovers before the lack is audible."""

COLD_REQUESTS = 2
"""Requests that are served at the same time until the speed of the engine is known."""


def late_margin(step_seconds: float) -> float:
    """Returns the lead in seconds below which a stream is late, for steps of this duration."""
    return min(LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS * step_seconds)


def unstarted_room(unstarted: int, ready: int, prefill_rows: int) -> int:
    """Returns how many more requests without a frame a talker may hold; not above 0 if none.

    ready: those of them that need no encoding. prefill_rows: see `TalkerEngine`.
    """
    return min(max(MAX_UNSTARTED, prefill_rows) - unstarted, prefill_rows + 1 - ready)


def spare_requests(speed: EngineSpeed, demands: Sequence[float], claimed: int, is_late: bool) -> float:
    """Returns how many more live streams a talker can generate in time.

    demands: of its rows, see `Schedule`. claimed: requests that it holds. is_late: whether a stream is late.
    """
    spare = speed.spare_requests(demands)
    if math.isinf(speed.capacity):
        spare = min(spare, max(COLD_REQUESTS - claimed, 0))
    return min(spare, 0.0) if is_late and speed.real_time else spare
