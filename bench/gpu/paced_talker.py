"""A talker stage with a simulated engine: `python -m gpu.paced_talker CONFIG.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from msgspec import Struct

from gpu import paced
from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.signals import exit_on_signals
from syrinx_stages.talker.prompt import Prepared, Prompt
from syrinx_stages.talker.service import TalkerService

_NOTHING = torch.zeros(0)


class _Row(Struct):
    frames: int
    max_frames: int


class Step(Struct, frozen=True):
    """A launched step."""

    sampled_at: float
    """`time.monotonic()` when its codes are available."""
    results: dict[str, bytes | End]


class PacedTalkerEngine:
    """A `TalkerEngine` in which every request has `max_frames` frames."""

    depth = 1
    isolates_rows = False
    prefill_rows = 8

    def __init__(self) -> None:
        self._device = paced.Device()
        self._rows: dict[str, _Row] = {}

    def warm_up(self) -> None:
        """Does nothing."""

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        """Returns an empty prompt."""
        no_codes = torch.zeros((0, CODE_GROUPS), dtype=torch.int64)
        return Prepared(
            request=request, prompt=Prompt(_NOTHING, _NOTHING, _NOTHING), codes=no_codes, max_frames=request.max_frames
        )

    def admit(self, prepared: Sequence[Prepared]) -> None:
        """Enqueues a prefill."""
        self._device.queue(paced.PREFILL_SECONDS)
        self._rows |= {one.request.id: _Row(0, one.max_frames) for one in prepared}

    def launch(self, ids: Sequence[str]) -> Step:
        """Enqueues a step. Its codes are available before it ends."""
        results = {request_id: self._next(self._rows[request_id]) for request_id in ids}
        sampled_at = self._device.queue(paced.DRAW_SECONDS + paced.DRAW_ROW_SECONDS * len(ids))
        self._device.queue(paced.ADVANCE_SECONDS + paced.ADVANCE_ROW_SECONDS * len(ids))
        return Step(sampled_at, results)

    def _next(self, row: _Row) -> bytes | End:
        if row.frames >= row.max_frames:
            return End(EndReason.LENGTH)
        row.frames += 1
        return bytes(2 * CODE_GROUPS)

    def read(self, step: Step) -> Mapping[str, bytes | End]:
        """Waits for a step's codes."""
        paced.wait(step.sampled_at)
        return step.results

    def release(self, request_id: str) -> None:
        """Removes a request."""
        self._rows.pop(request_id, None)


def build(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[TalkerService, None]:
    """Returns the real service with the simulated engine."""
    live = LiveSettings(config.talker, config.settings_generation, config.max_resident)
    return TalkerService(connector, PacedTalkerEngine, config.replica, config.max_resident, live, metrics), None


if __name__ == "__main__":
    exit_on_signals()
    from syrinx_stages.runtime.process import run

    run("talker", "gpu.paced_talker:build")
