"""How the codec's products are cut into blocks: a fixed choice by size, from what was measured (bench/gpu/codec.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """A block of `rows` x `columns`, `inner` elements at a time; `splits` blocks share a sum.

    prefetch: weights are brought to the L2 cache before what is multiplied with them is there.
    """

    rows: int
    columns: int
    inner: int
    splits: int = 1
    warps: int = 4
    stages: int = 4
    prefetch: bool = False


FILL = 132
"""Multiprocessors of an H100 or H200: fewer blocks leave some idle."""


def product_tile(count: int, inner: int, outer: int, taps: int, splittable: bool) -> Tile:
    """For `count` rows of taps x inner elements each, and `outer` columns."""
    step = next(size for size in (64, 32, 16) if inner % size == 0)
    if count <= 16:
        rows, columns = 16, 32 if outer < 4096 else 64
        step = next(size for size in (128, 64, 32, 16) if inner % size == 0)
    elif count <= 32:
        rows, columns = 32, 32 if outer < 4096 else 64
    elif count <= 1024:
        rows, columns = 64, 64
    else:
        rows, columns = 128, 128 if outer % 128 == 0 else 64
    columns = min(columns, max(16, 1 << (outer - 1).bit_length()))
    blocks = -(-count // rows) * -(-outer // columns)
    steps = taps * inner // step
    fits = [n for n in range(1, 17) if steps % n == 0 and steps // n >= 4 and blocks * n <= FILL * 2]
    splits = max(fits, default=1) if splittable else 1
    return Tile(rows, columns, step, splits, warps=8 if rows * columns >= 128 * 128 else 4)


def unit_tile(count: int, channels: int) -> Tile | None:
    """For a whole residual unit in one kernel; None where its two products are better apart."""
    step = next(size for size in (64, 32, 16) if channels % size == 0)
    if channels > 192:
        return None
    rows = 16 if count <= 16 else 32 if count <= 2048 else 64 if count <= 16384 else 128
    return Tile(rows, channels, step, warps=8 if rows >= 128 else 4, stages=4)
