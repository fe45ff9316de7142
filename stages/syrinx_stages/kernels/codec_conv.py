"""Causal convolutions as matrix products over taps and channels; linear layers and transposed ones are such too.

Activations are channels-last. What a convolution reads is a buffer [rows, tail + positions, channels] that begins with
the last `tail` positions of the call before. A transposed convolution of stride S and kernel 2 S is one of two taps
whose S x channels outputs are S positions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .codec_math import gelu, put, snake
from .launch import grid_dependency_wait, launch_dependents


@triton.jit
def _finish(
    total, gated, squares, bias, residual, raw, active, frequency, magnitude, m, n, count, positions, eps,
    residual_tail, raw_tail, active_tail,
    N: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """What follows a product: norm, bias, gate, GELU, residual; stored as it is and as the next SnakeBeta sees it."""
    if NORM > 0:
        total *= tl.rsqrt(squares / NORM + eps)[:, None]
        if GATED:
            gated *= tl.rsqrt(squares / NORM + eps)[:, None]
    if bias is not None:
        total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    if GATED:
        total = total * tl.sigmoid(total) * gated
    if GELU:
        total = gelu(total)
    row = (m // positions).to(tl.int64)
    position = m % positions
    up: tl.constexpr = N // OUT
    mask = (m < count)[:, None] & (n < N)[None, :]
    if residual is not None:
        at = (row * (residual_tail + positions) + residual_tail + position) * N
        total += tl.load(residual + at[:, None] + n[None, :], mask=mask, other=0.0).to(tl.float32)
    if raw is not None:
        at = (row * (raw_tail + positions * up) + raw_tail + position * up) * OUT
        put(raw + at[:, None] + n[None, :], total, mask)
    if active is not None:
        total = snake(
            total,
            tl.load(frequency + n, mask=n < N, other=0.0)[None, :],
            tl.load(magnitude + n, mask=n < N, other=0.0)[None, :],
        )
        at = (row * (active_tail + positions * up) + active_tail + position * up) * OUT
        put(active + at[:, None] + n[None, :], total, mask)


_SIZES = ["count", "positions", "dilation", "in_tail", "residual_tail", "raw_tail", "active_tail"]
"""Arguments that a kernel is compiled once for, whatever their values."""


@triton.jit(do_not_specialize=_SIZES)
def conv(
    x, weight, bias, residual, raw, active, frequency, magnitude, partial, arrived, count, positions, eps,
    dilation, in_tail, residual_tail, raw_tail, active_tail,
    IN: tl.constexpr, N: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """`count` = rows x positions products of a window of `x` with `weight` [N (GATED: 2 N), TAPS x IN].

    x: [rows, in_tail + positions, IN]. NORM: 0, or the channels of an RMS norm of x. residual: [rows, residual_tail +
    positions, N]. raw, active: [rows, tail + positions x N / OUT, OUT]. Split, the products' parts meet in `partial`
    [tiles, SPLITS, BM, BN] float32, and the last to arrive (`arrived` [tiles] int32, zero before and after) adds them.
    """
    blocks: tl.constexpr = (N + BN - 1) // BN
    tile = tl.program_id(0)
    split = tl.program_id(1)
    m = (tile // blocks) * BM + tl.arange(0, BM)
    n = (tile % blocks) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    held = tl.minimum(m, count - 1)
    first = (held // positions).to(tl.int64) * (in_tail + positions) + held % positions
    x_at = x + (first + (in_tail - (TAPS - 1) * dilation))[:, None] * IN + k[None, :]
    w_at = weight + tl.minimum(n, N - 1)[None, :] * (TAPS * IN) + k[:, None]
    steps: tl.constexpr = TAPS * IN // BK
    tl.static_assert(steps % SPLITS == 0)
    share: tl.constexpr = steps // SPLITS
    total = tl.zeros((BM, BN), tl.float32)
    gated = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    if share == 1:
        # All of the weights that this block needs are under way before the kernel ahead ends.
        at = split * BK
        first_weights = tl.load(w_at + at)
        if GATED:
            second_weights = tl.load(w_at + (N * TAPS * IN + at))
        grid_dependency_wait(PDL)
        values = tl.load(x_at + tl.multiple_of((at // IN) * (dilation * IN) + at % IN, BK))
        total = tl.dot(values, first_weights, total, input_precision=PRECISION)
        if GATED:
            gated = tl.dot(values, second_weights, gated, input_precision=PRECISION)
        if NORM > 0:
            wide = values.to(tl.float32)
            squares = tl.sum(wide * wide, 1)
    else:
        grid_dependency_wait(PDL)
        for step in range(share):
            at = (split * share + step) * BK
            values = tl.load(x_at + tl.multiple_of((at // IN) * (dilation * IN) + at % IN, BK))
            total = tl.dot(values, tl.load(w_at + at), total, input_precision=PRECISION)
            if GATED:
                gated = tl.dot(values, tl.load(w_at + (N * TAPS * IN + at)), gated, input_precision=PRECISION)
            if NORM > 0:
                wide = values.to(tl.float32)
                squares += tl.sum(wide * wide, 1)
    launch_dependents(PDL)
    if SPLITS == 1:
        _finish(
            total, gated, squares, bias, residual, raw, active, frequency, magnitude, m, n, count, positions, eps,
            residual_tail, raw_tail, active_tail, N, OUT, NORM, GATED, GELU,
        )  # fmt: skip
    else:
        place = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        parts = partial + tile.to(tl.int64) * (SPLITS * BM * BN)
        tl.store(parts + split * (BM * BN) + place, total)
        tl.debug_barrier()
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(arrived + tile, 0)
            total = tl.zeros((BM, BN), tl.float32)
            for part in range(SPLITS):
                total += tl.load(parts + part * (BM * BN) + place, cache_modifier=".cg")
            _finish(
                total, gated, squares, bias, residual, raw, active, frequency, magnitude, m, n, count, positions, eps,
                residual_tail, raw_tail, active_tail, N, OUT, NORM, GATED, GELU,
            )  # fmt: skip


@triton.jit
def _put_unit(
    total, bias, residual, raw, active, frequency, magnitude, m, n, count, positions, active_tail,
    C: tl.constexpr,
):  # fmt: skip
    mask = (m < count)[:, None]
    at = m.to(tl.int64)[:, None] * C + n[None, :]
    total += tl.load(bias + n)[None, :] + tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if raw is not None:
        put(raw + at, total, mask)
    total = snake(total, tl.load(frequency + n)[None, :], tl.load(magnitude + n)[None, :])
    row = (m // positions).to(tl.int64)
    at = (row * (active_tail + positions) + active_tail + m % positions) * C
    put(active + at[:, None] + n[None, :], total, mask)


@triton.jit(do_not_specialize=_SIZES[:4] + _SIZES[-1:])
def residual_unit(
    x, weight, bias, frequency, magnitude, weight_2, bias_2, residual, raw, active, frequency_2, magnitude_2,
    count, positions, dilation, in_tail, active_tail,
    C: tl.constexpr, A: tl.constexpr, B: tl.constexpr, TAPS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A whole residual unit: `residual` + a pointwise convolution of SnakeBeta of a convolution of `x`.

    x: [rows, in_tail + positions, C], activated already; residual, raw: [count, C], may be one; active: the result as
    the next SnakeBeta sees it. C = A + B channels are computed in two parts, powers of two (B may be 0).
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    a = tl.arange(0, A)
    k = tl.arange(0, BK)
    held = tl.minimum(m, count - 1)
    first = (held // positions).to(tl.int64) * (in_tail + positions) + held % positions
    x_at = x + (first + (in_tail - (TAPS - 1) * dilation))[:, None] * C + k[None, :]
    w_a = weight + a[None, :] * (TAPS * C) + k[:, None]
    part_a = tl.zeros((BM, A), tl.float32)
    if B > 0:
        b = A + tl.arange(0, B)
        w_b = weight + b[None, :] * (TAPS * C) + k[:, None]
        part_b = tl.zeros((BM, B), tl.float32)
    grid_dependency_wait(PDL)
    for step in range(TAPS * C // BK):
        at = step * BK
        values = tl.load(x_at + tl.multiple_of((at // C) * (dilation * C) + at % C, BK))
        part_a = tl.dot(values, tl.load(w_a + at), part_a, input_precision=PRECISION)
        if B > 0:
            part_b = tl.dot(values, tl.load(w_b + at), part_b, input_precision=PRECISION)
    launch_dependents(PDL)
    kind: tl.constexpr = x.dtype.element_ty
    part_a += tl.load(bias + a)[None, :]
    hidden_a = snake(part_a, tl.load(frequency + a)[None, :], tl.load(magnitude + a)[None, :]).to(kind)
    out_a = tl.dot(hidden_a, tl.load(weight_2 + a[None, :] * C + a[:, None]), input_precision=PRECISION)
    if B > 0:
        part_b += tl.load(bias + b)[None, :]
        hidden_b = snake(part_b, tl.load(frequency + b)[None, :], tl.load(magnitude + b)[None, :]).to(kind)
        out_a = tl.dot(hidden_b, tl.load(weight_2 + a[None, :] * C + b[:, None]), out_a, input_precision=PRECISION)
        out_b = tl.dot(hidden_a, tl.load(weight_2 + b[None, :] * C + a[:, None]), input_precision=PRECISION)
        out_b = tl.dot(hidden_b, tl.load(weight_2 + b[None, :] * C + b[:, None]), out_b, input_precision=PRECISION)
        _put_unit(
            out_b, bias_2, residual, raw, active, frequency_2, magnitude_2, m, b, count, positions, active_tail, C
        )
    _put_unit(out_a, bias_2, residual, raw, active, frequency_2, magnitude_2, m, a, count, positions, active_tail, C)
