"""Batch invariance of the products, on which the reproducibility of codes depends."""

import pytest
import torch

from syrinx_stages.model.linear import BLOCK_ROWS, MAX_ROWS, HalfWeight, add_product, column_major, half_weight, linear


@pytest.mark.parametrize(
    ("inner", "outer"),
    [(320, 448), (512, 320), (192, 768), (1024, 3072), (2048, 6144), (33, 7), (24, 50), (7, 33)],
)
def test_linear_is_bit_identical_for_any_batch(inner: int, outer: int) -> None:
    generator = torch.Generator().manual_seed(inner * outer)
    weight = column_major(outer, inner).copy_(torch.randn(outer, inner, generator=generator))
    bias = torch.randn(outer, generator=generator)
    x = torch.randn(3 * MAX_ROWS, inner, generator=generator)
    whole = linear(x, weight, bias)
    for rows in (1, 2, 3, 6, 7, 8, 12, 40, MAX_ROWS, MAX_ROWS + 1):
        for offset in (0, 1):
            assert torch.equal(linear(x[offset : offset + rows], weight, bias), whole[offset : offset + rows]), rows


needs_half_kernels = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="FBGEMM's kernels need x86 with AVX2"
)


def packed(weight: torch.Tensor) -> HalfWeight:
    half = half_weight(weight)
    assert half is not None
    return half


@needs_half_kernels
@pytest.mark.parametrize(
    ("inner", "outer"), [(320, 448), (512, 320), (192, 768), (2048, 2048), (33, 7), (24, 50), (7, 33), (300, 301)]
)
def test_linear_with_float16_weights_is_bit_identical_for_any_batch(inner: int, outer: int) -> None:
    generator = torch.Generator().manual_seed(inner * outer)
    weight = packed(torch.randn(outer, inner, generator=generator).half().float())
    bias = torch.randn(outer, generator=generator)
    x = torch.randn(310, inner, generator=generator)
    whole = linear(x, weight, bias)
    for rows in (*range(1, 64), 119, 120, 121, 122, 240, 301):
        for offset in (0, 1, 8):
            assert torch.equal(linear(x[offset : offset + rows], weight, bias), whole[offset : offset + rows]), rows


@needs_half_kernels
def test_float16_weights_are_computed_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 256, generator=generator).half().float()
    x = torch.randn(10, 256, generator=generator)
    exact = x.double() @ weight.double().T
    assert (linear(x, packed(weight)) - exact).abs().max() < 1e-4


@needs_half_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_checkpoints_are_packed(dtype: torch.dtype) -> None:
    packed((0.02 * torch.randn(512, 512, generator=torch.Generator().manual_seed(0))).to(dtype).float())


@pytest.mark.parametrize(
    "weight",
    [torch.full((8, 64), 0.1), torch.full((8, 8), 1e5), torch.full((8, 8), torch.nan), torch.zeros(8, 8).double()],
)
def test_weights_that_float16_changes_are_not_packed(weight: torch.Tensor) -> None:
    assert half_weight(weight) is None


@pytest.mark.parametrize(
    ("inner", "outer"), [(16, 1), (16, 7), (16, 16), (17, 11), (32, 96), (128, 128), (256, 2048), (768, 192)]
)
def test_add_product_is_bit_identical_for_any_batch(inner: int, outer: int) -> None:
    generator = torch.Generator().manual_seed(inner * outer)
    weight = torch.randn(inner, outer, generator=generator)
    x = torch.randn(1940, inner, generator=generator)
    start = torch.randn(1940, outer, generator=generator)
    whole = add_product(start.clone(), x, weight)
    for rows in (1, 2, 3, 7, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 160, 1920):
        for offset in (0, 1, 5, 13):
            some = slice(offset, offset + rows)
            assert torch.equal(add_product(start[some].clone(), x[some], weight), whole[some]), (rows, offset)


def test_both_equal_the_product() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 4, generator=generator)
    x = torch.randn(50, 4, generator=generator)
    torch.testing.assert_close(linear(x, column_major(6, 4).copy_(weight)), x @ weight.T)
    torch.testing.assert_close(add_product(torch.ones(50, 6), x, weight.T), 1 + x @ weight.T)
