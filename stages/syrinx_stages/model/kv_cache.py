"""The KV cache of one request on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST_CAPACITY = 128
"""Positions of a new cache: enough for a short prompt and the first seconds of speech."""


class KVCache:
    """Keys and values of every layer: [layers, 2, 1, kv_heads, capacity, head_size], grown by doubling."""

    def __init__(
        self, layers: int, kv_heads: int, head_size: int, *, limit: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.length = 0
        """Positions filled so far."""
        self.limit = limit
        """Maximum number of positions of the model."""
        shape = (layers, 2, 1, kv_heads, min(_FIRST_CAPACITY, limit), head_size)
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self._layers = self._data.unbind()

    @property
    def capacity(self) -> int:
        return self._data.shape[4]

    def check_limit(self, count: int) -> None:
        """Raises ValueError if `count` more positions exceed the model's limit."""
        if self.length + count > self.limit:
            raise ValueError(f"{self.length + count} positions are more than the model's {self.limit}")

    def extend(self, count: int) -> None:
        """Adds `count` positions, which the caller writes next. Raises ValueError beyond the model's limit."""
        self.check_limit(count)
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
        """Stores keys and values `heads` [2 * kv_heads, end - start, head_size] at positions start to end.

        Returns the keys and the values up to `end`, each [1, kv_heads, end, head_size].
        """
        stored = self._layers[layer]
        stored[:, 0, :, start:end] = heads.view(2, -1, *heads.shape[1:])
        keys, values = stored[..., :end, :].unbind()
        return keys, values
