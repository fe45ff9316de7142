"""The queue of engine steps that were launched and whose results were not read yet."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from syrinx_stages.runtime.requests.engine import Engine

log = logging.getLogger(__name__)

C = TypeVar("C")
T = TypeVar("T")


class CompletedStep(Struct, Generic[C, T], frozen=True):
    """A step whose result was read."""

    context: C
    """What the caller passed to `launch`."""
    result: T
    seconds: float
    """Busy time of the engine: from the step's launch, or from the end of the previous step if that came later."""


class InFlightSteps(Generic[C, T]):
    """A FIFO queue of launched steps. Not thread-safe."""

    def __init__(self) -> None:
        self._steps: deque[tuple[C, float, Callable[[], T]]] = deque()
        """Context, launch time and read function of each step."""
        self._last_completed = time.monotonic()

    def __len__(self) -> int:
        return len(self._steps)

    def launch(self, context: C, start: Callable[[], Callable[[], T]]) -> None:
        """Launches a step. `start` launches it and returns the function that waits for its result."""
        launched = time.monotonic()
        self._steps.append((context, launched, start()))

    def read_oldest(self, launched: bool, depth: int) -> CompletedStep[C, T] | None:
        """Waits for the oldest step and returns it.

        Returns None if no step is in flight, or if a step was just launched and fewer than `depth` are in flight:
        another one can then be launched before this one is read.
        """
        if not self._steps or (launched and len(self._steps) < depth):
            return None
        context, launched_at, read = self._steps.popleft()
        result = read()
        started, self._last_completed = max(launched_at, self._last_completed), time.monotonic()
        return CompletedStep(context, result, self._last_completed - started)


def launch_or_isolate(
    engine: Engine, rows: int, launch: Callable[[], Any], each_alone: Callable[[], T]
) -> Callable[[], T]:
    """Launches a step of so many rows and returns the function that waits for its results.

    If that fails and the engine isolates rows, `each_alone` runs them one by one: a bad request fails alone.
    """
    try:
        step = launch()
    except Exception:
        if not engine.isolates_rows:
            raise
        log.exception("a step of %d rows failed", rows)
        results = each_alone()
        return lambda: results
    return lambda: engine.read(step)
