"""Batch invariance of the products, on which the reproducibility of codes depends."""

import pytest
import torch

from syrinx_stages.model.linear import MAX_ROWS, HalfWeight, column_major, convolve, half_weight, linear


@pytest.mark.parametrize(
    ("inner", "outer"),
    [(320, 448), (512, 320), (192, 768), (1024, 3072), (2048, 6144), (7168, 1536), (33, 7), (24, 50), (7, 33)],
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
    ("inner", "outer"),
    [(320, 448), (512, 320), (192, 768), (2048, 512), (7168, 256), (33, 7), (24, 50), (7, 33), (300, 301)],
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
    ("inputs", "outputs", "taps", "dilation", "positions"),
    # Those of the bundled voice, whose frames have 32, 160, 640 and 1,920 positions,
    [(channels, channels, 7, dilation, 4096 // channels) for channels in (128, 64, 32, 16) for dilation in (1, 3, 9)]
    + [(128, 640, 1, 1, 32), (64, 256, 1, 1, 160), (32, 96, 1, 1, 640), (16, 16, 1, 1, 1920), (16, 1, 7, 1, 1920)]
    # those of the published checkpoints,
    + [(768, 768, 7, 9, 32), (768, 3840, 1, 1, 32), (384, 384, 7, 3, 160), (192, 192, 1, 1, 640), (96, 1, 7, 1, 1920)]
    # and odd ones.
    + [(17, 11, 3, 2, 24), (24, 7, 1, 1, 40), (48, 33, 7, 1, 18)],
)
def test_convolve_is_bit_identical_for_any_call(
    inputs: int, outputs: int, taps: int, dilation: int, positions: int
) -> None:
    generator = torch.Generator().manual_seed(inputs * outputs)
    weight = torch.randn(outputs, taps * inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    history, frames = (taps - 1) * dilation, 14
    x = torch.randn(1, history + frames * positions, inputs, generator=generator)
    whole = convolve(x, weight, bias, dilation)

    def inputs_of(first: int, count: int) -> torch.Tensor:
        return x[:, first * positions : (first + count) * positions + history]

    for count in (1, 2, 3, 4, 5, 7, 9, 12):
        for first in (0, 1, frames - count):
            part = convolve(inputs_of(first, count).contiguous(), weight, bias, dilation)
            assert torch.equal(part, whole[:, first * positions : (first + count) * positions]), (count, first)
    for rows in (2, 3, 8):
        batch = convolve(torch.cat([inputs_of(first, 2) for first in range(rows)]), weight, bias, dilation)
        for first in range(rows):
            assert torch.equal(batch[first], whole[0, first * positions : (first + 2) * positions]), (rows, first)


def test_linear_equals_the_product() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 4, generator=generator)
    x = torch.randn(50, 4, generator=generator)
    torch.testing.assert_close(linear(x, column_major(6, 4).copy_(weight)), x @ weight.T)


def test_convolve_equals_the_convolution() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(5, 4, 3, generator=generator), torch.randn(5, generator=generator)
    x = torch.randn(2, 20, 4, generator=generator)
    expected = torch.nn.functional.conv1d(x.mT, weight, bias, dilation=2).mT
    torch.testing.assert_close(convolve(x, weight.mT.flatten(1), bias, dilation=2), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_convolve_computes_half_precision_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((2, 40, 64), (32, 7 * 64), (32,))
    )
    exact = convolve(x.float(), weight.float(), bias.float())
    assert torch.equal(convolve(x, weight, bias), exact.to(dtype))
