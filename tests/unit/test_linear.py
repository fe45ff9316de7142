"""A row's product does not depend on its neighbours: the ground on which equal seeds give equal codes."""

import pytest
import torch

from syrinx_stages.model.linear import MANY_ROWS, column_major, linear


@pytest.mark.parametrize(("inner", "outer"), [(320, 512), (512, 320), (192, 256), (896, 128), (112, 16), (1024, 3072)])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 12, 16, 40, 333])
def test_rows_are_bit_identical_whatever_the_batch(inner: int, outer: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(inner * outer)
    weight = torch.randn(outer, inner, generator=generator)
    bias = torch.randn(outer, generator=generator)
    x = torch.randn(512, inner, generator=generator)
    whole = linear(x, weight, bias)
    for offset in (0, 5):
        assert torch.equal(linear(x[offset : offset + rows], weight, bias), whole[offset : offset + rows])


@pytest.mark.parametrize(("inner", "outer"), [(320, 448), (512, 320), (192, 768), (1024, 3072), (2048, 6144)])
def test_column_major_rows_are_bit_identical_from_one_row_to_many(inner: int, outer: int) -> None:
    generator = torch.Generator().manual_seed(inner * outer)
    weight = column_major(outer, inner).copy_(torch.randn(outer, inner, generator=generator))
    bias = torch.randn(outer, generator=generator)
    x = torch.randn(3 * MANY_ROWS, inner, generator=generator)
    whole = linear(x, weight, bias)
    for rows in (1, 2, 3, 6, 7, 8, 12, 40, MANY_ROWS, MANY_ROWS + 1):
        for offset in (0, 1):
            assert torch.equal(linear(x[offset : offset + rows], weight, bias), whole[offset : offset + rows]), rows


def test_memory_order_of_the_weight_does_not_change_the_product() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 4, generator=generator)
    x = torch.randn(3, 4, generator=generator)
    assert torch.allclose(linear(x, column_major(6, 4).copy_(weight)), x @ weight.T, atol=1e-6)


def test_shape_is_kept() -> None:
    assert linear(torch.zeros(2, 3, 8), torch.zeros(5, 8)).shape == (2, 3, 5)
