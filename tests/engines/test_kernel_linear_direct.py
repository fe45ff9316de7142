"""The Gluon linear kernel: its compiled PTX, run on the CPU."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from collections.abc import Iterator

import pytest
import torch
from support.products import FUSIONS, Case, Product
from support.ptx import Device

from syrinx_stages.kernels import linear as products
from syrinx_stages.kernels.linear import DirectTile, linear

TOLERANCE = 0.02
"""Rounding of a result of a few units, in bfloat16."""


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    device = Device("weight")
    yield device
    device.close()


@pytest.fixture(autouse=True)
def launched(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "launch", device.launch)
    monkeypatch.setattr(products, "supports_pdl", lambda device: True)


def check(tile: DirectTile, rows: int, outer: int, inner: int, **fusion: int) -> None:
    product = Product(Case(tile=tile, rows=rows, outer=outer, inner=inner, **fusion), dtype=torch.bfloat16)
    product.run()
    product.check(TOLERANCE)


@pytest.mark.parametrize("fusion", FUSIONS.values(), ids=FUSIONS)
@pytest.mark.parametrize("tile", [DirectTile(16, 32, 4), DirectTile(32, 64, 4, split_k=2)], ids=["whole", "split-K"])
def test_product_with_each_fusion(tile: DirectTile, fusion: dict[str, int]) -> None:
    check(tile, 19, 64, 512, **fusion)


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 16, 33, 64])
def test_any_number_of_rows(rows: int) -> None:
    check(DirectTile(16, 64, 4), rows, 16, 256, parts=2)


@pytest.mark.parametrize("prefetch_depth", [1, 2, 3])
def test_more_steps_than_the_prefetch_depth(prefetch_depth: int) -> None:
    check(DirectTile(16, 32, 4, prefetch_depth=prefetch_depth), 11, 32, 512, gated=True, parts=2)


def test_inner_axis_that_is_not_a_power_of_two() -> None:
    check(DirectTile(16, 32, 8, split_k=3), 5, 48, 32 * 8 * 9, gated=True, parts=3)


@pytest.mark.parametrize(("outer", "inner"), [(64, 320), (40, 512)])
def test_rejects_a_tile_that_does_not_divide_the_matrix(outer: int, inner: int) -> None:
    with pytest.raises(ValueError, match="does not divide"):
        check(DirectTile(16, 64, 4), 2, outer, inner)


def test_rejects_too_many_rows() -> None:
    with pytest.raises(ValueError, match="up to 64 rows"):
        check(DirectTile(16, 64, 4), 65, 16, 256)


def test_rejects_a_32_bit_type() -> None:
    x, weight = torch.zeros(2, 256), torch.zeros(16, 256)
    with pytest.raises(ValueError, match="16-bit type"):
        linear(x, weight, torch.zeros(2, 16), DirectTile(16, 64, 4), rows=2)
