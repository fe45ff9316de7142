"""The shapes of decoder calls that are kept ready, brought in line with the settings one at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from syrinx_stages.codec.engine import CodecEngine
from syrinx_stages.contract.settings import CapturePair

log = logging.getLogger(__name__)

REST = 9
"""While streams wait, this many times what a capture took passes before the next one: no call is made during it."""


class Shapes:
    """What is ready now, and when it is time to make the next shape ready."""

    def __init__(self) -> None:
        self._captured: frozenset[CapturePair] = frozenset()
        self._refused: frozenset[CapturePair] = frozenset()
        """There was no memory for these."""
        self._rests_until = time.monotonic()

    def ready(self, wanted: Sequence[CapturePair]) -> Sequence[CapturePair]:
        """Those of the wanted shapes that calls may be padded to."""
        return [shape for shape in wanted if shape in self._captured]

    def due(self, wanted: Sequence[CapturePair], idle: bool) -> bool:
        """Whether to `change` now; `idle`: no stream waits for it."""
        # A shape that is given up and wanted again is tried again.
        self._refused = self._refused.intersection(wanted)
        if len(self._captured) == len(wanted) and self._captured.issuperset(wanted):
            return False
        missing = any(shape not in self._captured and shape not in self._refused for shape in wanted)
        return (missing or not self._captured.issubset(wanted)) and (idle or time.monotonic() >= self._rests_until)

    def change(self, engine: CodecEngine[Any], wanted: Sequence[CapturePair]) -> None:
        """Frees what is no longer wanted and captures one shape that is; on the engine's thread, no call unread."""
        began = time.monotonic()
        engine.forget_shapes(self._captured.difference(wanted))
        missing = [shape for shape in wanted if shape not in self._captured and shape not in self._refused]
        for rows, frames in missing[:1]:
            try:
                engine.capture((rows, frames))
            except torch.OutOfMemoryError:
                log.exception(
                    "no memory to capture decoder calls of %d rows and %d frames: they are not padded to", rows, frames
                )
                self._refused |= {(rows, frames)}
            else:
                log.info(
                    "captured decoder calls of %d rows and %d frames in %.2f s", rows, frames, time.monotonic() - began
                )
        self._captured = frozenset(engine.captured)
        self._rests_until = time.monotonic() + REST * (time.monotonic() - began)
