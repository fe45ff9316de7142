"""A codec service whose engine sleeps instead of computing: `python -m gpu.paced_codec CONFIG.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gpu import paced
from syrinx_stages.codec.engine import CaptureCost, split_frames
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair, StageConfig
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.signals import exit_on_signals

_CODEBOOK_SIZE = 2048


class Call(Struct, frozen=True):
    """A launched call."""

    done_at: float
    frames: list[int]


class PacedCodecEngine:
    """A `CodecEngine` with the timing of an H200; captures are free and the audio is noise."""

    depth = 2
    isolates_rows = False
    overhead_frames = 16

    def __init__(self) -> None:
        self._device = paced.Device()
        self.captured: set[CapturePair] = set()
        self.capture_costs: Mapping[CapturePair, CaptureCost] = {}

    def warm_up(self) -> None:
        """Does nothing."""

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
        """Schedules a call behind the previous one."""
        rows, frames = shape
        done_at = self._device.queue(paced.CALL_SECONDS + paced.CALL_FRAME_SECONDS * rows * frames)
        return Call(done_at, [len(items) for items in codes])

    def read(self, call: Call) -> Sequence[bytes]:
        """Waits until a call would be done and returns noise of its length."""
        paced.wait(call.done_at)
        return [paced.NOISE[: frames * FAMILY.frame_bytes] for frames in call.frames]

    def release(self, request_id: str) -> None:
        """Does nothing: there is no state."""


def build(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[CodecService, None]:
    """Returns the real codec service around the paced engine."""
    live = LiveSettings(config.codec, config.settings_generation, config.max_resident)
    return CodecService(connector, PacedCodecEngine, config.replica, config.max_resident, live, metrics), None


if __name__ == "__main__":
    exit_on_signals()
    from syrinx_stages.runtime.process import run

    run("codec", "gpu.paced_codec:build")
