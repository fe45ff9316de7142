"""The comparison of the talker's engines: its table, and the start and end of passes."""

from contextlib import nullcontext

import pytest
import torch

from gpu.engines import rows_of
from gpu.passes import watched


def test_table_has_a_row_for_each_engine_and_batch_size() -> None:
    found = {"frame_ms": 2.049, "first_frame_ms": 3.5, "audio_s_per_s": 35.66}
    idle = found | {"gaps_a_frame": 1.25, "idle_share": 0.031}
    assert rows_of({"torch": {"1": found}, "vllm": {"8": idle}}) == [
        ["torch", "1", "2.05", "3.50", "35.7", "-", "-"],
        ["vllm", "8", "2.05", "3.50", "35.7", "1.2", "3.1%"],
    ]


class Engine:
    """A launch prepares something and replays graphs."""

    def __init__(self, queued: list[str]) -> None:
        self._recorder = self
        self._queued = queued

    def on_stream(self) -> nullcontext[None]:
        return nullcontext()

    def launch(self, graphs: int) -> int:
        self._queued.append("prepare")
        for _ in range(graphs):
            torch.cuda.CUDAGraph.replay(None)  # type: ignore[arg-type]
        return graphs


def test_pass_lasts_from_its_first_graph_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host work before the first graph does not belong to the pass: the device may wait for it."""
    queued: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None: ...

        def record(self) -> None:
            queued.append("event")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: queued.append("graph"))
    engine = Engine(queued)
    with watched(engine) as passes:  # type: ignore[arg-type]
        assert [engine.launch(graphs) for graphs in (2, 0, 1)] == [2, 0, 1]
    engine.launch(1)
    two, empty, one = ["event", "graph", "graph", "event"], [], ["event", "graph", "event"]
    assert queued == ["prepare", *two, "prepare", *empty, "prepare", *one, "prepare", "graph"]
    assert (len(passes.started), len(passes.ended)) == (2, 2)
