"""Simulated engine timing, to measure the service without a GPU: `gpu.service --paced`.

The engines sleep for about the target times of an H200 and return noise.
"""

from __future__ import annotations

import random
import time

from syrinx_stages.contract.family import FAMILY

DRAW_SECONDS, DRAW_ROW_SECONDS = 0.0014, 0.000016
"""Time of a talker step until its codes are available: constant, and per row."""
ADVANCE_SECONDS, ADVANCE_ROW_SECONDS = 0.00095, 0.000008
"""Time of the rest of the step: constant, and per row."""
PREFILL_SECONDS = 0.0012
CALL_SECONDS, CALL_FRAME_SECONDS = 0.0005, 0.000025
"""Time of a codec call: constant, and per frame of each row."""
NOISE = random.Random(0).randbytes(64 * FAMILY.frame_bytes)
"""PCM of the maximum number of frames of a call."""


class Device:
    """A simulated device that runs queued work sequentially and asynchronously."""

    def __init__(self) -> None:
        self._free = 0.0

    def queue(self, seconds: float) -> float:
        """Queues work of this duration; returns the `time.monotonic()` at which it completes."""
        self._free = max(self._free, time.monotonic()) + seconds
        return self._free


def wait(until: float) -> None:
    """Blocks until this `time.monotonic()`, like a device synchronization."""
    time.sleep(max(0.0, until - time.monotonic()))
