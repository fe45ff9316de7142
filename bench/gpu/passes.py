"""When a talker engine's forward passes begin and end on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from msgspec import Struct

from syrinx_stages.talker.engine import TalkerEngine


class Passes(Struct, frozen=True):
    """Events of passes, in their order: queued before the first graph and behind the last kernel of each."""

    begun: list[torch.cuda.Event] = []
    ended: list[torch.cuda.Event] = []

    def gaps(self) -> list[float]:
        """Milliseconds from each end to the next beginning. Waits for the device."""
        torch.cuda.synchronize()
        return [end.elapsed_time(begin) for end, begin in zip(self.ended, self.begun[1:], strict=False)]

    def whole(self) -> float:
        """Milliseconds from the first beginning to the last end. Waits for the device."""
        torch.cuda.synchronize()
        return float(self.begun[0].elapsed_time(self.ended[-1]))


class _Marks:
    """Queues the events of passes. A pass begins with the first graph that it replays.

    What the host does before that queues next to nothing: an event of when it began to would be reached by the device
    before it runs out of work, and hide that it then waits.
    """

    def __init__(self, found: Passes, engine: TalkerEngine[Any]) -> None:
        self._found, self._engine = found, engine
        self._begins = False

    def before_pass(self) -> None:
        self._begins = True

    def before_replay(self) -> None:
        if self._begins:
            self._begins = False
            self._queue(self._found.begun)

    def behind_pass(self) -> None:
        if len(self._found.begun) > len(self._found.ended):
            self._queue(self._found.ended)

    def _queue(self, events: list[torch.cuda.Event]) -> None:
        # Both engines have one stream that all of a pass is queued on.
        with self._engine._recorder.on_stream():  # type: ignore[attr-defined]
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            events.append(event)


@contextmanager
def watched(engine: TalkerEngine[Any]) -> Iterator[Passes]:
    """Within, a pass of the engine leaves events. vLLM's worker has to be in this process."""
    found = Passes()
    marks = _Marks(found, engine)
    first, last = _calls(engine)
    with (
        _around(*first, before=marks.before_pass),
        _around(*last, behind=marks.behind_pass),
        _around(torch.cuda.CUDAGraph, "replay", before=marks.before_replay),
    ):
        yield found


def _calls(engine: TalkerEngine[Any]) -> Sequence[tuple[Any, str]]:
    """The calls in which a pass begins, and ends; what one queues is queued when it returns."""
    if not hasattr(engine, "_vllm"):
        return (engine, "launch"), (engine, "launch")
    runner = engine._vllm.collective_rpc(lambda worker: worker.model_runner)[0]
    return (runner, "execute_model"), (runner, "sample_tokens")


def _nothing() -> None:
    pass


@contextmanager
def _around(
    owner: Any, name: str, *, before: Callable[[], None] = _nothing, behind: Callable[[], None] = _nothing
) -> Iterator[None]:
    """Within, something is done before and behind each call of a method."""
    own, usual = name in vars(owner), getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        before()
        result = usual(*given, **named)
        behind()
        return result

    setattr(owner, name, call)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, usual)
        else:
            delattr(owner, name)
