"""Measures when a talker engine's forward passes start and end on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from msgspec import Struct

from syrinx_stages.talker.engine import TalkerEngine


class Passes(Struct, frozen=True):
    """CUDA events of passes, in order: recorded before the first graph and after the last kernel of each."""

    started: list[torch.cuda.Event] = []
    ended: list[torch.cuda.Event] = []

    def gaps(self) -> list[float]:
        """Returns milliseconds from each end to the next start. Waits for the device."""
        torch.cuda.synchronize()
        return [end.elapsed_time(start) for end, start in zip(self.ended, self.started[1:], strict=False)]

    def total(self) -> float:
        """Returns milliseconds from the first start to the last end. Waits for the device."""
        torch.cuda.synchronize()
        return float(self.started[0].elapsed_time(self.ended[-1]))


class _EventRecorder:
    """Records the events of passes. A pass starts with the first graph that it replays.

    The host enqueues almost nothing before that. An event recorded earlier would complete before the device runs out of
    work, and hide that it then waits.
    """

    def __init__(self, found: Passes, engine: TalkerEngine[Any]) -> None:
        self._found, self._engine = found, engine
        self._starting = False

    def before_pass(self) -> None:
        self._starting = True

    def before_replay(self) -> None:
        if self._starting:
            self._starting = False
            self._record(self._found.started)

    def after_pass(self) -> None:
        if len(self._found.started) > len(self._found.ended):
            self._record(self._found.ended)

    def _record(self, events: list[torch.cuda.Event]) -> None:
        # Both engines enqueue all work of a pass on one stream.
        with self._engine._recorder.on_stream():  # type: ignore[attr-defined]
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            events.append(event)


@contextmanager
def watched(engine: TalkerEngine[Any]) -> Iterator[Passes]:
    """Returns a context that records events of the engine's passes. vLLM's worker must run in this process."""
    found = Passes()
    events = _EventRecorder(found, engine)
    first, last = _calls(engine)
    with (
        _around(*first, before=events.before_pass),
        _around(*last, after=events.after_pass),
        _around(torch.cuda.CUDAGraph, "replay", before=events.before_replay),
    ):
        yield found


def _calls(engine: TalkerEngine[Any]) -> Sequence[tuple[Any, str]]:
    """Returns the calls in which a pass starts and ends. Each has enqueued its work when it returns."""
    if not hasattr(engine, "_vllm"):
        return (engine, "launch"), (engine, "launch")
    runner = engine._vllm.collective_rpc(lambda worker: worker.model_runner)[0]
    return (runner, "execute_model"), (runner, "sample_tokens")


def _nothing() -> None:
    pass


@contextmanager
def _around(
    owner: Any, name: str, *, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing
) -> Iterator[None]:
    """Returns a context that calls functions before and after each call of a method."""
    own, original = name in vars(owner), getattr(owner, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        before()
        result = original(*arguments, **keywords)
        after()
        return result

    setattr(owner, name, call)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
