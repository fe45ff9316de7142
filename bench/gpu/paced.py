"""Stages with simulated engines, to measure the service without a GPU: `python -m gpu.paced STAGE CONFIG.json`.

The engines sleep for about the times of an H200, and return zeros (codes) and noise (audio).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import torch
from msgspec import Struct

from syrinx_stages.codec.engine import CaptureCost, split_frames
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.contract.settings import CapturePair, StageConfig
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.process import run
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.talker.prompt import Prepared, Prompt
from syrinx_stages.talker.service import TalkerService

DRAW_SECONDS, DRAW_ROW_SECONDS = 0.0014, 0.000016
"""Time of a talker step until its codes are available: constant, and per row."""
ADVANCE_SECONDS, ADVANCE_ROW_SECONDS = 0.00095, 0.000008
"""Time of the rest of the step: constant, and per row."""
PREFILL_SECONDS = 0.0012
CALL_SECONDS, CALL_FRAME_SECONDS = 0.0005, 0.000025
"""Time of a codec call: constant, and per frame of each row."""
NOISE = random.Random(0).randbytes(64 * FAMILY.frame_bytes)
"""PCM of the maximum number of frames of a call."""
_CODEBOOK_SIZE = 2048
_NOTHING = torch.zeros(0)


class PacedEngine:
    """A simulated device that runs queued work sequentially and asynchronously."""

    isolates_rows = False

    def __init__(self) -> None:
        self._free = 0.0

    def queue(self, seconds: float) -> float:
        """Queues work of this duration; returns the `time.monotonic()` at which it completes."""
        self._free = max(self._free, time.monotonic()) + seconds
        return self._free

    def wait(self, until: float) -> None:
        """Blocks until this `time.monotonic()`, like a device synchronization."""
        time.sleep(max(0.0, until - time.monotonic()))

    def warm_up(self) -> None:
        """Does nothing."""

    def release(self, request_id: str) -> None:
        """Removes a request."""


class _Row(Struct):
    frames: int
    max_frames: int


class Step(Struct, frozen=True):
    """A launched talker step."""

    sampled_at: float
    """`time.monotonic()` when its codes are available."""
    results: dict[str, bytes | End]


class PacedTalkerEngine(PacedEngine):
    """A `TalkerEngine` in which every request has `max_frames` frames."""

    depth = 1
    prefill_rows = 8

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, _Row] = {}

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        """Returns an empty prompt."""
        no_codes = torch.zeros((0, CODE_GROUPS), dtype=torch.int64)
        prompt = Prompt(_NOTHING, _NOTHING, _NOTHING)
        return Prepared(request=request, prompt=prompt, codes=no_codes, max_frames=request.max_frames)

    def admit(self, prepared: Sequence[Prepared]) -> None:
        """Enqueues a prefill."""
        self.queue(PREFILL_SECONDS)
        self._rows |= {one.request.id: _Row(0, one.max_frames) for one in prepared}

    def launch(self, ids: Sequence[str]) -> Step:
        """Enqueues a step. Its codes are available before it ends."""
        results = {request_id: self._next(self._rows[request_id]) for request_id in ids}
        sampled_at = self.queue(DRAW_SECONDS + DRAW_ROW_SECONDS * len(ids))
        self.queue(ADVANCE_SECONDS + ADVANCE_ROW_SECONDS * len(ids))
        return Step(sampled_at, results)

    def _next(self, row: _Row) -> bytes | End:
        if row.frames >= row.max_frames:
            return End(EndReason.LENGTH)
        row.frames += 1
        return bytes(2 * CODE_GROUPS)

    def read(self, step: Step) -> Mapping[str, bytes | End]:
        """Waits for a step's codes."""
        self.wait(step.sampled_at)
        return step.results

    def release(self, request_id: str) -> None:
        """Removes a request."""
        self._rows.pop(request_id, None)


class Call(Struct, frozen=True):
    """A launched codec call."""

    done_at: float
    frames: list[int]


class PacedCodecEngine(PacedEngine):
    """A `CodecEngine` with free captures."""

    depth = 2
    overhead_frames = 16

    def __init__(self) -> None:
        super().__init__()
        self.captured: set[CapturePair] = set()
        self.capture_costs: Mapping[CapturePair, CaptureCost] = {}

    def capture(self, shape: CapturePair) -> None:
        """Marks a shape as captured."""
        self.captured.add(shape)

    def free_shapes(self, shapes: Iterable[CapturePair]) -> None:
        """Removes shapes from the captured ones."""
        self.captured.difference_update(shapes)

    def split(self, codes: bytes) -> list[bytes]:
        """Splits an entry into frames. Raises ValueError for a partial frame or an invalid code."""
        return split_frames(codes, CODE_GROUPS, _CODEBOOK_SIZE)

    def open(self, request_id: str) -> None:
        """Does nothing: there is no state."""

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> Call:
        """Enqueues a call."""
        rows, frames = shape
        return Call(self.queue(CALL_SECONDS + CALL_FRAME_SECONDS * rows * frames), [len(items) for items in codes])

    def read(self, call: Call) -> Sequence[bytes]:
        """Waits for a call and returns noise of its length."""
        self.wait(call.done_at)
        return [NOISE[: frames * FAMILY.frame_bytes] for frames in call.frames]


def build_talker(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[TalkerService, None]:
    """Returns the real service with the simulated engine."""
    live = LiveSettings(config.talker, config.settings_generation, config.max_resident)
    return TalkerService(connector, PacedTalkerEngine, config.replica, config.max_resident, live, metrics), None


def build_codec(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[CodecService, None]:
    """Returns the real service with the simulated engine."""
    live = LiveSettings(config.codec, config.settings_generation, config.max_resident)
    return CodecService(connector, PacedCodecEngine, config.replica, config.max_resident, live, metrics), None


if __name__ == "__main__":
    stage = sys.argv.pop(1)
    run(stage, f"gpu.paced:build_{stage}")
