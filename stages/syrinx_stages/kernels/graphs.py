"""CUDA graphs of fixed sequences of kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Recorder:
    """Records sequences on one stream; all graphs take what they allocate from one pool."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """What replays `run`. It is run once before, so that its kernels are compiled and loaded."""
        with torch.cuda.stream(self._stream):
            run()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        return graph.replay
