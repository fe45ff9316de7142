"""What the engine asks of vLLM's workers; each has the model, or its part of it."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_stages.talker.engine import EngineFull
from syrinx_stages.talker.on_vllm.frames import Frames, Opened
from syrinx_stages.talker.on_vllm.where import Handle


class WorkerExtension:
    """Mixed into vLLM's worker class."""

    def syrinx_open(self, opened: Sequence[Opened]) -> bool:
        """See `Frames.open`; says whether there was room for all. An error would not come through from a process."""
        try:
            for each in opened:
                self.get_model().frames.open(each)  # type: ignore[attr-defined]
        except EngineFull:
            return False
        return True

    def syrinx_close(self, handles: Sequence[Handle]) -> None:
        """See `Frames.close`."""
        for handle in handles:
            self.get_model().frames.close(handle)  # type: ignore[attr-defined]

    def syrinx_read(self, wanted: Sequence[tuple[Handle, int, int]]) -> list[bytes]:
        """See `Frames.read`."""
        frames: Frames = self.get_model().frames  # type: ignore[attr-defined]
        return frames.read(wanted)
