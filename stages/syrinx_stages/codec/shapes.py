"""Keeps the engine's captured shapes in line with the settings, one shape at a time."""

import logging
import time
from collections.abc import Sequence

import torch

from syrinx_stages.codec.engine import CodecEngine
from syrinx_stages.contract.settings import CapturePair

log = logging.getLogger(__name__)

CAPTURE_PAUSE_FACTOR = 9
"""No call can run during a capture. While streams are waiting, captures pause for this multiple of their duration."""


class CapturedShapes:
    """Tracks the captured shapes and decides when to capture or free one. `wanted` is the setting `capture_pairs`."""

    def __init__(self) -> None:
        self._captured: frozenset[CapturePair] = frozenset()
        self._out_of_memory: frozenset[CapturePair] = frozenset()
        """Wanted shapes that did not fit into device memory."""
        self._paused_until = time.monotonic()

    def usable(self, wanted: Sequence[CapturePair]) -> Sequence[CapturePair]:
        """Returns the wanted shapes that calls may be padded to."""
        return [shape for shape in wanted if shape in self._captured]

    def change_due(self, wanted: Sequence[CapturePair], idle: bool) -> bool:
        """Returns whether to call `change` now; `idle`: no stream is waiting."""
        # A shape that was removed from the settings and added again is retried.
        self._out_of_memory = self._out_of_memory.intersection(wanted)
        if len(self._captured) == len(wanted) and self._captured.issuperset(wanted):
            return False
        changed = bool(self._missing(wanted)) or not self._captured.issubset(wanted)
        return changed and (idle or time.monotonic() >= self._paused_until)

    def change(self, engine: CodecEngine, wanted: Sequence[CapturePair]) -> None:
        """Frees shapes that are no longer wanted and captures at most one missing shape.

        Must run on the engine's thread while no call is in flight.
        """
        started = time.monotonic()
        engine.free_shapes(self._captured.difference(wanted))
        for rows, frames in self._missing(wanted)[:1]:
            try:
                engine.capture((rows, frames))
            except torch.OutOfMemoryError:
                log.exception("out of memory: decoder calls of %d rows and %d frames are not captured", rows, frames)
                self._out_of_memory |= {(rows, frames)}
            else:
                seconds = time.monotonic() - started
                log.info("captured decoder calls of %d rows and %d frames in %.2f s", rows, frames, seconds)
        self._captured = frozenset(engine.captured)
        self._paused_until = time.monotonic() + CAPTURE_PAUSE_FACTOR * (time.monotonic() - started)

    def _missing(self, wanted: Sequence[CapturePair]) -> list[CapturePair]:
        return [shape for shape in wanted if shape not in self._captured and shape not in self._out_of_memory]
