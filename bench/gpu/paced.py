"""Engines that only take their time: the service around them is then measured alone. `gpu.service --paced`.

What they take is about what the engines of an H200 are meant to take; they say noise.
"""

from __future__ import annotations

import random
import time

from syrinx_stages.contract.family import FAMILY

DRAW_SECONDS, DRAW_ROW_SECONDS = 0.0014, 0.000016
"""Of a talker step until its codes are there, and of each of its rows."""
ADVANCE_SECONDS, ADVANCE_ROW_SECONDS = 0.00095, 0.000008
"""Of the rest of the step."""
PREFILL_SECONDS = 0.0012
CALL_SECONDS, CALL_FRAME_SECONDS = 0.0005, 0.000025
"""Of a codec call, and of each frame of each of its rows."""
NOISE = random.Random(0).randbytes(64 * FAMILY.frame_bytes)
"""PCM of as many frames as a call may have."""


class Device:
    """Does one thing after the other, while whoever queued it goes on."""

    def __init__(self) -> None:
        self._free = 0.0

    def queue(self, seconds: float) -> float:
        """When (`time.monotonic()`) work of this length, queued now, will be done."""
        self._free = max(self._free, time.monotonic()) + seconds
        return self._free


def wait(until: float) -> None:
    """Returns at this `time.monotonic()`, as a driver's wait does."""
    time.sleep(max(0.0, until - time.monotonic()))
