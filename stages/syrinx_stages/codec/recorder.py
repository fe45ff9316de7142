"""Where a program runs: queued on a stream of its own and recorded as CUDA graphs, or at once on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
import triton
from torch import Tensor

from syrinx_stages.codec.program import Launch

Work = Callable[[], None]

COMPILERS = 16
"""Kernels compiled at once."""


class Recorder(Protocol):
    """Runs programs on one device, one after the other. One thread at a time uses it."""

    def here(self) -> AbstractContextManager[object]:
        """Within, tensors are allocated and kernels queued where the programs run."""

    def compile(self, launches: Sequence[Launch]) -> None:
        """Compiles all kernels that are not compiled yet."""

    def record(self, program: Work) -> Work:
        """Something that does the same as `program`, quicker. The program must do nothing that is seen later."""

    def host(self, elements: int, kind: torch.dtype) -> Tensor:
        """Memory of this machine that the device copies to and from without stopping."""

    def run(self, work: Work, into: Tensor, upload: Tensor, source: Tensor, result: Tensor) -> Work:
        """Copies `upload` to `into`, works, and copies `source` to `result`. What it returns waits for the result."""


class CudaRecorder:
    """Queues everything on one stream; no method but what `run` returns waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Ahead of a talker in the same process: a call is short, and somebody waits for its audio.
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def here(self) -> AbstractContextManager[object]:
        """Within, the stream is torch's current one."""
        return torch.cuda.stream(self._stream)

    def compile(self, launches: Sequence[Launch]) -> None:
        """On several threads."""
        with ThreadPoolExecutor(COMPILERS) as threads, self.here(), triton.AsyncCompileMode(threads):
            for launch in launches:
                launch.compile()

    def record(self, program: Work) -> Work:
        """As a CUDA graph."""
        with self.here():
            # Loads what was never run: a capture cannot.
            program()
            graph = torch.cuda.CUDAGraph()
            # Other threads of this process may use the device meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                program()
            finally:
                graph.capture_end()
        return graph.replay

    def host(self, elements: int, kind: torch.dtype) -> Tensor:
        """Pinned."""
        return torch.empty(elements, dtype=kind, pin_memory=True)

    def run(self, work: Work, into: Tensor, upload: Tensor, source: Tensor, result: Tensor) -> Work:
        """Between two copies, on the stream."""
        with self.here():
            into.copy_(upload, non_blocking=True)
            work()
            result.copy_(source, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return done.synchronize


class CpuRecorder:
    """Runs everything at once: kernels in Triton's interpreter."""

    def here(self) -> AbstractContextManager[object]:
        """Anywhere."""
        return nullcontext()

    def compile(self, launches: Sequence[Launch]) -> None:
        """The interpreter compiles nothing."""

    def record(self, program: Work) -> Work:
        """As it is."""
        return program

    def host(self, elements: int, kind: torch.dtype) -> Tensor:
        """Like any."""
        return torch.empty(elements, dtype=kind)

    def run(self, work: Work, into: Tensor, upload: Tensor, source: Tensor, result: Tensor) -> Work:
        """At once."""
        into.copy_(upload)
        work()
        result.copy_(source)
        return lambda: None


def recorder(device: torch.device) -> Recorder:
    """The one for a device."""
    return CudaRecorder(device) if device.type == "cuda" else CpuRecorder()
