"""Matrix products whose rows do not depend on how many rows there are.

BLAS libraries choose their kernel, and with it the order of summation, by the number of rows: a request's numbers
would then change in the last bit with its neighbours in the batch. Padded to a multiple of `ROWS`, on one thread,
every row is summed in the same order whatever the batch (`tests/unit/test_linear.py` proves it for this machine).
Weights kept column-major (`column_major`) have a kernel that needs no padding beyond two rows, up to `MANY_ROWS`: a
decode step of one request costs a fifth.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 16
"""The least row count from which MKL's float32 kernels sum in one order (measured: 1 to 12 rows differ)."""


MANY_ROWS = 128
"""Up to here column-major products of 2 rows and more are summed in one order (measured: 192 rows differ)."""


def column_major(outer: int, inner: int) -> Tensor:
    """An uninitialised [outer, inner] weight whose memory is [inner, outer]: `linear` is fast on it for few rows."""
    return torch.empty(inner, outer).t()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` over the last axis; on a CPU each row's result is independent of the other rows.

    x: [..., in]; weight: [out, in]; bias: [out]; returns [..., out]. With a column-major weight the independence holds
    up to `MANY_ROWS` rows.
    """
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    short = max(0, 2 - count) if weight.stride(0) == 1 else -count % ROWS
    if short:
        rows = F.pad(rows, (0, 0, 0, short))
    out = F.linear(rows, weight, bias)
    if short:
        out = out[:count]
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], weight.shape[0])
