"""Matrix products whose rows do not depend on how many rows there are.

BLAS libraries choose their kernel, and with it the order of summation, by the number of rows: a request's numbers
would then change in the last bit with its neighbours in the batch. Two ways, both on one thread, keep every row's sum
in one order (`tests/unit/test_linear.py` proves it for this machine; measured on MKL with AVX2, and with AVX-512 of
Intel's and of AMD's):

- `linear`, for few rows: weights are column-major, whose kernels take rows in sixes. Rows are padded to a multiple of
  `ROW_GROUP` and split into blocks of at most `MANY_ROWS`.
- `add_product`, for the many rows of the codec's convolutions: every kernel call has exactly `BLOCK` rows, and columns
  in eights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROW_GROUP = 6
"""Rows that MKL's column-major kernels take at once: with AVX2 a group of 1 to 3 is summed otherwise."""

MANY_ROWS = 48
"""Rows of a column-major product at most: MKL divides the inner axis otherwise from 192 (AVX2: 96) rows."""

BLOCK = 24
"""Rows of each kernel call of `add_product`: a third slower than one call for all rows, whose sums are not fixed."""

COLUMN_GROUP = 8
"""Columns of `add_product`'s kernel calls: with AVX-512 on AMD a row of 5, 7 or 11, say, is summed by its place."""


def column_major(outer: int, inner: int) -> Tensor:
    """An uninitialised [outer, inner] weight whose memory is [inner, outer]: `linear` is fast on it for few rows."""
    return torch.empty(inner, outer).t()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`; on a CPU each row's result is independent of the other rows.

    x: [rows, in]; weight: [out, in], column-major, `out` in eights; bias: [out]; returns [rows, out].
    """
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    if x.shape[0] > MANY_ROWS:
        return torch.cat([linear(block, weight, bias) for block in torch.split(x, MANY_ROWS)])
    return F.linear(pad_rows(x), weight, bias)[: x.shape[0]]


def pad_rows(rows: Tensor) -> Tensor:
    """[count, ...] with zero rows up to whole groups: what passes through many column-major products is padded once."""
    short = -rows.shape[0] % ROW_GROUP
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, short)) if short else rows


def add_product(out: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """`out += rows @ weight` in place; on a CPU each row's result is independent of the other rows.

    out: [count, outer], contiguous; rows: [count, inner]; weight: [inner, outer].
    """
    if out.device.type != "cpu":
        return out.addmm_(rows, weight)
    count, outer = out.shape
    if short := -outer % COLUMN_GROUP:
        return out.copy_(add_product(F.pad(out, (0, short)), rows, F.pad(weight, (0, short)))[:, :outer])
    whole = count - count % BLOCK
    if whole:
        _blocks(out[:whole].view(-1, BLOCK, outer), rows[:whole].view(-1, BLOCK, rows.shape[1]), weight)
    if whole < count:
        rest = F.pad(out[whole:], (0, 0, 0, BLOCK - count + whole))
        _blocks(rest[None], F.pad(rows[whole:], (0, 0, 0, BLOCK - count + whole))[None], weight)
        out[whole:] = rest[: count - whole]
    return out


def _blocks(out: Tensor, rows: Tensor, weight: Tensor) -> None:
    out.baddbmm_(rows, weight.expand(len(rows), -1, -1))
