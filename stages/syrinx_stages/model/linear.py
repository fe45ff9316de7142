"""Matrix products whose rows do not depend on how many rows there are.

BLAS libraries choose their kernel, and with it the order of summation, by the number of rows: a request's numbers
would then change in the last bit with its neighbours in the batch. Padded to a multiple of `ROWS`, on one thread,
every row is summed in the same order whatever the batch (`tests/unit/test_linear.py` proves it for this machine).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

ROWS = 16
"""The least row count from which MKL's float32 kernels sum in one order (measured: 1 to 12 rows differ)."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` over the last axis; on a CPU each row's result is independent of the other rows.

    x: [..., in]; weight: [out, in]; bias: [out]; returns [..., out].
    """
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    short = -count % ROWS
    if short:
        rows = F.pad(rows, (0, 0, 0, short))
    return F.linear(rows, weight, bias)[:count].reshape(*x.shape[:-1], weight.shape[0])
