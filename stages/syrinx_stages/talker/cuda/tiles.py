"""Chooses the block sizes of the talker's matrix products by GPU architecture, shape and number of rows.

The official checkpoints' shapes are in a table per architecture, measured with `python -m gpu.tiles` in `bench/`. Only
sm_90 (on an H200) has been measured; other architectures start from the same table. Other shapes follow a rule. A tile
that needs more shared memory than the GPU has is reduced until it fits.
"""

from dataclasses import replace

from torch import Tensor

from syrinx_stages.kernels.gpu import Gpu, gpu_of, power_of_two_divisor
from syrinx_stages.kernels.linear import DirectTile, MatrixTile, Tile

MIN_PROGRAMS = 128
"""About one per multiprocessor: products with fewer blocks use split-K."""
MAX_SPLIT_K = 8
MIN_STAGES = 3
"""With fewer stages, loads hardly overlap with products."""

TileTable = dict[tuple[int, int, bool], tuple[Tile, ...]]
"""By (columns, inner, gated): the tiles for up to each of `TABLE_ROWS` rows."""
TABLE_ROWS = (1, 8, 16, 32, 64, 128)

SM_90: TileTable = {
    (1024, 2048, False): (
        DirectTile(16, 32, 4), DirectTile(16, 64, 8), DirectTile(32, 64, 8, 2),
        DirectTile(16, 32, 8), MatrixTile(64, 32, 128, 4, split_k=4), MatrixTile(64, 32, 128, 6, split_k=2),
    ),
    (1024, 3072, False): (
        DirectTile(16, 128, 8), DirectTile(16, 128, 8), DirectTile(32, 64, 8, 3),
        DirectTile(16, 64, 8), MatrixTile(64, 32, 128, 6, split_k=4), MatrixTile(64, 32, 128, 6, split_k=2),
    ),
    (4096, 1024, False): (
        DirectTile(16, 128, 4), DirectTile(32, 64, 4), DirectTile(16, 128, 8),
        DirectTile(64, 32, 8), MatrixTile(64, 32, 128, 6), MatrixTile(64, 64, 128, 4, swap=True),
    ),
    (3072, 1024, True): (
        DirectTile(16, 32, 4), DirectTile(16, 32, 4), DirectTile(16, 128, 4),
        DirectTile(32, 32, 8), MatrixTile(64, 32, 128, 6), MatrixTile(64, 64, 128, 4),
    ),
    (2048, 1024, False): (
        DirectTile(16, 64, 4), DirectTile(32, 128, 4), DirectTile(32, 128, 8),
        DirectTile(16, 64, 8, 2), MatrixTile(64, 16, 128, 6), MatrixTile(64, 32, 128, 6),
    ),
    (2048, 2048, False): (
        DirectTile(16, 128, 8), DirectTile(16, 64, 8, 1, 2), MatrixTile(16, 64, 128, 6, split_k=2, swap=True),
        MatrixTile(32, 64, 128, 6, split_k=2, swap=True), MatrixTile(64, 32, 128, 6), MatrixTile(64, 32, 256, 4),
    ),
    (2048, 6144, False): (
        DirectTile(16, 128, 8, 1, 2), DirectTile(16, 128, 4, 1, 2), MatrixTile(16, 64, 128, 4, split_k=4, swap=True),
        MatrixTile(32, 64, 256, 4, split_k=3, swap=True), MatrixTile(64, 32, 128, 6, split_k=2),
        MatrixTile(64, 32, 128, 6),
    ),
    (4096, 2048, False): (
        DirectTile(32, 128, 8), DirectTile(16, 128, 8), MatrixTile(16, 64, 128, 6, swap=True),
        MatrixTile(32, 64, 128, 6, swap=True), MatrixTile(64, 32, 128, 6), MatrixTile(64, 64, 128, 4, swap=True),
    ),
    (6144, 2048, True): (
        DirectTile(16, 128, 4, 1, 2), DirectTile(32, 64, 4, 1, 2), MatrixTile(16, 64, 128, 4, swap=True),
        MatrixTile(32, 64, 128, 4, swap=True), MatrixTile(64, 64, 128, 4, swap=True), MatrixTile(64, 64, 128, 4),
    ),
}  # fmt: skip

TABLES: dict[tuple[int, int], TileTable] = {(9, 0): SM_90}


def choose_tile(
    rows: int, weight: Tensor, *, gated: bool = False, residual: bool = False, gpu: Gpu | None = None
) -> Tile:
    """Returns the tile for a product of `rows` rows with `weight` [columns, inner], or [2 * columns, inner] if gated.

    All products of one width that are added to a residual get the same number of columns. `gpu` defaults to the
    weight's device.

    Raises:
        ValueError: the matrix does not consist of blocks of 16 x 16.
    """
    columns, inner = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    if columns % 16 or inner % 16:
        raise ValueError(f"a matrix of {columns} x {inner} is not made of blocks of 16 x 16")
    gpu = gpu or gpu_of(weight.device)
    element_size = weight.element_size()
    measured = TABLES.get(gpu.capability, SM_90).get((columns, inner, gated))
    if measured and rows <= TABLE_ROWS[-1] and element_size == 2:
        tile = next(tile for limit, tile in zip(TABLE_ROWS, measured, strict=True) if rows <= limit)
    else:
        tile = _tile_by_rule(rows, columns, inner, element_size, gated=gated, residual=residual)
    return fit(tile, rows, gated, element_size, gpu)


def fit(tile: Tile, rows: int, gated: bool, element_size: int, gpu: Gpu) -> Tile:
    """Returns the tile with stages, inner elements and rows reduced to the GPU's shared memory.

    The number of columns stays the same. Raises ValueError if the tile still does not fit.
    """
    if isinstance(tile, DirectTile):
        if tile.shared_memory(rows) > gpu.shared_memory:
            raise ValueError(f"{tile} does not fit {gpu.shared_memory} bytes of shared memory")
        return tile
    while tile.shared_memory(gated, element_size, gpu.capability) > gpu.shared_memory:
        if tile.num_stages > MIN_STAGES:
            tile = replace(tile, num_stages=tile.num_stages - 1)
        elif tile.inner > 32:
            tile = replace(tile, inner=tile.inner // 2)
        elif tile.num_stages > 2:
            tile = replace(tile, num_stages=2)
        elif tile.rows > 16:
            tile = replace(tile, rows=tile.rows // 2)
        else:
            raise ValueError(f"{tile} does not fit {gpu.shared_memory} bytes of shared memory")
    return tile


def _tile_by_rule(rows: int, columns: int, inner: int, element_size: int, *, gated: bool, residual: bool) -> MatrixTile:
    # With more rows than in the table arithmetic dominates: wider blocks read the rows less often.
    depth = power_of_two_divisor(inner, (64 if rows > TABLE_ROWS[-1] else 128) * 2 // element_size)
    if rows > TABLE_ROWS[-1] or gated:
        width = 128 if rows > 256 else 64 if rows > TABLE_ROWS[-1] else 32
        return MatrixTile(64, power_of_two_divisor(columns, width), depth, num_stages=4)
    block = power_of_two_divisor(columns, 32)
    split_k = 1
    if residual:
        while (
            split_k < MAX_SPLIT_K and split_k * (columns // block) < MIN_PROGRAMS and inner % (2 * split_k * depth) == 0
        ):
            split_k *= 2
    return MatrixTile(64, block, depth, num_stages=6, split_k=split_k)
