"""The kernel whose weights go straight into the tensor cores' registers: what it is compiled to, run on the CPU."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from collections.abc import Iterator

import pytest
import torch
from support.products import SURROUNDINGS, Case, Product
from support.ptx import Device

from syrinx_stages.kernels import linear as products
from syrinx_stages.kernels.linear import Direct, SplitKWorkspace, linear

ROUNDING = 0.02
"""Of a result of a few units, in bfloat16."""


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    device = Device("weight")
    yield device
    device.close()


@pytest.fixture(autouse=True)
def launched(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "launch", device.launch)
    monkeypatch.setattr(products, "PDL_SUPPORTED", True)


def check(tile: Direct, rows: int, outer: int, inner: int, **surroundings: int) -> None:
    product = Product(Case(tile=tile, rows=rows, outer=outer, inner=inner, **surroundings), kind=torch.bfloat16)
    product.run()
    product.check(ROUNDING)


@pytest.mark.parametrize("surroundings", SURROUNDINGS.values(), ids=SURROUNDINGS)
@pytest.mark.parametrize("tile", [Direct(16, 32, 4), Direct(32, 64, 4, shares=2)], ids=["alone", "two shares"])
def test_a_product_and_what_surrounds_it(tile: Direct, surroundings: dict[str, int]) -> None:
    check(tile, 19, 64, 512, **surroundings)


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 16, 33, 64])
def test_any_number_of_rows(rows: int) -> None:
    check(Direct(16, 64, 4), rows, 16, 256, parts=2)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_steps_beyond_those_that_are_on_their_way(ahead: int) -> None:
    check(Direct(16, 32, 4, ahead=ahead), 11, 32, 512, gated=True, parts=2)


def test_an_inner_axis_that_is_no_power_of_two() -> None:
    check(Direct(16, 32, 8, shares=3), 5, 48, 32 * 8 * 9, gated=True, parts=3)


@pytest.mark.parametrize(("outer", "inner"), [(64, 320), (40, 512)])
def test_a_tile_that_does_not_divide_the_matrix_is_refused(outer: int, inner: int) -> None:
    with pytest.raises(ValueError, match="does not divide"):
        check(Direct(16, 64, 4), 2, outer, inner)


def test_more_rows_than_it_is_for_are_refused() -> None:
    with pytest.raises(ValueError, match="up to 64 rows"):
        check(Direct(16, 64, 4), 65, 16, 256)


def test_a_type_that_it_is_not_for_is_refused() -> None:
    x, weight = torch.zeros(2, 256), torch.zeros(16, 256)
    with pytest.raises(ValueError, match="16-bit type"):
        linear(x, weight, torch.zeros(2, 16), Direct(16, 64, 4), rows=2)


@pytest.mark.parametrize("room", [None, (2 * 32 * 64 - 1, 4), (2 * 32 * 64, 3)])
def test_shares_need_room(room: tuple[int, int] | None) -> None:
    x, weight, out = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((19, 512), (64, 512), (19, 64)))
    sharing = room and SplitKWorkspace(torch.zeros(room[0]), torch.zeros(room[1], dtype=torch.int32))
    with pytest.raises(ValueError, match="needs room for 4096 parts and 4 counts"):
        linear(x, weight, out, Direct(16, 64, 4, shares=2), rows=19, sharing=sharing or None)
