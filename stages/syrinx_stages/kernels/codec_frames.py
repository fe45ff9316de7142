"""The codec's kernels besides convolutions: stream state, code embedding, attention, depthwise and output layers.

In all docstrings: F = frames per row of a call, T = positions per row at a layer's rate. Activations are float32,
float16 or bfloat16; arithmetic is in float32.
"""

import triton
import triton.language as tl

from .codec_math import cosine, round_half_even, sine, store_saturated
from .launch import grid_dependency_wait, launch_dependents

# Columns of the row table [rows, ROW_COLUMNS] int32, which describes each row of a call.
ROW_COLUMNS = tl.constexpr(4)
ROW_SLOT = tl.constexpr(0)
"""Slot of the stream's state."""
ROW_PAST_FRAMES = tl.constexpr(1)
"""Frames decoded by earlier calls. With 0 the slot's content belongs to a previous stream and is not read."""
ROW_NEW_FRAMES = tl.constexpr(2)
"""Frames to decode in this call. A padding row has 0 and does not modify any slot. Blocks of padding alone end at once
where there are too many blocks to run together, so that activations of padding are of any former call."""

# Columns of the segment table [segments, SEGMENT_COLUMNS] int64: which part of a state row belongs where in the
# activation buffers. All offsets are in elements and multiples of 16.
SEGMENT_COLUMNS = tl.constexpr(5)
SEGMENT_STATE_OFFSET = tl.constexpr(0)
SEGMENT_SIZE = tl.constexpr(1)
SEGMENT_BUFFER_OFFSET = tl.constexpr(2)
SEGMENT_ROW_STRIDE = tl.constexpr(3)
SEGMENT_FRAME_STRIDE = tl.constexpr(4)


@triton.jit
def is_padding(row_table, start, size, num_positions, positions_per_row, frames):
    """Returns whether `size` positions of rows * T belong to no frame that is decoded. Padding rows come last."""
    row = start // positions_per_row
    last = (tl.minimum(start + size, num_positions) - 1) // positions_per_row
    following = tl.minimum(row + 1, last)
    new_frames = tl.load(row_table + row * ROW_COLUMNS + ROW_NEW_FRAMES)
    is_used = (start % positions_per_row) * frames < new_frames * positions_per_row
    is_used |= (following > row) & (tl.load(row_table + following * ROW_COLUMNS + ROW_NEW_FRAMES) > 0)
    return not is_used


