"""The linear kernel for up to 64 rows: loads weights from global memory directly into tensor core registers.

Gluon can express what Triton cannot: a load whose result already has the layout of a tensor core operand, 16 bytes per
thread and load, without a detour through shared memory. All weights of a program are in flight before the previous
kernel ends. The warps split the inner axis and are summed at the end.

Each thread holds eight consecutive inner elements (`k_width=8`), whereas the instruction takes pairs. Both operands
are permuted the same way, so the sum is the same. `mma_v2` exists on every GPU since Ampere (sm_80).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from .split_k import split_k_reduce


@gluon.jit
def direct_kernel(
    x, row_index, weight, sum_of_squares, residual, out, out_sum_of_squares, partial_sums, counters, rows, eps,
    X_STRIDE: gl.constexpr, INDEX_STRIDE: gl.constexpr, K: gl.constexpr, N: gl.constexpr, OUT_STRIDE: gl.constexpr,
    PARTS: gl.constexpr, OUT_PARTS: gl.constexpr, GATED: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, SPLIT_K: gl.constexpr, WARPS: gl.constexpr,
    PREFETCH_DEPTH: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `linear`. Each step multiplies WARPS x BK inner elements; weights of PREFETCH_DEPTH steps are in flight."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    products: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], instr_shape=[1, 16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, products, 8)
    right: gl.constexpr = gl.DotOperandLayout(1, products, 8)
    STEP: gl.constexpr = WARPS * BK
    STEPS: gl.constexpr = K // SPLIT_K // STEP
    column, split = gl.program_id(0), gl.program_id(1)
    first = split * (K // SPLIT_K)

    # Weights: [warps, columns, inner].
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, left)))
    n = column * BN + gl.arange(0, BN, gl.SliceLayout(0, gl.SliceLayout(2, left)))
    k = gl.arange(0, BK, gl.SliceLayout(0, gl.SliceLayout(1, left)))
    w_ptrs = weight + first + warp[:, None, None] * BK + n[None, :, None] * K + k[None, None, :]
    w = ()
    w_gate = ()
    for step in gl.static_range(min(PREFETCH_DEPTH, STEPS)):
        w += (gl.load(w_ptrs + step * STEP),)  # type: ignore[assignment]
        if GATED:
            w_gate += (gl.load(w_ptrs + N * K + step * STEP),)  # type: ignore[assignment]
    if PDL:
        tl.extra.cuda.gdc_wait()

    # The epilogue's inputs are loaded before the rows, so that they arrive during the products.
    summing: gl.constexpr = gl.BlockedLayout([WARPS, BN // 8, 1], [1, 8, 4], [1, 1, WARPS], [0, 1, 2])
    summed: gl.constexpr = gl.SliceLayout(0, summing)
    n = column * BN + gl.arange(0, BN, gl.SliceLayout(1, summed))
    m = gl.arange(0, BM, gl.SliceLayout(0, summed))
    offsets = m[None, :] * OUT_STRIDE + n[:, None]
    mask = (m < rows)[None, :]
    if PARTS > 0:
        spread: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
        norm_row = gl.arange(0, BM, gl.SliceLayout(1, spread))[:, None]
        part = gl.arange(0, triton.next_power_of_2(PARTS), gl.SliceLayout(0, spread))[None, :]
        norm_mask = (norm_row < rows) & (part < PARTS)
        sums = gl.load(sum_of_squares + norm_row * PARTS + part, mask=norm_mask, other=0.0)
    if residual is not None:
        added = gl.load(residual + offsets, mask=mask, other=0.0)

    # Rows: [warps, inner, rows].
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, right)))
    k = gl.arange(0, BK, gl.SliceLayout(0, gl.SliceLayout(2, right)))
    row = gl.arange(0, BM, gl.SliceLayout(0, gl.SliceLayout(1, right)))
    valid = row < rows
    if row_index is not None:
        row = gl.load(row_index + row * INDEX_STRIDE, mask=valid, other=0)
    x_ptrs = x + first + warp[:, None, None] * BK + k[None, :, None] + row[None, None, :] * X_STRIDE
    total = gl.zeros([WARPS, BN, BM], gl.float32, products)
    if GATED:
        gate = gl.zeros([WARPS, BN, BM], gl.float32, products)
    values = gl.load(x_ptrs, mask=valid[None, None, :], other=0.0)
    for step in gl.static_range(STEPS):
        if step + PREFETCH_DEPTH < STEPS:
            w += (gl.load(w_ptrs + (step + PREFETCH_DEPTH) * STEP),)  # type: ignore[assignment]
            if GATED:
                w_gate += (gl.load(w_ptrs + N * K + (step + PREFETCH_DEPTH) * STEP),)  # type: ignore[assignment]
        if step + 1 < STEPS:
            next_values = gl.load(x_ptrs + (step + 1) * STEP, mask=valid[None, None, :], other=0.0)
        total = mma_v2(w[step], values, total)
        if GATED:
            gate = mma_v2(w_gate[step], values, gate)
        if step + 1 < STEPS:
            values = next_values

    # Each thread sums its elements over the warps.
    total = gl.sum(gl.convert_layout(total, summing), 0)
    gate = gl.sum(gl.convert_layout(gate, summing), 0) if GATED else total
    is_last = True
    if SPLIT_K > 1:
        pointers = partial_sums + m[None, :] * N + n[:, None]
        total, gate, is_last = split_k_reduce(
            total, gate, pointers, BM * N, split, counters + column, SPLIT_K, GATED
        )  # fmt: skip
    if is_last:
        if PARTS > 0:
            scale = gl.convert_layout(gl.rsqrt(gl.sum(sums, 1) / K + eps), gl.SliceLayout(0, summed))[None, :]
            total *= scale
            if GATED:
                gate *= scale
        if GATED:
            total = total / (1 + gl.exp(-total)) * gate
        if residual is not None:
            total += added.to(gl.float32)
        result = total.to(out.dtype.element_ty)
        gl.store(out + offsets, result, mask=mask)
        if out_sum_of_squares is not None:
            rounded = result.to(gl.float32)
            gl.store(out_sum_of_squares + m * OUT_PARTS + column, gl.sum(rounded * rounded, 0), mask=m < rows)
