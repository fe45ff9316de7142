"""Capturing CUDA graphs, with a recorded stand-in for the driver."""

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from syrinx_stages.kernels.recorder import GraphRecorder


class FakeGraph:
    """Knows whether the stream is capturing, and how many captures overlap."""

    captures = 0
    overlapping = 0

    def capture_begin(self, capture_error_mode: str) -> None:
        FakeGraph.captures += 1
        FakeGraph.overlapping = max(FakeGraph.overlapping, FakeGraph.captures)

    def capture_end(self) -> None:
        FakeGraph.captures -= 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphRecorder]:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: object())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: threading.Lock())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    FakeGraph.captures = FakeGraph.overlapping = 0
    assert gc.isenabled()
    yield GraphRecorder(torch.device("cuda"))
    gc.enable()


def test_garbage_collector_does_not_run_during_a_capture(recorder: GraphRecorder) -> None:
    """A finalizer that frees device memory or destroys a graph is not allowed then."""
    enabled = []
    recorder.capture_graph(lambda: enabled.append((FakeGraph.captures, gc.isenabled())))
    assert enabled == [(0, True), (1, False)]
    assert gc.isenabled()

    def fail() -> None:
        if FakeGraph.captures:
            raise RuntimeError("not capturable")

    with pytest.raises(RuntimeError, match="not capturable"):
        recorder.capture_graph(fail)
    assert gc.isenabled()
    assert FakeGraph.captures == 0


def test_captures_of_two_engines_do_not_enable_the_garbage_collector_for_each_other(recorder: GraphRecorder) -> None:
    """A colocated talker and codec capture on a thread each."""
    enabled: list[bool] = []

    def work() -> None:
        if FakeGraph.captures:
            for _ in range(2000):
                enabled.append(gc.isenabled())

    def capture() -> None:
        for _ in range(20):
            recorder.capture_graph(work)

    threads = [threading.Thread(target=capture) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert FakeGraph.overlapping == 1
    assert not any(enabled)
    assert gc.isenabled()
