"""The codec decoder's state of a request: the last inputs of every causal layer, and the number of decoded frames.

A request's state is one row of one tensor, so that gathering and scattering requests is one copy each.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """A layer's part of a state row: `positions` past inputs of `channels` numbers, from element `start`."""

    start: int
    positions: int
    channels: int

    def view(self, data: Tensor) -> Tensor:
        """Returns the layer's part of `data` [rows, width] as a view [rows, positions, channels]."""
        part = data[:, self.start : self.start + self.positions * self.channels]
        return part.view(data.shape[0], self.positions, self.channels)


class StateLayout:
    """Allocates the slots of a state row while the decoder is constructed, layer after layer."""

    def __init__(self) -> None:
        self.width = 0
        self.rate = 1
        """Positions of a frame at the current layer."""
        self.history = Fraction()
        """Frames before the current one on which the outputs of all layers so far depend."""

    def reserve(self, positions: int, channels: int) -> Slot:
        """Allocates the next `positions` * `channels` elements of the row."""
        slot = Slot(self.width, positions, channels)
        self.width += positions * channels
        self.history += Fraction(positions, self.rate)
        return slot


@dataclass(frozen=True)
class DecoderState:
    """The states of several requests, one per row. All zeros is a new request."""

    data: Tensor
    """[rows, width] in the decoder's dtype: the slots of all layers."""
    position: Tensor
    """[rows] int64: frames decoded so far."""

    @property
    def rows(self) -> int:
        return self.data.shape[0]

    def gather(self, slots: Tensor) -> DecoderState:
        return DecoderState(self.data.index_select(0, slots), self.position.index_select(0, slots))

    def scatter_(self, slots: Tensor, other: DecoderState) -> None:
        """Writes the B rows of `other` to the rows `slots` [B] int64.

        If a slot occurs several times (a scratch slot for padding), any one of its rows is kept.
        """
        self.data.index_copy_(0, slots, other.data)
        self.position.index_copy_(0, slots, other.position)

    def reset_(self, slots: Tensor) -> None:
        self.data.index_fill_(0, slots, 0)
        self.position.index_fill_(0, slots, 0)


class Carry:
    """Carries the state through one call of the decoder.

    A causal layer opens a buffer that starts with its past inputs, appends this call's inputs, computes, and closes the
    buffer: the last inputs of each row's valid frames become its past inputs for the next call.
    """

    def __init__(self, old: DecoderState, lengths: Tensor, frames: int) -> None:
        """`lengths` [B], on the state's device: valid frames of each row; `frames`: the call's, with padding."""
        self.position = old.position
        self._old = old.data
        self._new = torch.empty_like(old.data)
        self._lengths = lengths
        self._frames = frames
        # Reading lengths from an accelerator would synchronize; there the past inputs are always gathered by index.
        self._full = lengths.device.type == "cpu" and bool((lengths == frames).all())
        self._rows = torch.arange(lengths.shape[0], device=lengths.device)

    def open(self, slot: Slot, positions: int) -> Tensor:
        """Returns [B, slot.positions + positions, channels]: the past inputs, and memory for `positions` new ones."""
        buffer = self._old.new_empty(self._old.shape[0], slot.positions + positions, slot.channels)
        buffer[:, : slot.positions] = slot.view(self._old)
        return buffer

    def close(self, slot: Slot, buffer: Tensor) -> None:
        """Saves the last `slot.positions` inputs of each row's valid frames."""
        new = slot.view(self._new)
        if self._full:
            new.copy_(buffer[:, -slot.positions :])
            return
        rate = (buffer.shape[1] - slot.positions) // self._frames
        first = self._rows * buffer.shape[1] + self._lengths * rate
        index = first[:, None] + torch.arange(slot.positions, device=first.device)
        new.copy_(buffer.flatten(0, 1).index_select(0, index.flatten()).view(new.shape))

    def state(self) -> DecoderState:
        """Returns the state after the call; every layer must have closed its buffer."""
        return DecoderState(self._new, self.position + self._lengths)
