"""Runs an engine's GPU work on a stream of its own and captures it as CUDA graphs; on a CPU, runs it immediately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

Work = Callable[[], None]


class GraphRecorder(Protocol):
    """Runs work on one device in order. Only one thread may use it at a time."""

    def on_stream(self) -> AbstractContextManager[object]:
        """Returns a context in which tensors are allocated and kernels are enqueued on this recorder's stream."""

    def compile(self, works: Sequence[Work]) -> None:
        """Compiles all kernels that `works` launch, without running them."""

    def capture_graph(self, work: Work) -> Work:
        """Returns a function that replays `work`. Runs `work` once, so its results must not be visible later.

        Called during another capture, the returned function runs `work` itself, which becomes part of that capture.
        """

    def record_event(self) -> Work:
        """Returns a function that waits for everything enqueued so far."""

    def pinned_zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Returns zeros in host memory that the device can access asynchronously."""

    def record_stream(self, *tensors: Tensor) -> None:
        """Marks tensors allocated on another stream as used by this one (see `torch.Tensor.record_stream`)."""


class CudaGraphRecorder:
    """Enqueues all work on one CUDA stream. Only the functions returned by `record_event` wait for the device."""

    def __init__(self, device: torch.device, priority: int) -> None:
        """priority: of the CUDA stream; lower numbers run first, 0 is the default."""
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)

    def on_stream(self) -> AbstractContextManager[object]:
        """Returns a context in which this recorder's stream is torch's current stream."""
        return torch.cuda.stream(self._stream)

    def compile(self, works: Sequence[Work]) -> None:
        """Compiles the kernels of all `works` on several threads, without running them."""
        # Imported here because not every machine has Triton.
        from .launch import compile_only

        with self.on_stream(), compile_only():
            for work in works:
                work()

    def capture_graph(self, work: Work) -> Work:
        """Returns a function that replays `work` as a CUDA graph."""
        with self.on_stream():
            # The first run loads modules, which is not allowed during capture.
            work()
            graph = torch.cuda.CUDAGraph()
            # "thread_local" lets other threads of this process use the device during capture.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return lambda: work() if torch.cuda.is_current_stream_capturing() else graph.replay()

    def record_event(self) -> Work:
        """Returns a function that waits for a CUDA event recorded now."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event.synchronize

    def pinned_zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Returns zeros in pinned host memory."""
        return torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=True)

    def record_stream(self, *tensors: Tensor) -> None:
        """Keeps the memory of CUDA tensors allocated until this stream has used them."""
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self._stream)


class ImmediateRecorder:
    """Runs all work immediately on the CPU; Triton's interpreter runs the kernels."""

    def on_stream(self) -> AbstractContextManager[object]:
        """Returns a context that does nothing."""
        return nullcontext()

    def compile(self, works: Sequence[Work]) -> None:
        """Does nothing: the interpreter does not compile."""

    def capture_graph(self, work: Work) -> Work:
        """Returns `work` unchanged."""
        return work

    def record_event(self) -> Work:
        """Returns a function that returns immediately."""
        return lambda: None

    def pinned_zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Returns ordinary zeros."""
        return torch.zeros(shape, dtype=dtype)

    def record_stream(self, *tensors: Tensor) -> None:
        """Does nothing: no work is pending."""


def graph_recorder(device: torch.device, *, priority: int = 0) -> GraphRecorder:
    """Returns a recorder for `device`; `priority` is that of its CUDA stream."""
    return CudaGraphRecorder(device, priority) if device.type == "cuda" else ImmediateRecorder()
