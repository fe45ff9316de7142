"""Causal 1-D convolutions as matrix products (implicit GEMM); linear layers are convolutions with one tap.

Activations are channels-last. A convolution reads a buffer [rows, tail + positions, channels] that starts with the last
`tail` positions of the previous call. A transposed convolution with stride S and kernel size 2 S is a two-tap
convolution with S * channels outputs per input position.
"""

import triton
import triton.language as tl

from .codec_frames import is_padding
from .codec_math import snake_beta, store_saturated
from .launch import grid_dependency_wait, launch_dependents
from .split_k import split_k_reduce


@triton.jit
def _epilogue(
    acc, gate, sum_squares, bias, residual, out, snake_out, frequency, magnitude, m, n, num_positions,
    positions_per_row, eps, residual_tail, out_tail, snake_tail,
    N: tl.constexpr, OUT_CHANNELS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """Applies RMS norm scale, bias, SwiGLU gate, GELU and residual to an accumulator tile [BLOCK_M, BLOCK_N] float32.

    Stores the result to `out` and its SnakeBeta activation to `snake_out`; either may be None.
    """
    if NORM > 0:
        acc *= tl.rsqrt(sum_squares / NORM + eps)[:, None]
        if GATED:
            gate *= tl.rsqrt(sum_squares / NORM + eps)[:, None]
    if bias is not None:
        acc += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    if GATED:
        acc = acc * tl.sigmoid(acc) * gate
    if GELU:
        acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
    row = (m // positions_per_row).to(tl.int64)
    position = m % positions_per_row
    upsampling: tl.constexpr = N // OUT_CHANNELS
    mask = (m < num_positions)[:, None] & (n < N)[None, :]
    if residual is not None:
        offset = (row * (residual_tail + positions_per_row) + residual_tail + position) * N
        acc += tl.load(residual + offset[:, None] + n[None, :], mask=mask, other=0.0).to(tl.float32)
    if out is not None:
        offset = (row * (out_tail + positions_per_row * upsampling) + out_tail + position * upsampling) * OUT_CHANNELS
        store_saturated(out + offset[:, None] + n[None, :], acc, mask)
    if snake_out is not None:
        acc = snake_beta(
            acc,
            tl.load(frequency + n, mask=n < N, other=0.0)[None, :],
            tl.load(magnitude + n, mask=n < N, other=0.0)[None, :],
        )
        offset = (
            row * (snake_tail + positions_per_row * upsampling) + snake_tail + position * upsampling
        ) * OUT_CHANNELS
        store_saturated(snake_out + offset[:, None] + n[None, :], acc, mask)


_UNSPECIALIZED = [
    "num_positions", "positions_per_row", "frames", "dilation", "in_tail", "residual_tail", "out_tail", "snake_tail"
]  # fmt: skip
"""Integer arguments whose values must not trigger another compilation."""


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def causal_conv(
    x, weight, bias, residual, out, snake_out, frequency, magnitude, partial_sums, counters, row_table,
    num_positions, positions_per_row, frames, eps, dilation, in_tail, residual_tail, out_tail, snake_tail,
    IN_CHANNELS: tl.constexpr, N: tl.constexpr, OUT_CHANNELS: tl.constexpr, TAPS: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Computes one output tile [BLOCK_M positions, BLOCK_N channels]; grid (output tiles, SPLIT_K).

    T = positions_per_row; num_positions = rows * T. Activations are float32, float16 or bfloat16, accumulation is in
    float32. Outputs and optional inputs that are None are skipped.

    Args:
        x: [rows, in_tail + T, IN_CHANNELS], where in_tail >= (TAPS - 1) * dilation.
        weight: [N, TAPS * IN_CHANNELS] in x's dtype; GATED: [2 N, TAPS * IN_CHANNELS], first half through SiLU.
        bias: [N] float32.
        residual: [rows, residual_tail + T, N], added before the stores.
        out, snake_out: [rows, tail + T * N / OUT_CHANNELS, OUT_CHANNELS]; snake_out receives SnakeBeta of the result.
        frequency, magnitude: [N] float32, SnakeBeta's parameters.
        partial_sums: [tiles, SPLIT_K, BLOCK_M, BLOCK_N] float32 scratch, used with SPLIT_K > 1.
        counters: [tiles] int32, zero before and after the launch.
        row_table, frames: see `codec_frames`.
        NORM: channels of an RMS norm of x whose weight is folded into `weight`, or 0.
    """
    n_tiles: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0)
    split = tl.program_id(1)
    start = (tile // n_tiles) * BLOCK_M
    if not PDL and is_padding(row_table, start, BLOCK_M, num_positions, positions_per_row, frames):
        return
    m = start + tl.arange(0, BLOCK_M)
    n = (tile % n_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    m_clamped = tl.minimum(m, num_positions - 1)
    buffer_position = (m_clamped // positions_per_row).to(tl.int64) * (in_tail + positions_per_row)
    buffer_position += m_clamped % positions_per_row
    x_ptrs = x + (buffer_position + (in_tail - (TAPS - 1) * dilation))[:, None] * IN_CHANNELS + k[None, :]
    w_ptrs = weight + tl.minimum(n, N - 1)[None, :] * (TAPS * IN_CHANNELS) + k[:, None]
    k_steps: tl.constexpr = TAPS * IN_CHANNELS // BLOCK_K
    tl.static_assert(k_steps % SPLIT_K == 0)
    steps: tl.constexpr = k_steps // SPLIT_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sum_squares = tl.zeros((BLOCK_M,), tl.float32)
    if steps == 1:
        # Weights do not depend on the previous kernel: load all of this block's before waiting for it.
        offset = split * BLOCK_K
        w = tl.load(w_ptrs + offset)
        if GATED:
            w_gate = tl.load(w_ptrs + (N * TAPS * IN_CHANNELS + offset))
        grid_dependency_wait(PDL)
        x_offset = (offset // IN_CHANNELS) * (dilation * IN_CHANNELS) + offset % IN_CHANNELS
        values = tl.load(x_ptrs + tl.multiple_of(x_offset, BLOCK_K))
        acc = tl.dot(values, w, acc, input_precision=PRECISION)
        if GATED:
            gate = tl.dot(values, w_gate, gate, input_precision=PRECISION)
        if NORM > 0:
            values_f32 = values.to(tl.float32)
            sum_squares = tl.sum(values_f32 * values_f32, 1)
    else:
        grid_dependency_wait(PDL)
        # Blocks of 64 rows or more use asynchronous tensor core instructions on sm_90 and later. If their operand had a
        # second use in the same loop, Triton 3.6 would allocate one buffer too few and overwrite it while it is read.
        SEPARATE_NORM: tl.constexpr = NORM > 0 and BLOCK_M >= 64
        if SEPARATE_NORM:
            for step in tl.static_range(steps):
                values_f32 = tl.load(x_ptrs + step * BLOCK_K).to(tl.float32)
                sum_squares += tl.sum(values_f32 * values_f32, 1)
        for step in range(steps):
            offset = (split * steps + step) * BLOCK_K
            x_offset = (offset // IN_CHANNELS) * (dilation * IN_CHANNELS) + offset % IN_CHANNELS
            values = tl.load(x_ptrs + tl.multiple_of(x_offset, BLOCK_K))
            acc = tl.dot(values, tl.load(w_ptrs + offset), acc, input_precision=PRECISION)
            if GATED:
                w_gate = tl.load(w_ptrs + (N * TAPS * IN_CHANNELS + offset))
                gate = tl.dot(values, w_gate, gate, input_precision=PRECISION)
            if NORM > 0 and not SEPARATE_NORM:
                values_f32 = values.to(tl.float32)
                sum_squares += tl.sum(values_f32 * values_f32, 1)
    launch_dependents(PDL)
    is_last = True
    if SPLIT_K > 1:
        offsets = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        tile_sums = partial_sums + tile.to(tl.int64) * (SPLIT_K * BLOCK_M * BLOCK_N) + offsets
        acc, gate, is_last = split_k_reduce(acc, gate, tile_sums, BLOCK_M * BLOCK_N, split, counters + tile, SPLIT_K)
    if is_last:
        _epilogue(
            acc, gate, sum_squares, bias, residual, out, snake_out, frequency, magnitude, m, n, num_positions,
            positions_per_row, eps, residual_tail, out_tail, snake_tail, N, OUT_CHANNELS, NORM, GATED, GELU,
        )  # fmt: skip


@triton.jit
def _residual_unit_epilogue(
    acc, bias, residual, out, snake_out, frequency, magnitude, m, n, num_positions, positions_per_row, snake_tail,
    C: tl.constexpr,
):  # fmt: skip
    """Adds bias and residual to `acc` [BLOCK_M, part of C] float32 and stores the result and its activation."""
    mask = (m < num_positions)[:, None]
    offset = m.to(tl.int64)[:, None] * C + n[None, :]
    acc += tl.load(bias + n)[None, :] + tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
    if out is not None:
        store_saturated(out + offset, acc, mask)
    acc = snake_beta(acc, tl.load(frequency + n)[None, :], tl.load(magnitude + n)[None, :])
    row = (m // positions_per_row).to(tl.int64)
    offset = (row * (snake_tail + positions_per_row) + snake_tail + m % positions_per_row) * C
    store_saturated(snake_out + offset[:, None] + n[None, :], acc, mask)


@triton.jit(do_not_specialize=["num_positions", "positions_per_row", "frames", "dilation", "in_tail", "snake_tail"])
def residual_unit(
    x, weight, bias, frequency, magnitude, point_weight, point_bias, residual, out, snake_out, out_frequency,
    out_magnitude, row_table, num_positions, positions_per_row, frames, dilation, in_tail, snake_tail,
    C: tl.constexpr, C_LOW: tl.constexpr, C_HIGH: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Fused residual unit: residual + pointwise(SnakeBeta(causal_conv(x))); grid (position blocks,).

    All C output channels stay in registers, as two parts of power-of-two widths: C = C_LOW + C_HIGH (C_HIGH may be 0).
    T = positions_per_row; num_positions = rows * T.

    Args:
        x: [rows, in_tail + T, C], already activated.
        weight: [C, TAPS * C] and point_weight: [C, C] in x's dtype; bias, point_bias: [C] float32.
        frequency, magnitude: [C] float32, SnakeBeta between the two convolutions.
        residual, out: [num_positions, C]; may be the same tensor; out may be None.
        snake_out: [rows, snake_tail + T, C], receives SnakeBeta of the result with out_frequency, out_magnitude.
        row_table, frames: see `codec_frames`.
    """
    start = tl.program_id(0) * BLOCK_M
    if not PDL and is_padding(row_table, start, BLOCK_M, num_positions, positions_per_row, frames):
        return
    m = start + tl.arange(0, BLOCK_M)
    low = tl.arange(0, C_LOW)
    k = tl.arange(0, BLOCK_K)
    m_clamped = tl.minimum(m, num_positions - 1)
    buffer_position = (m_clamped // positions_per_row).to(tl.int64) * (in_tail + positions_per_row)
    buffer_position += m_clamped % positions_per_row
    x_ptrs = x + (buffer_position + (in_tail - (TAPS - 1) * dilation))[:, None] * C + k[None, :]
    w_low = weight + low[None, :] * (TAPS * C) + k[:, None]
    acc_low = tl.zeros((BLOCK_M, C_LOW), tl.float32)
    if C_HIGH > 0:
        high = C_LOW + tl.arange(0, C_HIGH)
        w_high = weight + high[None, :] * (TAPS * C) + k[:, None]
        acc_high = tl.zeros((BLOCK_M, C_HIGH), tl.float32)
    grid_dependency_wait(PDL)
    for step in range(TAPS * C // BLOCK_K):
        offset = step * BLOCK_K
        values = tl.load(x_ptrs + tl.multiple_of((offset // C) * (dilation * C) + offset % C, BLOCK_K))
        acc_low = tl.dot(values, tl.load(w_low + offset), acc_low, input_precision=PRECISION)
        if C_HIGH > 0:
            acc_high = tl.dot(values, tl.load(w_high + offset), acc_high, input_precision=PRECISION)
    launch_dependents(PDL)
    dtype: tl.constexpr = x.dtype.element_ty
    acc_low += tl.load(bias + low)[None, :]
    hidden_low = snake_beta(acc_low, tl.load(frequency + low)[None, :], tl.load(magnitude + low)[None, :]).to(dtype)
    w = tl.load(point_weight + low[None, :] * C + low[:, None])
    out_low = tl.dot(hidden_low, w, input_precision=PRECISION)
    if C_HIGH > 0:
        acc_high += tl.load(bias + high)[None, :]
        hidden_high = snake_beta(acc_high, tl.load(frequency + high)[None, :], tl.load(magnitude + high)[None, :])
        hidden_high = hidden_high.to(dtype)
        w = tl.load(point_weight + low[None, :] * C + high[:, None])
        out_low = tl.dot(hidden_high, w, out_low, input_precision=PRECISION)
        w = tl.load(point_weight + high[None, :] * C + low[:, None])
        out_high = tl.dot(hidden_low, w, input_precision=PRECISION)
        w = tl.load(point_weight + high[None, :] * C + high[:, None])
        out_high = tl.dot(hidden_high, w, out_high, input_precision=PRECISION)
        _residual_unit_epilogue(
            out_high, point_bias, residual, out, snake_out, out_frequency, out_magnitude, m, high, num_positions,
            positions_per_row, snake_tail, C,
        )  # fmt: skip
    _residual_unit_epilogue(
        out_low, point_bias, residual, out, snake_out, out_frequency, out_magnitude, m, low, num_positions,
        positions_per_row, snake_tail, C,
    )  # fmt: skip
