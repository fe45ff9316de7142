"""Which request a row of vLLM's batch is of: its handle, carried in the row's position. Pure.

A model in vLLM is told a position for each row, and nothing of requests. For M-RoPE the model itself says which
positions a prompt has; vLLM adds to them for what follows, through preemption, chunks and any order. So a position
here is `generation << 27 | slot << 16 | place`, below 2^31: vLLM keeps some in 32 bits. Slot 0 is nobody's.

A prompt's tokens are never read as tokens, but vLLM counts them: the first three say the handle, the others are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PLACE_BITS = 16
SLOT_BITS = 11
GENERATION_BITS = 4
MOST_PLACES = 1 << PLACE_BITS
MOST_SLOTS = (1 << SLOT_BITS) - 1
GENERATIONS = 1 << GENERATION_BITS
PLACE_MASK = MOST_PLACES - 1
_DIGIT = 64
"""Of a slot as two tokens: every vocabulary has so many."""
HEADER = 3
"""Tokens that a prompt has at least."""


class Handle(NamedTuple):
    """A request's slot, and how often the slot was given out before it (modulo 16)."""

    slot: int
    generation: int

    @property
    def base(self) -> int:
        """The position of its first row."""
        return (self.generation << SLOT_BITS | self.slot) << PLACE_BITS


class Run(NamedTuple):
    """Neighbouring rows of one request: places `first` to `first + length`."""

    handle: Handle
    first: int
    length: int


def prompt_tokens(handle: Handle, length: int) -> list[int]:
    """A prompt of so many positions. Raises ValueError if that is fewer than a handle needs."""
    if length < HEADER:
        raise ValueError(f"a prompt of {length} positions, {HEADER} are the fewest")
    high, low = divmod(handle.slot, _DIGIT)
    return [high, low, handle.generation, *[0] * (length - HEADER)]


def handle_of(tokens: Sequence[int]) -> Handle:
    """The handle in a prompt's tokens; of vLLM's own trial prompts, nobody's."""
    if len(tokens) < HEADER or max(tokens[:HEADER]) >= _DIGIT:
        return Handle(0, 0)
    high, low, generation = tokens[:HEADER]
    return Handle(high * _DIGIT + low, generation)


def runs(positions: Sequence[int]) -> list[Run]:
    """The requests of a batch, in its order."""
    found: list[Run] = []
    expected = -1
    for position in positions:
        if position == expected:
            found[-1] = found[-1]._replace(length=found[-1].length + 1)
        else:
            rest, place = divmod(position, MOST_PLACES)
            generation, slot = divmod(rest, MOST_SLOTS + 1)
            found.append(Run(Handle(slot, generation), place, 1))
        expected = position + 1
    return found


class Handles:
    """Gives out slots 1 to `count`, the one that has been free longest first."""

    def __init__(self, count: int) -> None:
        """Raises ValueError if there cannot be so many."""
        if not 0 < count <= MOST_SLOTS:
            raise ValueError(f"{count} requests at once, {MOST_SLOTS} are the most")
        self._free = [Handle(slot, 0) for slot in range(1, count + 1)]

    def __len__(self) -> int:
        """How many are free."""
        return len(self._free)

    def take(self) -> Handle:
        """A handle that no row of any batch carries. Raises IndexError if none is free."""
        return self._free.pop(0)

    def give_back(self, handle: Handle) -> None:
        """Nobody's any more: rows that still carry it are of its last generation."""
        self._free.append(Handle(handle.slot, (handle.generation + 1) % GENERATIONS))
