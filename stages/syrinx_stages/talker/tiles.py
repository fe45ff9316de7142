"""How the talker's products are cut, by their shape: measured on an H200 (`bench/results/tiles.md`)."""

from __future__ import annotations

from torch import Tensor

from syrinx_stages.kernels.linear import Matrix, Tile, Vector

PROGRAMS = 128
"""About one for each multiprocessor: fewer programs share their sums."""
MOST_SHARES = 8


def tile_of(rows: int, weight: Tensor, *, gated: bool = False, residual: bool = False) -> Tile:
    """The tile for a product of `rows` rows with a matrix [outer, inner] (gated: two of them, one below the other).

    All products of one width whose result is added to a residual have as many columns. Raises ValueError if the
    matrix has no multiple of 16 in each direction.
    """
    outer, inner = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    if outer % 16 or inner % 16:
        raise ValueError(f"a matrix of {outer} x {inner} is not made of blocks of 16 x 16")
    if rows == 1 or (rows == 2 and not gated):
        return Vector(4, 8 if inner > 2048 else 4)
    depth = _divisor(inner, (64 if rows > 256 else 128) * 2 // weight.element_size())
    if rows > 256:
        return Matrix(64, _divisor(outer, 128), depth, stages=4)
    if gated:
        return Matrix(64, _divisor(outer, 64 if outer > 4096 else 32), depth, stages=4)
    columns = _divisor(outer, 16 if not residual and outer // 32 < PROGRAMS // 2 else 32)
    shares = 1
    if residual:
        while shares < MOST_SHARES and shares * (outer // columns) < PROGRAMS and inner % (2 * shares * depth) == 0:
            shares *= 2
    return Matrix(64, columns, depth, stages=6, shares=shares)


def _divisor(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`."""
    return min(size & -size, most)
