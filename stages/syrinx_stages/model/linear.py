"""Batch-invariant products and convolutions: a row of the result does not depend on the number of rows.

BLAS libraries choose their kernel, and so the order of summation, by the number of rows. The last bits of a request's
activations would then depend on the other requests in the batch. Three methods keep the order of summation fixed on one
thread (tests/engines/test_linear.py checks this on the machine it runs on; measured on AVX2, and with AVX-512):

- `linear` with a `HalfWeight`: FBGEMM's kernels, which read float16 weights and compute in float32. Rows are padded to
  a multiple of `HALF_ROW_GROUP`.
- `linear` with a float32 weight, column-major: MKL's kernels, which process six rows at a time. Rows are padded to a
  multiple of `ROW_GROUP` and split into blocks of at most `MAX_ROWS`, columns padded to a multiple of `COLUMN_GROUP`.
- `convolve`, for the many positions of the codec's convolutions: oneDNN's channels-last kernels, which sum every
  position in one order.
"""

import functools
import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_ROW_GROUP = 3
"""FBGEMM's AVX2 kernels for one and two rows sum in another order; a multiple of this many rows is computed without
them. Its AVX-512 kernels all sum in one order."""

ROW_GROUP = 6
"""Rows that MKL's column-major kernels process at a time; with AVX2, groups of 1 to 3 rows are summed differently."""

MAX_ROWS = 48
"""Maximum rows of a column-major product: from 192 rows (AVX2: 96) MKL splits the inner axis differently."""

COLUMN_GROUP = 8
"""Columns of each kernel call are padded to a multiple of this: on AMD with AVX-512, sums over 5, 7 or 11 columns, for
example, depend on the row's index."""


def column_major(outer: int, inner: int) -> Tensor:
    """Returns an uninitialized weight [outer, inner] with memory order [inner, outer], which `linear` needs."""
    return torch.empty(inner, outer).t()


class HalfWeight(NamedTuple):
    """A weight [out, in] in float16, in the memory order of FBGEMM's kernels."""

    packed: Tensor
    zeros: Tensor
    """[out] float32, in place of a bias."""


Weight = Tensor | HalfWeight

_HAS_ONEDNN = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def half_weight(weight: Tensor) -> HalfWeight | None:
    """Returns a float32 weight [out, in] as a `HalfWeight`, or None where that is inexact or not supported.

    It counts as exact if it changes the weight less than float32 rounds a product: true of float16 and bfloat16
    checkpoints.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not _has_half_kernels():
        return None
    error = torch.linalg.vector_norm(weight.half().float() - weight)
    if not error <= 2**-24 * torch.linalg.vector_norm(weight):
        return None
    return HalfWeight(torch.fbgemm_pack_gemm_matrix_fp16(weight.contiguous()), weight.new_zeros(len(weight)))


@functools.cache
def _has_half_kernels() -> bool:
    """Returns whether this machine has FBGEMM's float16 kernels, which need AVX2."""
    with warnings.catch_warnings():
        # Deprecated, but the other interface to the same kernels takes 20 us more for each call.
        warnings.simplefilter("ignore")
        try:
            packed = torch.fbgemm_pack_gemm_matrix_fp16(torch.zeros(8, 8))
            torch.fbgemm_linear_fp16_weight_fp32_activation(torch.zeros(3, 8), packed, torch.zeros(8))
        except (AttributeError, RuntimeError):
            return False
    return True


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """Returns `x @ weight.T + bias`; on a CPU each row's result is independent of the other rows.

    x: [rows, in]; weight: [out, in], if a tensor column-major; bias: [out]; result: [rows, out].
    """
    if isinstance(weight, HalfWeight):
        padded = pad_rows(x, weight)
        bias = weight.zeros if bias is None else bias
        y = torch.fbgemm_linear_fp16_weight_fp32_activation(padded, weight.packed, bias)
        return y if padded is x else y[: x.shape[0]]
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    if (columns := weight.shape[0]) % COLUMN_GROUP:
        padded = linear(x, pad_columns(weight.t()).t(), None if bias is None else pad_columns(bias))
        return padded[:, :columns].contiguous()
    if x.shape[0] > MAX_ROWS:
        return torch.cat([linear(block, weight, bias) for block in torch.split(x, MAX_ROWS)])
    return F.linear(pad_rows(x, weight), weight, bias)[: x.shape[0]]


def padded_columns(count: int) -> int:
    """Returns `count` rounded up to a multiple of `COLUMN_GROUP`."""
    return count + -count % COLUMN_GROUP


def pad_columns(x: Tensor) -> Tensor:
    """Appends zero columns, on the last axis, up to a multiple of `COLUMN_GROUP`."""
    short = -x.shape[-1] % COLUMN_GROUP
    return F.pad(x, (0, short)) if short else x


def pad_rows(rows: Tensor, weight: Weight) -> Tensor:
    """Appends the zero rows that `linear` needs with such a weight, once for a series of calls."""
    short = -rows.shape[0] % (HALF_ROW_GROUP if isinstance(weight, HalfWeight) else ROW_GROUP)
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, short)) if short else rows


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, dilation: int = 1) -> Tensor:
    """Returns a convolution without padding; on a CPU each position's result is independent of the other positions.

    x: [batch, length, in], contiguous; weight: [out, taps * in], contiguous, the oldest tap first; bias: [out]; result:
    [batch, length - (taps - 1) * dilation, out].
    """
    if x.device.type == "cpu" and x.dtype != torch.float32:
        # oneDNN refuses half precision on processors without instructions for it.
        y = convolve(x.float(), weight.float(), None if bias is None else bias.float(), dilation)
        return y.to(x.dtype)
    images, kernels = x.mT[:, :, None], weight.view(len(weight), -1, x.shape[2]).mT[:, :, None]
    if x.device.type == "cpu" and _HAS_ONEDNN:
        # `conv2d` would choose another library by the number of positions.
        y = torch.mkldnn_convolution(images, kernels, bias, (0, 0), (1, 1), (1, dilation), 1)
    else:
        y = F.conv2d(images, kernels, bias, dilation=(1, dilation))
    return y[:, :, 0].mT
