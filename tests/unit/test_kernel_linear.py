"""Products of few rows in Triton's interpreter: as torch's, and nothing but the result is read or written."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import pytest
import torch
from support.products import SURROUNDINGS, Case, Product

from syrinx_stages.kernels.linear import Matrix, SplitKWorkspace, Tile, linear

OUTER, INNER = 32, 64
ROWS = 19
"""A block of 16, and a part of another."""

TILES = {
    "matrix": Matrix(16, 16, 16, 2),
    "two shares": Matrix(16, 16, 16, 2, shares=2),
    "four shares": Matrix(16, 16, 16, 1, shares=4),
    "swapped": Matrix(16, 16, 16, 2, swap=True),
    "swapped, two shares": Matrix(16, 16, 16, 2, shares=2, swap=True),
    "higher than the rows": Matrix(64, 32, 32, 2, shares=2),
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS.values(), ids=SURROUNDINGS)
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_a_product_and_what_surrounds_it(tile: Tile, surroundings: dict[str, int]) -> None:
    product = Product(Case(tile=tile, rows=ROWS, outer=OUTER, inner=INNER, **surroundings))
    product.run()
    product.check(1e-5)


@pytest.mark.parametrize("tile", [TILES["two shares"], TILES["swapped, two shares"]])
def test_one_row_of_a_matrix_that_is_no_power_of_two(tile: Tile) -> None:
    product = Product(Case(tile=tile, rows=1, outer=80, inner=96, parts=5, gated=True))
    product.run()
    product.check(1e-5)


def test_shares_are_summed_in_one_order_again_and_again() -> None:
    product = Product(Case(tile=TILES["four shares"], rows=ROWS, outer=OUTER, inner=INNER))
    product.run()
    first = product._out.clone()
    product.run()
    torch.testing.assert_close(product._out, first, rtol=0, atol=0, equal_nan=True)
    product.check(1e-5)


@pytest.mark.parametrize(
    "tile",
    [Matrix(16, 64, 16, 1), Matrix(16, 16, 128, 1), Matrix(16, 16, 16, 1, shares=8)],
    ids=["columns", "inner elements", "shares"],
)
def test_a_tile_that_does_not_divide_the_matrix_is_refused(tile: Tile) -> None:
    x, weight, out = torch.zeros(1, INNER), torch.zeros(OUTER, INNER), torch.zeros(1, OUTER)
    with pytest.raises(ValueError, match=f"does not divide a matrix of {OUTER} x {INNER}"):
        linear(x, weight, out, tile, rows=1)


@pytest.mark.parametrize("room", [None, (2 * 32 * OUTER - 1, 99), (2 * 32 * OUTER, 3)])
def test_shares_need_room(room: tuple[int, int] | None) -> None:
    x, weight, out = torch.zeros(ROWS, INNER), torch.zeros(OUTER, INNER), torch.zeros(ROWS, OUTER)
    sharing = room and SplitKWorkspace(torch.zeros(room[0]), torch.zeros(room[1], dtype=torch.int32))
    with pytest.raises(ValueError, match=f"needs room for {2 * 32 * OUTER} parts and 4 counts"):
        linear(x, weight, out, TILES["two shares"], rows=ROWS, sharing=sharing)
