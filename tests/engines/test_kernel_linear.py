"""The Triton linear kernel in the interpreter, compared with PyTorch."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import pytest
import torch
from support.products import FUSIONS, Case, Product

from syrinx_stages.kernels.linear import DirectTile, MatrixTile, Tile, linear
from syrinx_stages.kernels.split_k import SplitKWorkspace

OUTER, INNER = 32, 64
ROWS = 19
"""One block of 16, and a part of another."""

TILES = {
    "whole": MatrixTile(16, 16, 16, 2),
    "split-K 2": MatrixTile(16, 16, 16, 2, split_k=2),
    "split-K 4": MatrixTile(16, 16, 16, 1, split_k=4),
    "swapped": MatrixTile(16, 16, 16, 2, swap=True),
    "swapped, split-K 2": MatrixTile(16, 16, 16, 2, split_k=2, swap=True),
    "more rows than the matrix": MatrixTile(64, 32, 32, 2, split_k=2),
}


@pytest.mark.parametrize("fusion", FUSIONS.values(), ids=FUSIONS)
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_product_with_each_fusion(tile: Tile, fusion: dict[str, int]) -> None:
    product = Product(Case(tile=tile, rows=ROWS, outer=OUTER, inner=INNER, **fusion))
    product.run()
    product.check(1e-5)


@pytest.mark.parametrize("tile", [TILES["split-K 2"], TILES["swapped, split-K 2"]])
def test_one_row_of_a_matrix_whose_sizes_are_not_powers_of_two(tile: Tile) -> None:
    product = Product(Case(tile=tile, rows=1, outer=80, inner=96, parts=5, gated=True))
    product.run()
    product.check(1e-5)


def test_split_k_gives_the_same_bits_every_time() -> None:
    product = Product(Case(tile=TILES["split-K 4"], rows=ROWS, outer=OUTER, inner=INNER))
    product.run()
    first = product.out.clone()
    product.run()
    torch.testing.assert_close(product.out, first, rtol=0, atol=0, equal_nan=True)
    product.check(1e-5)


@pytest.mark.parametrize(
    "tile",
    [MatrixTile(16, 64, 16, 1), MatrixTile(16, 16, 128, 1), MatrixTile(16, 16, 16, 1, split_k=8)],
    ids=["columns", "inner elements", "split-K"],
)
def test_rejects_a_tile_that_does_not_divide_the_matrix(tile: Tile) -> None:
    x, weight, out = torch.zeros(1, INNER), torch.zeros(OUTER, INNER), torch.zeros(1, OUTER)
    with pytest.raises(ValueError, match=f"does not divide a matrix of {OUTER} x {INNER}"):
        linear(x, weight, out, tile, rows=1)


@pytest.mark.parametrize("size", [None, (2 * 32 * OUTER - 1, 99), (2 * 32 * OUTER, 3)])
def test_rejects_a_small_workspace(size: tuple[int, int] | None) -> None:
    x, weight, out = torch.zeros(ROWS, INNER), torch.zeros(OUTER, INNER), torch.zeros(ROWS, OUTER)
    workspace = SplitKWorkspace(torch.zeros(size[0]), torch.zeros(size[1], dtype=torch.int32)) if size else None
    with pytest.raises(ValueError, match=f"needs {2 * 32 * OUTER} partial sums and 4 counters"):
        linear(x, weight, out, TILES["split-K 2"], rows=ROWS, workspace=workspace)


@pytest.mark.parametrize(
    ("rows", "outer", "inner", "dtype", "message"),
    [
        (2, 64, 320, torch.bfloat16, "does not divide"),
        (2, 40, 512, torch.bfloat16, "does not divide"),
        (65, 16, 256, torch.bfloat16, "up to 64 rows"),
        (2, 16, 256, torch.float32, "16-bit type"),
    ],
)
def test_a_direct_tile_rejects_a_product(rows: int, outer: int, inner: int, dtype: torch.dtype, message: str) -> None:
    x, weight, out = (torch.zeros(shape, dtype=dtype) for shape in ((rows, inner), (outer, inner), (rows, outer)))
    with pytest.raises(ValueError, match=message):
        linear(x, weight, out, DirectTile(16, 64, 4), rows=rows)
