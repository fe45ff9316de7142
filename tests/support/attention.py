"""Compares `kernels.attention` with attention in plain PyTorch, row by row; unwritten cache entries are NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from syrinx_stages.model.layers import cos_sin_table

if TYPE_CHECKING:
    # Imported late: the first import of the kernels decides whether they are interpreted.
    from syrinx_stages.kernels.attention import AttentionParams

EPS = 1e-6
POSITIONS = 128
UNWRITTEN = 7.0
"""Initial value of outputs."""


class AttentionCase:
    """A layer's parameters, an empty cache, and rows with pages of it."""

    def __init__(
        self,
        *,
        num_kv_heads: int,
        group_size: int,
        head_size: int,
        page_size: int,
        pages: Sequence[Sequence[int]],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        """pages: of each row, in order; all zeros is a padded row."""
        self.num_kv_heads, self.group_size = num_kv_heads, group_size
        self.head_size, self.page_size = head_size, page_size
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device, self._dtype, self._pages = device, dtype, pages
        self.norms = (1 + 0.1 * self._randn(2, head_size)).to(dtype)
        with torch.device(device):
            self._cosines, self._sines = cos_sin_table(head_size, 10_000.0, POSITIONS)
        count = 2 + max(max(row) for row in pages)
        self.cache = torch.full((count, 2, num_kv_heads, page_size, head_size), torch.nan, dtype=dtype, device=device)
        self.page_table = torch.tensor(pages, dtype=torch.int32, device=device)

    @property
    def params(self) -> AttentionParams:
        """The kernels' parameters."""
        from syrinx_stages.kernels.attention import AttentionParams

        return AttentionParams(
            num_kv_heads=self.num_kv_heads, group_size=self.group_size, head_size=self.head_size, norms=self.norms,
            cosines=self._cosines, sines=self._sines, eps=EPS,
        )  # fmt: skip

    def inputs(self, rows: int) -> Tensor:
        """Returns random queries, keys and values [rows, (group + 2) * KV heads * head size]."""
        return self._randn(rows, self.num_kv_heads * (self.group_size + 2) * self.head_size).to(self._dtype)

    def outputs(self, rows: int) -> Tensor:
        """Returns an output tensor [rows, group * KV heads * head size]."""
        shape = rows, self.group_size * self.num_kv_heads * self.head_size
        return torch.full(shape, UNWRITTEN, dtype=self._dtype, device=self._device)

    def fill(self, row: int, positions: int) -> None:
        """Writes random keys and values to a row's first positions."""
        for position in range(positions):
            self.entry(self.cache, row, position)[:] = self._randn(2, self.num_kv_heads, self.head_size)

    def expected(self, row: int, position: int, inputs: Tensor) -> Tensor:
        """Returns the output [group * KV heads * head size] at a position in the cache, for its inputs [width]."""
        queries = self._rotate(self._split(inputs)[0], self.norms[0], position)
        entries = [self.entry(self.cache, row, past).float() for past in range(position + 1)]
        keys, values = (part.repeat_interleave(self.group_size, 0) for part in torch.stack(entries, 2))
        weights = (torch.einsum("hs,hps->hp", queries, keys) * self.head_size**-0.5).softmax(-1)
        return torch.einsum("hp,hps->hs", weights, values).flatten()

    def key_value(self, inputs: Tensor, position: int) -> Tensor:
        """Returns the cache entry [2, KV heads, head size] of inputs [width]."""
        _, keys, values = self._split(inputs)
        return torch.stack((self._rotate(keys, self.norms[1], position), values)).to(self._dtype)

    def entry(self, cache: Tensor, row: int, position: int) -> Tensor:
        """Returns a row's entry [2, KV heads, head size] of a cache."""
        return cache[self._pages[row][position // self.page_size], :, :, position % self.page_size]

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = inputs.float().view(-1, self.head_size)
        return tuple(torch.split(heads, [self.num_kv_heads * self.group_size, self.num_kv_heads, self.num_kv_heads]))

    def _rotate(self, heads: Tensor, weight: Tensor, position: int) -> Tensor:
        """Returns normalized and rotated heads."""
        normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + EPS) * weight.float()
        first, second = normed.chunk(2, -1)
        cosine, sine = self._cosines[position], self._sines[position]
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)


def check_decode(
    case: AttentionCase, positions: Sequence[int | None], tolerance: float, *, one_page: bool = False
) -> None:
    """Checks one new position of each row, None for a padded one; nothing else in the cache may change."""
    from syrinx_stages.kernels.attention import decode_attention

    rows = len(positions)
    for row, position in enumerate(positions):
        case.fill(row, position or 0)
    inputs, out = case.inputs(rows), case.outputs(rows)
    metadata = torch.tensor([[0, position or 0, 9] for position in positions], dtype=torch.int32, device=inputs.device)
    cache = case.cache.clone()
    for row, position in enumerate(positions):
        if position is not None:
            case.entry(cache, row, position)[:] = case.key_value(inputs[row], position)
    decode_attention(case.params, inputs, case.cache, case.page_table, metadata[:, 1], out, rows, one_page=one_page)
    _check_cache(case, cache, tolerance)
    for row, position in enumerate(positions):
        if position is not None:
            expected = case.expected(row, position, inputs[row])
            torch.testing.assert_close(out[row].float(), expected, atol=tolerance, rtol=tolerance)


def check_pair(case: AttentionCase, rows: int, tolerance: float) -> None:
    """Checks the first two positions of each row, computed together."""
    from syrinx_stages.kernels.attention import decode_attention

    inputs, out = case.inputs(2 * rows), case.outputs(2 * rows)
    cache = case.cache.clone()
    for row in range(rows):
        for position in (0, 1):
            case.entry(cache, row, position)[:] = case.key_value(inputs[row + position * rows], position)
    decode_attention(case.params, inputs, case.cache, case.page_table, None, out, 2 * rows, one_page=True)
    _check_cache(case, cache, tolerance)
    for row in range(rows):
        for position in (0, 1):
            expected = case.expected(row, position, inputs[row + position * rows])
            torch.testing.assert_close(out[row + position * rows].float(), expected, atol=tolerance, rtol=tolerance)


def check_prefill(case: AttentionCase, spans: Sequence[tuple[int, int]], length: int, tolerance: float) -> None:
    """Checks `(first, count)` new positions of each row, padded to `length`; padding must not be written."""
    from syrinx_stages.kernels.attention import prefill_attention

    rows = len(spans)
    for row, (first, _) in enumerate(spans):
        case.fill(row, first)
    inputs, out = case.inputs(rows * length).view(rows, length, -1), case.outputs(rows * length).view(rows, length, -1)
    metadata = torch.tensor([[5, *span, 9] for span in spans], dtype=torch.int32, device=inputs.device)
    cache = case.cache.clone()
    for row, (first, count) in enumerate(spans):
        inputs[row, count:] = torch.nan
        for step in range(count):
            case.entry(cache, row, first + step)[:] = case.key_value(inputs[row, step], first + step)
    queries = torch.full_like(out, torch.nan)
    prefill_attention(
        case.params, inputs.flatten(0, 1), case.cache, case.page_table, metadata[:, 1], metadata[:, 2],
        queries.flatten(0, 1), out.flatten(0, 1), length,
    )  # fmt: skip
    _check_cache(case, cache, tolerance)
    for row, (first, count) in enumerate(spans):
        for step in range(count):
            expected = case.expected(row, first + step, inputs[row, step])
            torch.testing.assert_close(out[row, step].float(), expected, atol=tolerance, rtol=tolerance)
        assert (out[row, count:] == UNWRITTEN).all()


def _check_cache(case: AttentionCase, expected: Tensor, tolerance: float) -> None:
    """Compares all pages but page 0, which is scratch memory."""
    torch.testing.assert_close(case.cache[1:], expected[1:], atol=tolerance, rtol=tolerance, equal_nan=True)
