"""Encodes the request of each row of vLLM's batch in the row's position. Pure.

A model in vLLM gets a position for each row, but no request id. With M-RoPE the model itself chooses the positions of a
prompt, and vLLM increments them for the following tokens, through preemption, chunked prefill and any order. A position
is `generation << 27 | slot << 16 | offset`. It is below 2^31, because vLLM stores some positions in 32 bits. Slot 0 is
unassigned.

The tokens of a prompt are never embedded, but vLLM counts them. The first three encode the handle, the others are 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

OFFSET_BITS = 16
SLOT_BITS = 11
GENERATION_BITS = 4
MAX_OFFSETS = 1 << OFFSET_BITS
MAX_SLOTS = (1 << SLOT_BITS) - 1
GENERATIONS = 1 << GENERATION_BITS
OFFSET_MASK = MAX_OFFSETS - 1
_TOKEN_BASE = 64
"""A slot is encoded in two tokens below this, which every vocabulary has."""
MIN_PROMPT_TOKENS = 3


class Handle(NamedTuple):
    """A request's slot, and how often the slot was allocated before (modulo 16)."""

    slot: int
    generation: int

    @property
    def base(self) -> int:
        """The position of the request's first row."""
        return (self.generation << SLOT_BITS | self.slot) << OFFSET_BITS


UNASSIGNED = Handle(0, 0)


class RowRange(NamedTuple):
    """Consecutive rows of one request, at offsets `first` to `first + length`."""

    handle: Handle
    first: int
    length: int


def prompt_tokens(handle: Handle, length: int) -> list[int]:
    """Returns the tokens of a prompt of `length` positions. Raises ValueError if it is too short for a handle."""
    if length < MIN_PROMPT_TOKENS:
        raise ValueError(f"a prompt has at least {MIN_PROMPT_TOKENS} positions, not {length}")
    high, low = divmod(handle.slot, _TOKEN_BASE)
    return [high, low, handle.generation, *[0] * (length - MIN_PROMPT_TOKENS)]


def handle_of(tokens: Sequence[int]) -> Handle:
    """Returns the handle that a prompt's tokens encode; `UNASSIGNED` for vLLM's own warm-up prompts."""
    if len(tokens) < MIN_PROMPT_TOKENS or max(tokens[:MIN_PROMPT_TOKENS]) >= _TOKEN_BASE:
        return UNASSIGNED
    high, low, generation = tokens[:MIN_PROMPT_TOKENS]
    return Handle(high * _TOKEN_BASE + low, generation)


def row_ranges(positions: Sequence[int]) -> list[RowRange]:
    """Groups the rows of a batch by request, in order."""
    ranges: list[RowRange] = []
    expected = -1
    for position in positions:
        if position == expected:
            ranges[-1] = ranges[-1]._replace(length=ranges[-1].length + 1)
        else:
            high_bits, offset = divmod(position, MAX_OFFSETS)
            generation, slot = divmod(high_bits, MAX_SLOTS + 1)
            ranges.append(RowRange(Handle(slot, generation), offset, 1))
        expected = position + 1
    return ranges


class HandlePool:
    """Allocates slots 1 to `count`, the one that has been free longest first."""

    def __init__(self, count: int) -> None:
        """Raises ValueError if `count` is not between 1 and `MAX_SLOTS`."""
        if not 0 < count <= MAX_SLOTS:
            raise ValueError(f"vLLM can hold 1 to {MAX_SLOTS} resident requests, not {count}")
        self._free = [Handle(slot, 0) for slot in range(1, count + 1)]

    def __len__(self) -> int:
        """Number of free handles."""
        return len(self._free)

    def allocate(self) -> Handle:
        """Returns a handle that no row of any batch carries. Raises IndexError if none is free."""
        return self._free.pop(0)

    def free(self, handle: Handle) -> None:
        """Frees a handle. Rows that still carry it belong to a past generation."""
        self._free.append(Handle(handle.slot, (handle.generation + 1) % GENERATIONS))
