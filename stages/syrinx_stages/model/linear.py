"""Matrix products whose rows do not depend on how many rows there are.

BLAS libraries choose their kernel, and with it the order of summation, by the number of rows: a request's numbers
would then change in the last bit with its neighbours in the batch. Padded to a multiple of `ROWS`, on one thread,
every row is summed in the same order whatever the batch (`tests/unit/test_linear.py` proves it for this machine).
That needs a CPU with AVX-512. Weights kept column-major (`column_major`) have kernels that take rows in sixes: padded
to a multiple of `ROW_GROUP`, in blocks of up to `MANY_ROWS`, rows are independent with AVX2 too, and a decode step of
one request costs a fifth.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 16
"""The least row count from which MKL's float32 kernels sum in one order (measured: 1 to 12 rows differ)."""

ROW_GROUP = 6
"""Rows that MKL's column-major kernels take at once: with AVX2 a group of 1 to 3 is summed otherwise."""

MANY_ROWS = 48
"""Rows of a column-major product at most: MKL divides the inner axis otherwise from 192 (AVX2: 96) rows."""


def column_major(outer: int, inner: int) -> Tensor:
    """An uninitialised [outer, inner] weight whose memory is [inner, outer]: `linear` is fast on it for few rows."""
    return torch.empty(inner, outer).t()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` over the last axis; on a CPU each row's result is independent of the other rows.

    x: [..., in]; weight: [out, in]; bias: [out]; returns [..., out].
    """
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    if weight.stride(0) != 1:
        out = _padded(rows, weight, bias, ROWS)
    elif count <= MANY_ROWS:
        out = _padded(rows, weight, bias, ROW_GROUP) if count % ROW_GROUP else F.linear(rows, weight, bias)
    else:
        out = torch.cat([_padded(block, weight, bias, ROW_GROUP) for block in torch.split(rows, MANY_ROWS)])
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], weight.shape[0])


def _padded(rows: Tensor, weight: Tensor, bias: Tensor | None, unit: int) -> Tensor:
    count = rows.shape[0]
    return F.linear(F.pad(rows, (0, 0, 0, -count % unit)), weight, bias)[:count]


def pad_rows(rows: Tensor) -> Tensor:
    """[count, ...] with zero rows up to whole groups: what passes through many column-major products is padded once."""
    short = -rows.shape[0] % ROW_GROUP
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, short)) if short else rows
