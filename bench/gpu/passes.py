"""When a talker engine's forward passes begin and end on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from msgspec import Struct

from syrinx_stages.talker.engine import TalkerEngine


class Passes(Struct, frozen=True):
    """Events of passes, in their order: each is queued before the first and behind the last kernel of its pass."""

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


@contextmanager
def watched(engine: TalkerEngine[Any]) -> Iterator[Passes]:
    """Within, a pass of the engine leaves events. vLLM's worker has to be in this process."""
    found = Passes()
    first, last = _calls(engine)

    def marking(events: list[torch.cuda.Event]) -> None:
        # Both engines have one stream that all of a pass is queued on.
        with engine._recorder.here():  # type: ignore[attr-defined]
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            events.append(event)

    def before(usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            marking(found.begun)
            return usual(*given, **named)

        return call

    def behind(usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            result = usual(*given, **named)
            marking(found.ended)
            return result

        return call

    with _wrapped(*first, before), _wrapped(*last, behind):
        yield found


def _calls(engine: TalkerEngine[Any]) -> Sequence[tuple[Any, str]]:
    """The calls that queue the beginning of a pass, and its end."""
    if not hasattr(engine, "_vllm"):
        return (engine, "launch"), (engine, "launch")
    runner = engine._vllm.collective_rpc(lambda worker: worker.model_runner)[0]
    return (runner, "execute_model"), (runner, "sample_tokens")


@contextmanager
def _wrapped(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    usual = getattr(owner, name)
    setattr(owner, name, wrap(usual))
    try:
        yield
    finally:
        setattr(owner, name, usual)
