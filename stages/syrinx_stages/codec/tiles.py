"""How the codec's products are cut into blocks, by their size: the quickest of what was measured on an H200."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """A block of `rows` x `columns`, `inner` elements at a time; `splits` blocks share a sum."""

    rows: int
    columns: int
    inner: int
    splits: int = 1
    warps: int = 4
    stages: int = 4


FILL = 132
"""Multiprocessors of an H100 or H200: fewer blocks leave some idle."""


def product_tile(count: int, inner: int, outer: int, taps: int, *, gated: bool, splittable: bool) -> Tile:
    """For `count` rows of taps x inner elements each, and `outer` columns (gated: twice as many)."""
    if count <= 32:
        tile = _few_rows(16 if count <= 16 else 32, inner, outer, taps, gated)
    else:
        tile = _many_rows(count, inner, outer, taps)
    if splittable:
        return tile
    return Tile(tile.rows, tile.columns, tile.inner, 1, tile.warps, tile.stages)


def _few_rows(rows: int, inner: int, outer: int, taps: int, gated: bool) -> Tile:
    """What takes time is to read the weights: each block reads all of its own at once, if they fit."""
    whole = taps * inner
    deep = _divisor(inner, 512)
    if deep < 512 or outer >= 8192:
        inner = _divisor(inner, 128)
        columns = min(_width(outer), 64 if outer >= 4096 else 32)
        return Tile(rows, columns, inner, _splits(whole // inner, _blocks(rows, rows, outer, columns), 16))
    if taps == 1 and inner == 1024 and outer <= 2048:
        return Tile(rows, 16, inner)
    columns = 16 if gated and rows == 32 else 32
    return Tile(rows, columns, deep, _splits(whole // deep, _blocks(rows, rows, outer, columns), 16), stages=3)


def _many_rows(count: int, inner: int, outer: int, taps: int) -> Tile:
    """What takes time is to multiply: large blocks, as long as there are enough of them."""
    deep = _divisor(inner, 64)
    steps = taps * inner // deep
    blocks = _blocks(count, 64, outer, 64)
    width = _width(outer)
    if steps <= 16:
        if blocks < FILL // 2:
            return Tile(64, min(width, 32), deep)
        if blocks >= 7 * FILL and outer >= 768:
            return Tile(128, 128, deep, warps=8, stages=3)
        if blocks >= 3 * FILL:
            return Tile(128, min(width, 64), deep, stages=3)
        return Tile(64, min(width, 64), deep)
    if blocks <= FILL // 2:
        return Tile(64, min(width, 64), deep, _splits(steps, blocks, 4))
    if outer > 128 and outer % 128:
        return Tile(256, 64, deep, warps=8, stages=3) if blocks >= 3 * FILL else Tile(128, 64, deep, stages=3)
    if blocks < 3 * FILL and steps >= 48:
        return Tile(128, min(width, 64), deep, _splits(steps, blocks // 2, 2), warps=8)
    if blocks < 5 * FILL:
        return Tile(64, min(width, 128), deep, stages=4 if count > 4096 else 3)
    if steps >= 48 and outer % 256 == 0 and outer < 4096:
        return Tile(128, 256, deep, warps=8, stages=3)
    if outer >= 4096:
        return Tile(128, 64, deep, stages=3)
    return Tile(128, min(width, 128), deep, stages=3)


def unit_tile(count: int, channels: int) -> Tile | None:
    """For a whole residual unit in one kernel; None where its two products are better apart."""
    if channels > 192:
        return None
    inner = _divisor(channels, 64)
    if channels > 128 and count <= 32768:
        return None
    if inner == 64:
        return Tile(64, channels, inner, stages=3)
    return Tile(64 if count <= 16384 else 128, channels, inner)


def _divisor(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`."""
    return min(size & -size, most)


def _width(outer: int) -> int:
    """The least power of two that holds `outer` columns."""
    return max(16, 1 << (outer - 1).bit_length())


def _blocks(count: int, rows: int, outer: int, columns: int) -> int:
    return -(-count // rows) * -(-outer // columns)


def _splits(steps: int, blocks: int, most: int) -> int:
    """Parts of a sum: enough for all multiprocessors twice, at least one step each."""
    return max(n for n in range(1, most + 1) if steps % n == 0 and (n == 1 or blocks * n <= 2 * FILL))
