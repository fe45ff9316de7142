"""The steps of an engine that are launched and not read yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

N = TypeVar("N")
T = TypeVar("T")


class Landed(Struct, Generic[N, T], frozen=True):
    """A step that was read."""

    note: N
    """What was noted at its launch."""
    result: T
    seconds: float
    """How long the engine was busy with it: from its launch, or from the end of the step before if that came later."""


class _Flight(Struct, Generic[N, T], frozen=True):
    note: N
    launched: float
    read: Callable[[], T]


class InFlight(Generic[N, T]):
    """A queue of at most `depth` steps, in the order of their launch. Only one thread at a time may use it."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._flights: deque[_Flight[N, T]] = deque()
        self._landed = time.monotonic()

    def __len__(self) -> int:
        return len(self._flights)

    def launch(self, note: N, begin: Callable[[], Callable[[], T]]) -> None:
        """Launches a step; `begin` returns what waits for its result."""
        launched = time.monotonic()
        self._flights.append(_Flight(note, launched, begin()))

    def land(self, launched: bool) -> Landed[N, T] | None:
        """Reads the oldest step, if no other may be launched before, or nothing else was there to be launched."""
        if not self._flights or (launched and len(self._flights) < self._depth):
            return None
        flight = self._flights.popleft()
        result = flight.read()
        began, self._landed = max(flight.launched, self._landed), time.monotonic()
        return Landed(flight.note, result, self._landed - began)
