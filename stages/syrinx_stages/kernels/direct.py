"""The kernel for few rows, 64 at most: weights go from memory straight into tensor cores' registers, before their turn.

A tensor core's operand lies spread over a warp's registers. This kernel loads it spread so, which Triton's language
cannot say and Gluon can: 16 bytes a load, all of a program's weights on their way before the kernel before has ended,
and no way round through shared memory. The warps share the inner axis and are summed at the end.

The order of the inner elements within a product is the operands' own affair (`k_width=8` gives each thread eight
neighbours, where the instruction takes pairs): it is the same for both, so the sum is the same.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2


@gluon.jit
def direct(
    x, index, weight, squares, residual, out, out_squares, shared, arrived, rows, eps,
    X_STRIDE: gl.constexpr, INDEX_STRIDE: gl.constexpr, K: gl.constexpr, N: gl.constexpr, OUT_STRIDE: gl.constexpr,
    PARTS: gl.constexpr, PARTS_P: gl.constexpr, OUT_PARTS: gl.constexpr, GATED: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, SHARES: gl.constexpr, WARPS: gl.constexpr,
    AHEAD: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `linear`. A program does WARPS x BK inner elements at a step; AHEAD: steps whose weights are on their way."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    products: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], instr_shape=[1, 16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, products, 8)
    right: gl.constexpr = gl.DotOperandLayout(1, products, 8)
    STEP: gl.constexpr = WARPS * BK
    STEPS: gl.constexpr = K // SHARES // STEP
    column, share = gl.program_id(0), gl.program_id(1)
    first = share * (K // SHARES)

    # Weights: [warps, columns, inner].
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, left)))
    n = column * BN + gl.arange(0, BN, gl.SliceLayout(0, gl.SliceLayout(2, left)))
    k = gl.arange(0, BK, gl.SliceLayout(0, gl.SliceLayout(1, left)))
    w_at = weight + first + warp[:, None, None] * BK + n[None, :, None] * K + k[None, None, :]
    w = ()
    w2 = ()
    for step in gl.static_range(min(AHEAD, STEPS)):
        w += (gl.load(w_at + step * STEP),)  # type: ignore[assignment]
        if GATED:
            w2 += (gl.load(w_at + N * K + step * STEP),)  # type: ignore[assignment]
    if PDL:
        tl.extra.cuda.gdc_wait()

    # What the end needs is on its way before the rows are.
    summing: gl.constexpr = gl.BlockedLayout([WARPS, BN // 8, 1], [1, 8, 4], [1, 1, WARPS], [0, 1, 2])
    place: gl.constexpr = gl.SliceLayout(0, summing)
    n = column * BN + gl.arange(0, BN, gl.SliceLayout(1, place))
    m = gl.arange(0, BM, gl.SliceLayout(0, place))
    at = m[None, :] * OUT_STRIDE + n[:, None]
    held = (m < rows)[None, :]
    if PARTS > 0:
        spread: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
        of = gl.arange(0, BM, gl.SliceLayout(1, spread))[:, None]
        part = gl.arange(0, PARTS_P, gl.SliceLayout(0, spread))[None, :]
        sums = gl.load(squares + of * PARTS + part, mask=(of < rows) & (part < PARTS), other=0.0)
    if residual is not None:
        added = gl.load(residual + at, mask=held, other=0.0)

    # Rows: [warps, inner, rows].
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, right)))
    k = gl.arange(0, BK, gl.SliceLayout(0, gl.SliceLayout(2, right)))
    row = gl.arange(0, BM, gl.SliceLayout(0, gl.SliceLayout(1, right)))
    real = row < rows
    if index is not None:
        row = gl.load(index + row * INDEX_STRIDE, mask=real, other=0)
    x_at = x + first + warp[:, None, None] * BK + k[None, :, None] + row[None, None, :] * X_STRIDE
    total = gl.zeros([WARPS, BN, BM], gl.float32, products)
    if GATED:
        gated = gl.zeros([WARPS, BN, BM], gl.float32, products)
    values = gl.load(x_at, mask=real[None, None, :], other=0.0)
    for step in gl.static_range(STEPS):
        if step + AHEAD < STEPS:
            w += (gl.load(w_at + (step + AHEAD) * STEP),)  # type: ignore[assignment]
            if GATED:
                w2 += (gl.load(w_at + N * K + (step + AHEAD) * STEP),)  # type: ignore[assignment]
        if step + 1 < STEPS:
            following = gl.load(x_at + (step + 1) * STEP, mask=real[None, None, :], other=0.0)
        total = mma_v2(w[step], values, total)
        if GATED:
            gated = mma_v2(w2[step], values, gated)
        if step + 1 < STEPS:
            values = following

    # Each thread sums what the warps have of its places.
    total = gl.sum(gl.convert_layout(total, summing), 0)
    if GATED:
        gated = gl.sum(gl.convert_layout(gated, summing), 0)
    last = True
    if SHARES > 1:
        slot = shared + m[None, :] * N + n[:, None]
        gl.store(slot + share * (BM * N), total, cache_modifier=".cg")
        if GATED:
            gl.store(slot + (SHARES + share) * (BM * N), gated, cache_modifier=".cg")
        tl.debug_barrier()
        last = gl.atomic_add(arrived + column, 1, sem="acq_rel") == SHARES - 1
        if last:
            # All shares are summed in their order, whoever came last.
            total = gl.load(slot, cache_modifier=".cg")
            for other in gl.static_range(1, SHARES):
                total += gl.load(slot + other * (BM * N), cache_modifier=".cg")
            if GATED:
                gated = gl.load(slot + SHARES * (BM * N), cache_modifier=".cg")
                for other in gl.static_range(SHARES + 1, 2 * SHARES):
                    gated += gl.load(slot + other * (BM * N), cache_modifier=".cg")
            gl.store(arrived + column, 0)
    if last:
        if PARTS > 0:
            scale = gl.convert_layout(gl.rsqrt(gl.sum(sums, 1) / K + eps), gl.SliceLayout(0, place))[None, :]
            total *= scale
            if GATED:
                gated *= scale
        if GATED:
            total = total / (1 + gl.exp(-total)) * gated
        if residual is not None:
            total += added.to(gl.float32)
        result = total.to(out.dtype.element_ty)
        gl.store(out + at, result, mask=held)
        if out_squares is not None:
            rounded = result.to(gl.float32)
            gl.store(out_squares + m * OUT_PARTS + column, gl.sum(rounded * rounded, 0), mask=m < rows)
