"""Keys and values of one request."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST_CAPACITY = 128
"""Positions of a new cache: a short sentence's prompt and its first seconds."""


class KVCache:
    """Keys and values of every layer for one request, in memory that grows by doubling.

    Memory: [layers, 2, 1, kv_heads, capacity, head_size].
    """

    def __init__(
        self, layers: int, kv_heads: int, head_size: int, *, limit: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.length = 0
        """Positions filled so far."""
        self.limit = limit
        """Positions the model has."""
        shape = (layers, 2, 1, kv_heads, min(_FIRST_CAPACITY, limit), head_size)
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self._layers = self._data.unbind()

    @property
    def capacity(self) -> int:
        """Positions there is memory for."""
        return self._data.shape[4]

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._data.nbytes

    def check_room(self, count: int) -> None:
        """Raises ValueError if `count` more positions are more than the model has."""
        if self.length + count > self.limit:
            raise ValueError(f"{self.length + count} positions are more than the model's {self.limit}")

    def extend(self, count: int) -> None:
        """Makes room for `count` more positions, to be written next. Raises ValueError beyond the model's limit."""
        self.check_room(count)
        needed = self.length + count
        if needed > self.capacity:
            capacity = self.capacity
            while capacity < needed:
                capacity *= 2
            shape = list(self._data.shape)
            shape[4] = min(capacity, self.limit)
            grown = self._data.new_empty(shape)
            grown[..., : self.length, :] = self._data[..., : self.length, :]
            self._data, self._layers = grown, grown.unbind()
        self.length = needed

    def write(self, layer: int, heads: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Stores heads [2 * kv_heads, end - start, head_size] (keys, values) and returns all keys and values to `end`.

        Both results: [1, kv_heads, end, head_size].
        """
        stored = self._layers[layer]
        stored[:, 0, :, start:end] = heads.view(2, -1, *heads.shape[1:])
        keys, values = stored[..., :end, :].unbind()
        return keys, values
