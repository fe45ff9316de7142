"""What surrounds matrix products that a library computes: norm and gate, one row at a time."""

import triton
import triton.language as tl
from torch import Tensor

from .launch import grid_dependency_wait, launch, launch_dependents, supports_pdl

_COLUMNS = 1024
"""Of a program of `gate_rows`."""


@triton.jit
def _norm_kernel(x, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    grid_dependency_wait(PDL)
    launch_dependents(PDL)
    column = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * WIDTH + column
    values = tl.load(x + offsets, mask=column < WIDTH, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / WIDTH + eps)
    tl.store(out + offsets, (values * scale).to(out.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def _gate_kernel(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    grid_dependency_wait(PDL)
    launch_dependents(PDL)
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    gate = tl.load(x + row * 2 * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    values = tl.load(x + row * 2 * WIDTH + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    gated = gate * tl.sigmoid(gate) * values
    tl.store(out + row * WIDTH + column, gated.to(out.dtype.element_ty), mask=mask)


def norm_rows(x: Tensor, out: Tensor, eps: float) -> None:
    """Divides each row of `x` [rows, width] by the root of its mean square plus `eps`. Both are contiguous."""
    rows, width = x.shape
    pdl = supports_pdl(x.device)
    block = triton.next_power_of_2(width)
    launch(_norm_kernel, (rows,), x, out, eps, WIDTH=width, BLOCK=block, PDL=pdl, launch_pdl=pdl)


def gate_rows(x: Tensor, out: Tensor) -> None:
    """Computes `silu(x[:, :width]) * x[:, width:]` of `x` [rows, 2 * width]. Both are contiguous."""
    rows, width = out.shape
    pdl = supports_pdl(x.device)
    grid = rows, triton.cdiv(width, _COLUMNS)
    launch(_gate_kernel, grid, x, out, WIDTH=width, BLOCK=_COLUMNS, PDL=pdl, launch_pdl=pdl)
