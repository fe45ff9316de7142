"""Runs an engine's GPU work on a stream of its own and captures it as CUDA graphs."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock

import torch
from torch import Tensor

Work = Callable[[], None]

_capture_lock = Lock()
"""Held during a capture: the garbage collector's state belongs to the process, and engines capture on own threads."""


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Keeps finalizers of unreachable tensors and graphs from calling CUDA, which would break a capture."""
    with _capture_lock:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


class GraphRecorder:
    """Enqueues work on one CUDA stream. Only one thread may use it at a time.

    On a CPU it runs all work immediately; Triton's interpreter runs the kernels.
    """

    def __init__(self, device: torch.device, *, priority: int = 0) -> None:
        """priority: of the CUDA stream; lower numbers run first."""
        self._stream = torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None

    def on_stream(self) -> AbstractContextManager[object]:
        """Returns a context in which tensors are allocated and kernels are enqueued on this recorder's stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def compile(self, works: Sequence[Work]) -> None:
        """Compiles all kernels that `works` launch on several threads, without running them."""
        if self._stream is None:
            return
        # Imported here because not every machine has Triton.
        from .launch import compile_only

        with self.on_stream(), compile_only():
            for work in works:
                work()

    def capture_graph(self, work: Work) -> Work:
        """Returns a function that replays `work` as a CUDA graph.

        Runs `work` once on a GPU, so its results must not be visible later. Called during another capture, the returned
        function runs `work` itself, which becomes part of that capture.
        """
        if self._stream is None:
            return work
        with self.on_stream():
            # The first run loads modules, which is not allowed during capture.
            work()
            graph = torch.cuda.CUDAGraph()
            with _without_garbage_collection():
                # "thread_local" lets other threads of this process use the device during capture.
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        return lambda: work() if torch.cuda.is_current_stream_capturing() else graph.replay()

    def record_event(self) -> Work:
        """Returns a function that waits for everything enqueued so far."""
        if self._stream is None:
            return lambda: None
        event = torch.cuda.Event()
        event.record(self._stream)
        return event.synchronize

    def pinned_zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Returns zeros in host memory that the device can access asynchronously."""
        return torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=self._stream is not None)

    def record_stream(self, *tensors: Tensor) -> None:
        """Marks tensors of other streams as used by this one, which keeps their memory until it has used them."""
        for tensor in tensors:
            if self._stream is not None and tensor.is_cuda:
                tensor.record_stream(self._stream)
