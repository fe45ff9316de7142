"""What the codec decoder remembers of a request: the tail of every causal layer's input, and its age in frames.

All of it lies in one row of one tensor, so that an arena of requests gathers and scatters in one copy each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """A layer's place in a state row: `positions` past inputs of `channels` numbers, from element `start`."""

    start: int
    positions: int
    channels: int

    def view(self, data: Tensor) -> Tensor:
        """The layer's part of `data` [rows, width] as [rows, positions, channels], without a copy."""
        part = data[:, self.start : self.start + self.positions * self.channels]
        return part.view(data.shape[0], self.positions, self.channels)


class StateLayout:
    """Hands out the slots of a state row while the decoder is built."""

    def __init__(self) -> None:
        self.width = 0

    def reserve(self, positions: int, channels: int) -> Slot:
        """The next `positions` x `channels` elements of the row."""
        slot = Slot(self.width, positions, channels)
        self.width += positions * channels
        return slot


@dataclass(frozen=True)
class DecoderState:
    """The states of some requests, one a row; all zeros is a request of which nothing has been decoded."""

    data: Tensor
    """[rows, width], the decoder's dtype: every layer's slot."""
    position: Tensor
    """[rows] long: frames decoded so far."""

    @property
    def rows(self) -> int:
        """How many requests fit."""
        return self.data.shape[0]

    def gather(self, slots: Tensor) -> DecoderState:
        """A copy of the rows `slots` [B] long, in that order."""
        return DecoderState(self.data.index_select(0, slots), self.position.index_select(0, slots))

    def scatter_(self, slots: Tensor, other: DecoderState) -> None:
        """Writes the B rows of `other` into the rows `slots` [B] long; no other row changes.

        Of several rows for one slot (a scratch slot for padding, say) any may stay.
        """
        self.data.index_copy_(0, slots, other.data)
        self.position.index_copy_(0, slots, other.position)

    def reset_(self, slots: Tensor) -> None:
        """Makes the rows `slots` [B] long fresh requests."""
        self.data.index_fill_(0, slots, 0)
        self.position.index_fill_(0, slots, 0)


class Carry:
    """One call's way from the state before it to the state after it.

    A causal layer opens a buffer that starts with its remembered tail, writes this call's inputs behind it, computes,
    and closes the buffer: the last inputs that belong to each row's own frames become its new tail.
    """

    def __init__(self, old: DecoderState, lengths: Tensor, frames: int) -> None:
        """`lengths` [B] on the state's device: the fresh frames of each row; `frames`: the call's, padding included."""
        self.position = old.position
        self._old = old.data
        self._new = torch.empty_like(old.data)
        self._lengths = lengths
        self._frames = frames
        # Reading lengths on an accelerator would wait for it; there every tail is gathered by index.
        self._full = lengths.device.type == "cpu" and bool((lengths == frames).all())
        self._rows = torch.arange(lengths.shape[0], device=lengths.device)

    def open(self, slot: Slot, positions: int) -> Tensor:
        """[B, slot.positions + positions, channels]: the tail, then room for `positions` new inputs."""
        buffer = self._old.new_empty(self._old.shape[0], slot.positions + positions, slot.channels)
        buffer[:, : slot.positions] = slot.view(self._old)
        return buffer

    def close(self, slot: Slot, buffer: Tensor) -> None:
        """Remembers the last `slot.positions` inputs of each row's fresh frames."""
        new = slot.view(self._new)
        if self._full:
            new.copy_(buffer[:, -slot.positions :])
            return
        rate = (buffer.shape[1] - slot.positions) // self._frames
        first = self._rows * buffer.shape[1] + self._lengths * rate
        index = first[:, None] + torch.arange(slot.positions, device=first.device)
        new.copy_(buffer.flatten(0, 1).index_select(0, index.flatten()).view(new.shape))

    def state(self) -> DecoderState:
        """The state after the call, once every layer has closed its buffer."""
        return DecoderState(self._new, self.position + self._lengths)
