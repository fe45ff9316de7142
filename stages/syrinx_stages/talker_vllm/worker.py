"""The calls that the engine makes to vLLM's workers. Each worker holds the model, or its tensor-parallel shard."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_stages.talker.engine import EngineFull
from syrinx_stages.talker_vllm.frame_generator import FrameGenerator, VllmRequest
from syrinx_stages.talker_vllm.positions import Handle


class WorkerExtension:
    """Mixed into vLLM's worker class."""

    def syrinx_open(self, requests: Sequence[VllmRequest]) -> bool:
        """Opens requests. Returns whether there was memory for all: exceptions do not cross process boundaries."""
        try:
            for request in requests:
                self._generator.open(request)
        except EngineFull:
            return False
        return True

    def syrinx_close(self, handles: Sequence[Handle]) -> None:
        """Closes requests. See `FrameGenerator.close`."""
        for handle in handles:
            self._generator.close(handle)

    def syrinx_read(self, wanted: Sequence[tuple[Handle, int, int]]) -> list[bytes]:
        """Returns generated frames. See `FrameGenerator.read`."""
        return self._generator.read(wanted)

    @property
    def _generator(self) -> FrameGenerator:
        generator: FrameGenerator = self.get_model().frame_generator  # type: ignore[attr-defined]
        return generator