@triton.jit
def copy_state(
    state, buffers, segments, row_table, STATE_WIDTH: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Copies each row's state to the starts of the activation buffers; zeros for a new stream. Grid (segments, rows).

    STORE: copies the last positions of each row's new frames back to the state instead. buffers: all activation
    buffers, flat, in the dtype of state [slots, STATE_WIDTH]. Segments have at most BLOCK elements each.
    """
    launch_dependents(PDL)
    row = tl.program_id(1)
    segment = segments + tl.program_id(0) * SEGMENT_COLUMNS
    # multiple_of lets the compiler use 16-byte accesses.
    start = tl.multiple_of(tl.load(segment + SEGMENT_STATE_OFFSET), 16)
    size = tl.multiple_of(tl.load(segment + SEGMENT_SIZE), 16)
    buffer_offset = tl.multiple_of(tl.load(segment + SEGMENT_BUFFER_OFFSET), 16)
    row_stride = tl.multiple_of(tl.load(segment + SEGMENT_ROW_STRIDE), 16)
    frame_stride = tl.multiple_of(tl.load(segment + SEGMENT_FRAME_STRIDE), 16)
    i = tl.arange(0, BLOCK)
    grid_dependency_wait(PDL)
    slot = tl.load(row_table + row * ROW_COLUMNS + ROW_SLOT).to(tl.int64)
    state_ptrs = state + slot * STATE_WIDTH + start + i
    buffer_ptrs = buffers + buffer_offset + row * row_stride + i
    if STORE:
        new_frames = tl.load(row_table + row * ROW_COLUMNS + ROW_NEW_FRAMES)
        mask = (i < size) & (new_frames > 0)
        tl.store(state_ptrs, tl.load(buffer_ptrs + new_frames * frame_stride, mask=mask, other=0.0), mask=mask)
    else:
        past_frames = tl.load(row_table + row * ROW_COLUMNS + ROW_PAST_FRAMES)
        values = tl.load(state_ptrs, mask=(i < size) & (past_frames > 0), other=0.0)
        tl.store(buffer_ptrs, values, mask=i < size)


@triton.jit(do_not_specialize=["frames"])
def embed_codes(
    codes, tables, out, frames,
    CODEBOOKS: tl.constexpr, CODEBOOK_SIZE: tl.constexpr, D: tl.constexpr, OUT_TAIL: tl.constexpr,
    BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums one table row per codebook for each frame. Grid (rows * F, blocks of D).

    codes: [rows * F, CODEBOOKS] int16. tables: [CODEBOOKS * CODEBOOK_SIZE, D]. out: [rows, OUT_TAIL + F, D].
    """
    launch_dependents(PDL)
    frame = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    grid_dependency_wait(PDL)
    total = tl.zeros((BLOCK_D,), tl.float32)
    for codebook in tl.static_range(CODEBOOKS):
        code = tl.load(codes + frame * CODEBOOKS + codebook).to(tl.int32) + codebook * CODEBOOK_SIZE
        total += tl.load(tables + code * D + d, mask=d < D, other=0.0).to(tl.float32)
    out_position = (frame // frames) * (OUT_TAIL + frames) + OUT_TAIL + frame % frames
    store_saturated(out + out_position * D + d, total, d < D)


@triton.jit(do_not_specialize=["frames"])
def sliding_window_attention(
    qkv, kv_cache, row_table, inverse_frequencies, out, frames, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_HALF: tl.constexpr,
    BLOCK_DIM: tl.constexpr, WINDOW: tl.constexpr, CACHE_LENGTH: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_PAST: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotary embedding, KV cache update and attention to the last WINDOW frames. Grid (rows, KV_HEADS).

    Args:
        qkv: [rows * F, (HEADS + 2 * KV_HEADS) * HEAD_DIM].
        kv_cache: [slots, 2, CACHE_LENGTH, KV_HEADS * HEAD_DIM], a ring buffer: position p is at p % CACHE_LENGTH.
            CACHE_LENGTH >= WINDOW - 1 + F, so that this call's writes do not overwrite what it reads.
        inverse_frequencies: [HEAD_DIM / 2] float32, of the rotary embedding.
        out: [rows * F, HEADS * HEAD_DIM].
    """
    launch_dependents(PDL)
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    qkv_width: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    f = tl.arange(0, BLOCK_F)
    half = tl.arange(0, BLOCK_HALF)
    dim = tl.arange(0, BLOCK_DIM)
    past = tl.arange(0, BLOCK_PAST)
    half_mask = (half < HEAD_DIM // 2)[None, :]
    dim_mask = (dim < HEAD_DIM)[None, :]
    frequencies = tl.load(inverse_frequencies + half, mask=half < HEAD_DIM // 2, other=0.0)
    grid_dependency_wait(PDL)
    slot = tl.load(row_table + row * ROW_COLUMNS + ROW_SLOT).to(tl.int64)
    past_frames = tl.load(row_table + row * ROW_COLUMNS + ROW_PAST_FRAMES)
    new_frames = tl.load(row_table + row * ROW_COLUMNS + ROW_NEW_FRAMES)
    if new_frames == 0:
        return
    angle = (past_frames + f).to(tl.float32)[:, None] * frequencies[None, :]
    cos = cosine(angle)
    sin = sine(angle)
    new_mask = (f < new_frames)[:, None]
    qkv_offset = (row * frames + f)[:, None] * qkv_width
    dtype: tl.constexpr = qkv.dtype.element_ty

    # Keys and values of this call.
    key_ptrs = qkv + qkv_offset + (HEADS + kv_head) * HEAD_DIM
    low = tl.load(key_ptrs + half[None, :], mask=new_mask & half_mask, other=0.0).to(tl.float32)
    high = tl.load(key_ptrs + HEAD_DIM // 2 + half[None, :], mask=new_mask & half_mask, other=0.0).to(tl.float32)
    key_low = (low * cos - high * sin).to(dtype)
    key_high = (high * cos + low * sin).to(dtype)
    value_ptrs = qkv + qkv_offset + (HEADS + KV_HEADS + kv_head) * HEAD_DIM
    value = tl.load(value_ptrs + dim[None, :], mask=new_mask & dim_mask, other=0.0)

    # Keys and values of earlier calls.
    k_cache = kv_cache + slot * (2 * CACHE_LENGTH * KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
    v_cache = k_cache + CACHE_LENGTH * KV_HEADS * HEAD_DIM
    position = past_frames - (WINDOW - 1) + past
    cached = (past < WINDOW - 1) & (position >= 0)
    cached_mask = cached[:, None]
    offset = (((position + CACHE_LENGTH) % CACHE_LENGTH) * (KV_HEADS * HEAD_DIM))[:, None]
    old_low = tl.load(k_cache + offset + half[None, :], mask=cached_mask & half_mask, other=0.0)
    old_high = tl.load(k_cache + HEAD_DIM // 2 + offset + half[None, :], mask=cached_mask & half_mask, other=0.0)
    old_value = tl.load(v_cache + offset + dim[None, :], mask=cached_mask & dim_mask, other=0.0)

    new_offset = (((past_frames + f) % CACHE_LENGTH) * (KV_HEADS * HEAD_DIM))[:, None]
    tl.store(k_cache + new_offset + half[None, :], key_low, mask=new_mask & half_mask)
    tl.store(k_cache + HEAD_DIM // 2 + new_offset + half[None, :], key_high, mask=new_mask & half_mask)
    tl.store(v_cache + new_offset + dim[None, :], value, mask=new_mask & dim_mask)

    old_attended = cached[None, :] & (past[None, :] >= f[:, None])
    new_attended = (f[None, :] <= f[:, None]) & (f[None, :] > f[:, None] - WINDOW) & (f < new_frames)[None, :]
    for query_head in tl.static_range(HEADS // KV_HEADS):
        head = kv_head * (HEADS // KV_HEADS) + query_head
        query_ptrs = qkv + qkv_offset + head * HEAD_DIM
        low = tl.load(query_ptrs + half[None, :], mask=new_mask & half_mask, other=0.0).to(tl.float32)
        high = tl.load(query_ptrs + HEAD_DIM // 2 + half[None, :], mask=new_mask & half_mask, other=0.0)
        high = high.to(tl.float32)
        query_low = (low * cos - high * sin).to(dtype)
        query_high = (high * cos + low * sin).to(dtype)
        old = tl.dot(query_low, tl.trans(old_low), input_precision=PRECISION)
        old = tl.dot(query_high, tl.trans(old_high), old, input_precision=PRECISION)
        old = tl.where(old_attended, old * scale, float("-inf"))
        new = tl.dot(query_low, tl.trans(key_low), input_precision=PRECISION)
        new = tl.dot(query_high, tl.trans(key_high), new, input_precision=PRECISION)
        new = tl.where(new_attended, new * scale, float("-inf"))
        # The lower bound keeps padding frames, which attend to nothing, free of NaN.
        row_max = tl.maximum(tl.maximum(tl.max(old, 1), tl.max(new, 1)), -1e30)
        old = tl.exp(old - row_max[:, None])
        new = tl.exp(new - row_max[:, None])
        acc = tl.dot(old.to(dtype), old_value, input_precision=PRECISION)
        acc = tl.dot(new.to(dtype), value, acc, input_precision=PRECISION)
        denominator = tl.sum(old, 1) + tl.sum(new, 1)
        result = acc / tl.where(denominator > 0, denominator, 1.0)[:, None]
        out_ptrs = out + (row * frames + f)[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + dim[None, :]
        store_saturated(out_ptrs, result, new_mask & dim_mask)


@triton.jit(do_not_specialize=["positions_per_row"])
def depthwise_conv_norm(
    x, weight, bias, out, positions_per_row, eps,
    C: tl.constexpr, REAL_CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK_C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Causal depthwise convolution followed by a layer norm without affine parameters. Grid (rows * T,).

    x: [rows, TAPS - 1 + T, C]; the last C - REAL_CHANNELS channels are zero padding. weight: [TAPS, C] and bias: [C],
    both float32. out: [rows * T, C].
    """
    launch_dependents(PDL)
    position = tl.program_id(0)
    c = tl.arange(0, BLOCK_C)
    buffer_position = (position // positions_per_row).to(tl.int64) * (TAPS - 1 + positions_per_row)
    x_offset = (buffer_position + position % positions_per_row) * C
    total = tl.load(bias + c, mask=c < C, other=0.0)
    grid_dependency_wait(PDL)
    for tap in tl.static_range(TAPS):
        values = tl.load(x + x_offset + tap * C + c, mask=c < C, other=0.0).to(tl.float32)
        total += values * tl.load(weight + tap * C + c, mask=c < C, other=0.0)
    centered = tl.where(c < REAL_CHANNELS, total - tl.sum(total, 0) / REAL_CHANNELS, 0.0)
    result = centered * tl.rsqrt(tl.sum(centered * centered, 0) / REAL_CHANNELS + eps)
    store_saturated(out + position.to(tl.int64) * C + c, result, c < C)


@triton.jit(do_not_specialize=["num_positions", "positions_per_row", "frames"])
def waveform_conv(
    x, weight, bias, pcm, row_table, num_positions, positions_per_row, frames,
    C: tl.constexpr, TAPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The last convolution: clamps to [-1, 1] and rounds to 16-bit samples. Grid (blocks of rows * T positions,).

    x: [rows, TAPS - 1 + T, C]. weight: [TAPS, C] and bias: [1], both float32. pcm: [rows * T] int16.
    """
    launch_dependents(PDL)
    start = tl.program_id(0) * BLOCK_M
    if not PDL and is_padding(row_table, start, BLOCK_M, num_positions, positions_per_row, frames):
        return
    m = start + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    m_clamped = tl.minimum(m, num_positions - 1)
    buffer_position = (m_clamped // positions_per_row).to(tl.int64) * (TAPS - 1 + positions_per_row)
    buffer_position += m_clamped % positions_per_row
    x_ptrs = x + buffer_position[:, None] * C + c[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    grid_dependency_wait(PDL)
    for tap in tl.static_range(TAPS):
        values = tl.load(x_ptrs + tap * C, mask=(c < C)[None, :], other=0.0).to(tl.float32)
        acc += values * tl.load(weight + tap * C + c, mask=c < C, other=0.0)[None, :]
    sample = tl.sum(acc, 1) + tl.load(bias)
    sample = tl.minimum(tl.maximum(sample, -1.0), 1.0) * 32767.0
    tl.store(pcm + m, round_half_even(sample).to(tl.int16), mask=m < num_positions)
