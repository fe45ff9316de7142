"""Where an engine's work runs: queued on a stream of its own and recorded as CUDA graphs, or at once on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

Work = Callable[[], None]


class Recorder(Protocol):
    """Runs work on one device, one piece after the other. One thread at a time uses it."""

    def here(self) -> AbstractContextManager[object]:
        """Within, tensors are allocated and kernels queued where the work runs."""

    def compile(self, works: Sequence[Work]) -> None:
        """Compiles all kernels of these that are not compiled yet, and runs none."""

    def record(self, work: Work) -> Work:
        """Something that does the same as `work`, quicker. For that it is run once: nothing of it may be seen later.

        Where somebody else records, it is the work itself that becomes part of that.
        """

    def mark(self) -> Work:
        """Something that waits for all that was queued so far."""

    def host(self, *shape: int, kind: torch.dtype) -> Tensor:
        """Zeros in memory of this machine that the device copies to and from without stopping."""

    def lend(self, *tensors: Tensor) -> None:
        """Says of tensors that were allocated elsewhere that what is queued here still needs their memory."""


class CudaRecorder:
    """Queues everything on one stream; nothing but what `mark` returns waits for the device."""

    def __init__(self, device: torch.device, priority: int) -> None:
        """priority: of the stream, as CUDA counts; below 0 is before others."""
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)

    def here(self) -> AbstractContextManager[object]:
        """Within, the stream is torch's current one."""
        return torch.cuda.stream(self._stream)

    def compile(self, works: Sequence[Work]) -> None:
        """On several threads."""
        # It needs Triton, which is not everywhere.
        from .launch import compiling

        with self.here(), compiling():
            for work in works:
                work()

    def record(self, work: Work) -> Work:
        """As a CUDA graph."""
        with self.here():
            # Loads what was never run: a capture cannot.
            work()
            graph = torch.cuda.CUDAGraph()
            # Other threads of this process may use the device meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return lambda: work() if torch.cuda.is_current_stream_capturing() else graph.replay()

    def mark(self) -> Work:
        """By an event."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event.synchronize

    def host(self, *shape: int, kind: torch.dtype) -> Tensor:
        """Pinned."""
        return torch.zeros(shape, dtype=kind, device="cpu", pin_memory=True)

    def lend(self, *tensors: Tensor) -> None:
        """Their memory is not given out again before the stream has come so far."""
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self._stream)


class CpuRecorder:
    """Runs everything at once: kernels in Triton's interpreter."""

    def here(self) -> AbstractContextManager[object]:
        """Anywhere."""
        return nullcontext()

    def compile(self, works: Sequence[Work]) -> None:
        """The interpreter compiles nothing."""

    def record(self, work: Work) -> Work:
        """As it is."""
        return work

    def mark(self) -> Work:
        """Nothing is ever queued."""
        return lambda: None

    def host(self, *shape: int, kind: torch.dtype) -> Tensor:
        """Like any."""
        return torch.zeros(shape, dtype=kind)

    def lend(self, *tensors: Tensor) -> None:
        """Nothing is ever queued."""


def recorder(device: torch.device, *, priority: int = 0) -> Recorder:
    """The one for a device."""
    return CudaRecorder(device, priority) if device.type == "cuda" else CpuRecorder()
