"""Attention over a paged cache in plain torch, row by row, beside `kernels.attention` in memory that is poisoned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from syrinx_stages.model.layers import cos_sin_table

if TYPE_CHECKING:
    # On a machine without a GPU whoever imports the kernels first decides that they are interpreted.
    from syrinx_stages.kernels.attention import Heads

EPS = 1e-6
POSITIONS = 128
UNTOUCHED = 7.0
"""What outputs hold that nobody may write."""


class Attention:
    """A layer's heads, a cache of which no number is written, and rows with pages of it."""

    def __init__(
        self,
        *,
        kv: int,
        group: int,
        size: int,
        page: int,
        pages: Sequence[Sequence[int]],
        device: str = "cpu",
        kind: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        """pages: of each row, in order; all zeros is a padded row."""
        self.kv, self.group, self.size, self.page = kv, group, size, page
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device, self._kind, self._pages = device, kind, pages
        self.norms = (1 + 0.1 * self._drawn(2, size)).to(kind)
        with torch.device(device):
            self._cosines, self._sines = cos_sin_table(size, 10_000.0, POSITIONS)
        count = 2 + max(max(row) for row in pages)
        self.cache = torch.full((count, 2, kv, page, size), torch.nan, dtype=kind, device=device)
        self.table = torch.tensor(pages, dtype=torch.int32, device=device)

    @property
    def heads(self) -> Heads:
        """What the kernels are told."""
        from syrinx_stages.kernels.attention import Heads

        return Heads(
            kv=self.kv, group=self.group, size=self.size, norms=self.norms, cosines=self._cosines, sines=self._sines,
            eps=EPS,
        )  # fmt: skip

    @property
    def width(self) -> int:
        """Of queries, keys and values together."""
        return self.kv * (self.group + 2) * self.size

    def inputs(self, rows: int) -> Tensor:
        """Random queries, keys and values [rows, width]."""
        return self._drawn(rows, self.width).to(self._kind)

    def outputs(self, rows: int) -> Tensor:
        """Where results go."""
        shape = rows, self.group * self.kv * self.size
        return torch.full(shape, UNTOUCHED, dtype=self._kind, device=self._device)

    def fill(self, row: int, positions: int) -> None:
        """Random keys and values at a row's first positions."""
        for position in range(positions):
            self._slot(row, position)[:] = self._drawn(2, self.kv, self.size)

    def attended(self, row: int, position: int, inputs: Tensor) -> Tensor:
        """What is heard at a position [group kv size], once the cache has it; `inputs`: [width]."""
        queries = self._turned(self._split(inputs)[0], self.norms[0], position)
        kept = torch.stack([self._slot(row, past).float() for past in range(position + 1)], 2)
        keys, values = (part.repeat_interleave(self.group, 0) for part in kept)
        shares = (torch.einsum("hs,hps->hp", queries, keys) * self.size**-0.5).softmax(-1)
        return torch.einsum("hp,hps->hs", shares, values).flatten()

    def written(self, inputs: Tensor, position: int) -> Tensor:
        """The cache's key and value [2, kv, size] of inputs [width]."""
        _, keys, values = self._split(inputs)
        return torch.stack((self._turned(keys, self.norms[1], position), values)).to(self._kind)

    def place(self, cache: Tensor, row: int, position: int) -> Tensor:
        """Of a cache, a row's keys and values at a position: [2, kv, size]."""
        return cache[self._pages[row][position // self.page], :, :, position % self.page]

    def _slot(self, row: int, position: int) -> Tensor:
        return self.place(self.cache, row, position)

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = inputs.float().view(-1, self.size)
        return tuple(torch.split(heads, [self.kv * self.group, self.kv, self.kv]))

    def _turned(self, heads: Tensor, weight: Tensor, position: int) -> Tensor:
        """Normalised and rotated by halves."""
        normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + EPS) * weight.float()
        first, second = normed.chunk(2, -1)
        cosine, sine = self._cosines[position], self._sines[position]
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)

    def _drawn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)


def check_step(case: Attention, positions: Sequence[int | None], close: float, *, small: bool = False) -> None:
    """One new position of each row, None for a padded one: as in plain torch, and nothing else in the cache changes."""
    from syrinx_stages.kernels.attention import step

    rows = len(positions)
    for row, position in enumerate(positions):
        case.fill(row, position or 0)
    inputs, out = case.inputs(rows), case.outputs(rows)
    table = torch.tensor([[0, position or 0, 9] for position in positions], dtype=torch.int32, device=inputs.device)
    wanted = case.cache.clone()
    for row, position in enumerate(positions):
        if position is not None:
            case.place(wanted, row, position)[:] = case.written(inputs[row], position)
    step(case.heads, inputs, case.cache, case.table, table[:, 1:], out, rows, small=small)
    _check_cache(case, wanted, close)
    for row, position in enumerate(positions):
        if position is not None:
            heard = case.attended(row, position, inputs[row])
            torch.testing.assert_close(out[row].float(), heard, atol=close, rtol=close)


def check_pair(case: Attention, rows: int, close: float) -> None:
    """The first two positions of each row at once."""
    from syrinx_stages.kernels.attention import step

    inputs, out = case.inputs(2 * rows), case.outputs(2 * rows)
    wanted = case.cache.clone()
    for row in range(rows):
        for position in (0, 1):
            case.place(wanted, row, position)[:] = case.written(inputs[row + position * rows], position)
    step(case.heads, inputs, case.cache, case.table, None, out, 2 * rows, small=True)
    _check_cache(case, wanted, close)
    for row in range(rows):
        for position in (0, 1):
            heard = case.attended(row, position, inputs[row + position * rows])
            torch.testing.assert_close(out[row + position * rows].float(), heard, atol=close, rtol=close)


def check_prompt(case: Attention, spans: Sequence[tuple[int, int]], length: int, close: float) -> None:
    """Of each row `(first, count)` new positions in `length` places: as in plain torch; padding leaves nothing."""
    from syrinx_stages.kernels.attention import prompt

    rows = len(spans)
    for row, (first, _) in enumerate(spans):
        case.fill(row, first)
    inputs, out = case.inputs(rows * length).view(rows, length, -1), case.outputs(rows * length).view(rows, length, -1)
    table = torch.tensor([[5, *span, 9] for span in spans], dtype=torch.int32, device=inputs.device)
    wanted = case.cache.clone()
    for row, (first, count) in enumerate(spans):
        inputs[row, count:] = torch.nan
        for step in range(count):
            case.place(wanted, row, first + step)[:] = case.written(inputs[row, step], first + step)
    queries = torch.full_like(out, torch.nan)
    prompt(
        case.heads, inputs.flatten(0, 1), case.cache, case.table, table[:, 1:], queries.flatten(0, 1),
        out.flatten(0, 1), length,
    )  # fmt: skip
    _check_cache(case, wanted, close)
    for row, (first, count) in enumerate(spans):
        for step in range(count):
            heard = case.attended(row, first + step, inputs[row, step])
            torch.testing.assert_close(out[row, step].float(), heard, atol=close, rtol=close)
        assert (out[row, count:] == UNTOUCHED).all()


def _check_cache(case: Attention, wanted: Tensor, close: float) -> None:
    """Page 0 is scratch."""
    torch.testing.assert_close(case.cache[1:], wanted[1:], atol=close, rtol=close, equal_nan=True)
