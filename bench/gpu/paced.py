"""Stages with simulated engines, to measure the service without a GPU: `python -m gpu.paced STAGE CONFIG.json`.

The engines sleep for about the times of an H200, and return zeros (codes) and noise (audio).
"""

import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from syrinx_stages.codec.engine import CaptureCost
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.contract.settings import CapturePair, StageConfig
from syrinx_stages.contract.stages import Stage
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.normalization.reading import Reading
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.runtime.process import run
from syrinx_stages.runtime.requests.engine import Limits
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.telemetry.metrics import Metrics
from syrinx_stages.scheduling.traits import GPU
from syrinx_stages.talker.inputs import Prompt
from syrinx_stages.talker.prompt import Prepared
from syrinx_stages.talker.service import TalkerService

DRAW_SECONDS, DRAW_ROW_SECONDS = 0.0014, 0.000016
"""Time of a talker step until its codes are available: constant, and per row."""
ADVANCE_SECONDS, ADVANCE_ROW_SECONDS = 0.00095, 0.000008
"""Time of the rest of the step: constant, and per row."""
PREFILL_SECONDS, PREFILL_REQUEST_SECONDS = 0.0011, 0.00006
"""Time of a prefill of short prompts: constant, and per request."""
CALL_SECONDS, CALL_FRAME_SECONDS = 0.0005, 0.000025
"""Time of a codec call: constant, and per frame; padding costs nothing."""
NOISE = random.Random(0).randbytes(64 * FAMILY.frame_bytes)
"""PCM of the maximum number of frames of a call."""
_PROMPT = Prompt(np.zeros((0, 2), np.int32), (), pad=0)
_NO_CODES = torch.zeros((0, CODE_GROUPS), dtype=torch.int64)


class _Device:
    """A simulated device that runs queued work sequentially and asynchronously."""

    isolates_rows = False
    limits = Limits()

    def __init__(self) -> None:
        self._free = 0.0

    def warm_up(self) -> None:
        pass

    def queue(self, seconds: float) -> float:
        """Queues work of this duration; returns the `time.monotonic()` at which it completes."""
        self._free = max(self._free, time.monotonic()) + seconds
        return self._free

    def wait(self, until: float) -> None:
        """Blocks until this `time.monotonic()`, like a device synchronization."""
        time.sleep(max(0.0, until - time.monotonic()))


class _Talker(_Device):
    """A `TalkerEngine` in which every request has `max_frames` frames. A step is known when its codes are available."""

    depth = 2
    ahead_frames = GPU.ahead_frames
    prompt_rows = GPU.prompt_rows
    prefill_rows = GPU.prefill_rows
    text_lookahead = 1

    def __init__(self) -> None:
        super().__init__()
        self._remaining: dict[str, int] = {}

    def open_text(self, request: SpeechRequest) -> StreamedText:
        raise RequestError("requests of this benchmark have their whole text", "text_mode")

    def extend(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        """Does nothing: see `open_text`."""

    def prepare(
        self, request: SpeechRequest, codes: bytes, reference: bytes | None, text: StreamedText | None = None
    ) -> Prepared:
        return Prepared(request=request, prompt=_PROMPT, codes=_NO_CODES, max_frames=request.max_frames)

    def admit(self, prepared: Sequence[Prepared]) -> None:
        self.queue(PREFILL_SECONDS + PREFILL_REQUEST_SECONDS * len(prepared))
        self._remaining |= {one.request.id: one.max_frames for one in prepared}

    def launch(self, ids: Sequence[str]) -> tuple[float, Mapping[str, bytes | End]]:
        results = {request_id: self._next(request_id) for request_id in ids}
        sampled_at = self.queue(DRAW_SECONDS + DRAW_ROW_SECONDS * len(ids))
        self.queue(ADVANCE_SECONDS + ADVANCE_ROW_SECONDS * len(ids))
        return sampled_at, results

    def _next(self, request_id: str) -> bytes | End:
        self._remaining[request_id] -= 1
        return bytes(2 * CODE_GROUPS) if self._remaining[request_id] >= 0 else End(EndReason.LENGTH)

    def read(self, step: tuple[float, Mapping[str, bytes | End]]) -> Mapping[str, bytes | End]:
        sampled_at, results = step
        self.wait(sampled_at)
        return results

    def release(self, request_id: str) -> None:
        self._remaining.pop(request_id, None)


class _Codec(_Device):
    """A `CodecEngine` with free captures. A call is known by when it is done, and the frames of each row."""

    depth = 2
    prefill = None
    overhead_frames = 16
    codebook_size = 2048

    def __init__(self) -> None:
        super().__init__()
        self.captured: set[CapturePair] = set()
        self.capture_costs: Mapping[CapturePair, CaptureCost] = {}

    def capture(self, shape: CapturePair) -> None:
        self.captured.add(shape)

    def free_shapes(self, shapes: Iterable[CapturePair]) -> None:
        self.captured.difference_update(shapes)

    def open(self, request_id: str) -> None:
        pass

    def launch(
        self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair
    ) -> tuple[float, list[int]]:
        frames = [len(items) for items in codes]
        return self.queue(CALL_SECONDS + CALL_FRAME_SECONDS * sum(frames)), frames

    def read(self, call: tuple[float, list[int]]) -> Sequence[bytes]:
        done_at, frames = call
        self.wait(done_at)
        return [NOISE[: count * FAMILY.frame_bytes] for count in frames]

    def release(self, request_id: str) -> None:
        pass


def build_talker(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[TalkerService, None]:
    """Returns the real service with the simulated engine."""
    live = LiveSettings(config.talker, config.settings_generation, config.max_resident)
    return TalkerService(
        connector, lambda: (_Talker(), Reading()), config.replica, config.max_resident, live, metrics, config.standby_of
    ), None


def build_codec(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[CodecService, None]:
    """Returns the real service with the simulated engine."""
    live = LiveSettings(config.codec, config.settings_generation, config.max_resident)
    return CodecService(connector, _Codec, config.replica, config.max_resident, live, metrics, config.standby_of), None


if __name__ == "__main__":
    stage = Stage(sys.argv.pop(1))
    run(stage, f"gpu.paced:build_{stage}")
