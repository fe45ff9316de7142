"""How the talker's products are cut, by their shape and the number of rows.

The official checkpoints' shapes are in a table that was measured on an H200 (`python -m gpu.tiles` in `bench/`); any
other shape follows a rule.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from syrinx_stages.kernels.linear import Direct, Matrix, Tile

PROGRAMS = 128
"""About one for each multiprocessor: with fewer, several share a sum."""
MOST_SHARES = 8

_HEIGHTS = (1, 8, 16, 32, 64, 128)
_MEASURED: dict[tuple[int, int, bool], tuple[Tile, ...]] = {
    # (outer, inner, gated): for up to so many rows.
    (1024, 2048, False): (
        Direct(columns=16, inner=32, warps=4, shares=1, ahead=16),
        Direct(columns=16, inner=64, warps=8, shares=1, ahead=16),
        Direct(columns=32, inner=64, warps=8, shares=2, ahead=16),
        Direct(columns=16, inner=32, warps=8, shares=1, ahead=16),
        Matrix(rows=64, columns=32, inner=128, stages=4, warps=4, shares=4, swap=False),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=2, swap=False),
    ),
    (1024, 3072, False): (
        Direct(columns=16, inner=128, warps=8, shares=1, ahead=16),
        Direct(columns=16, inner=128, warps=8, shares=1, ahead=16),
        Direct(columns=32, inner=64, warps=8, shares=3, ahead=16),
        Direct(columns=16, inner=64, warps=8, shares=1, ahead=16),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=4, swap=False),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=2, swap=False),
    ),
    (4096, 1024, False): (
        Direct(columns=16, inner=128, warps=4, shares=1, ahead=16),
        Direct(columns=32, inner=64, warps=4, shares=1, ahead=16),
        Direct(columns=16, inner=128, warps=8, shares=1, ahead=16),
        Direct(columns=64, inner=32, warps=8, shares=1, ahead=16),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=1, swap=False),
        Matrix(rows=64, columns=64, inner=128, stages=4, warps=4, shares=1, swap=True),
    ),
    (3072, 1024, True): (
        Direct(columns=16, inner=32, warps=4, shares=1, ahead=16),
        Direct(columns=16, inner=32, warps=4, shares=1, ahead=16),
        Direct(columns=16, inner=128, warps=4, shares=1, ahead=16),
        Direct(columns=32, inner=32, warps=8, shares=1, ahead=16),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=1, swap=False),
        Matrix(rows=64, columns=64, inner=128, stages=4, warps=4, shares=1, swap=False),
    ),
    (2048, 1024, False): (
        Direct(columns=16, inner=64, warps=4, shares=1, ahead=16),
        Direct(columns=32, inner=128, warps=4, shares=1, ahead=16),
        Direct(columns=32, inner=128, warps=8, shares=1, ahead=16),
        Direct(columns=16, inner=64, warps=8, shares=2, ahead=16),
        Matrix(rows=64, columns=16, inner=128, stages=6, warps=4, shares=1, swap=False),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=1, swap=False),
    ),
    (2048, 2048, False): (
        Direct(columns=16, inner=128, warps=8, shares=1, ahead=16),
        Direct(columns=16, inner=64, warps=8, shares=1, ahead=2),
        Matrix(rows=16, columns=64, inner=128, stages=6, warps=4, shares=2, swap=True),
        Matrix(rows=32, columns=64, inner=128, stages=6, warps=4, shares=2, swap=True),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=1, swap=False),
        Matrix(rows=64, columns=32, inner=256, stages=4, warps=4, shares=1, swap=False),
    ),
    (2048, 6144, False): (
        Direct(columns=16, inner=128, warps=8, shares=1, ahead=2),
        Direct(columns=16, inner=128, warps=4, shares=1, ahead=2),
        Matrix(rows=16, columns=64, inner=128, stages=4, warps=4, shares=4, swap=True),
        Matrix(rows=32, columns=64, inner=256, stages=4, warps=4, shares=3, swap=True),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=2, swap=False),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=1, swap=False),
    ),
    (4096, 2048, False): (
        Direct(columns=32, inner=128, warps=8, shares=1, ahead=16),
        Direct(columns=16, inner=128, warps=8, shares=1, ahead=16),
        Matrix(rows=16, columns=64, inner=128, stages=6, warps=4, shares=1, swap=True),
        Matrix(rows=32, columns=64, inner=128, stages=6, warps=4, shares=1, swap=True),
        Matrix(rows=64, columns=32, inner=128, stages=6, warps=4, shares=1, swap=False),
        Matrix(rows=64, columns=64, inner=128, stages=4, warps=4, shares=1, swap=True),
    ),
    (6144, 2048, True): (
        Direct(columns=16, inner=128, warps=4, shares=1, ahead=2),
        Direct(columns=32, inner=64, warps=4, shares=1, ahead=2),
        Matrix(rows=16, columns=64, inner=128, stages=4, warps=4, shares=1, swap=True),
        Matrix(rows=32, columns=64, inner=128, stages=4, warps=4, shares=1, swap=True),
        Matrix(rows=64, columns=64, inner=128, stages=4, warps=4, shares=1, swap=True),
        Matrix(rows=64, columns=64, inner=128, stages=4, warps=4, shares=1, swap=False),
    ),
}


class TileOf(Protocol):
    """`tile_of`, or another choice."""

    def __call__(self, rows: int, weight: Tensor, /, *, gated: bool = False, residual: bool = False) -> Tile:
        """The tile for a product."""


def tile_of(rows: int, weight: Tensor, *, gated: bool = False, residual: bool = False) -> Tile:
    """The tile for a product of `rows` rows with a matrix [outer, inner] (gated: two of them, one below the other).

    All products of one width whose result is added to a residual have as many columns. Raises ValueError if the
    matrix has no multiple of 16 in each direction.
    """
    outer, inner = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    if outer % 16 or inner % 16:
        raise ValueError(f"a matrix of {outer} x {inner} is not made of blocks of 16 x 16")
    measured = _MEASURED.get((outer, inner, gated))
    if measured and rows <= _HEIGHTS[-1] and weight.element_size() == 2:
        return next(tile for height, tile in zip(_HEIGHTS, measured, strict=True) if rows <= height)
    depth = _divisor(inner, (64 if rows > 256 else 128) * 2 // weight.element_size())
    if rows > 256 or gated:
        return Matrix(64, _divisor(outer, 128 if rows > 256 else 32), depth, stages=4)
    columns = _divisor(outer, 32)
    shares = 1
    if residual:
        while shares < MOST_SHARES and shares * (outer // columns) < PROGRAMS and inner % (2 * shares * depth) == 0:
            shares *= 2
    return Matrix(64, columns, depth, stages=6, shares=shares)


def _divisor(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`."""
    return min(size & -size, most)
