"""The codec's kernels that are no matrix products: the state's way in and out, code lookup, attention, the wave."""

from __future__ import annotations

import triton
import triton.language as tl

from .codec_math import cosine, nearest, put, sine
from .launch import grid_dependency_wait, launch_dependents

# Columns of `rows` [rows, ROW] int32: what a call knows of each of its rows.
ROW = tl.constexpr(4)
SLOT = tl.constexpr(0)
PAST = tl.constexpr(1)
"""Frames decoded before; with none, the slot's content is an old request's and is not read."""
FRESH = tl.constexpr(2)
"""Frames to decode now; a padded row has none, and changes no slot."""

# Columns of a segment table [blocks, SEGMENT] int64: parts of a state row, and where they are in the buffers.
SEGMENT = tl.constexpr(5)


@triton.jit
def gather(arena, buffers, segments, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Copies each row's tails to the beginnings of the buffers; zeros for a request of which nothing was decoded."""
    launch_dependents(PDL)
    row = tl.program_id(1)
    segment = segments + tl.program_id(0) * SEGMENT
    # Whole 16-byte accesses, if the compiler knows that they are.
    start = tl.multiple_of(tl.load(segment), 16)
    size = tl.multiple_of(tl.load(segment + 1), 16)
    first = tl.multiple_of(tl.load(segment + 2), 16)
    stride = tl.multiple_of(tl.load(segment + 3), 16)
    at = tl.arange(0, BLOCK)
    grid_dependency_wait(PDL)
    slot = tl.load(rows + row * ROW + SLOT).to(tl.int64)
    past = tl.load(rows + row * ROW + PAST)
    source = arena + slot * WIDTH + start
    target = buffers + first + row * stride
    tail = tl.load(source + at, mask=(at < size) & (past > 0), other=0.0)
    tl.store(target + at, tail, mask=at < size)


@triton.jit
def scatter(arena, buffers, segments, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Copies the last positions of each row's fresh frames back to its slot."""
    launch_dependents(PDL)
    row = tl.program_id(1)
    segment = segments + tl.program_id(0) * SEGMENT
    # Whole 16-byte accesses, if the compiler knows that they are.
    start = tl.multiple_of(tl.load(segment), 16)
    size = tl.multiple_of(tl.load(segment + 1), 16)
    first = tl.multiple_of(tl.load(segment + 2), 16)
    stride = tl.multiple_of(tl.load(segment + 3), 16)
    per_frame = tl.multiple_of(tl.load(segment + 4), 16)
    at = tl.arange(0, BLOCK)
    grid_dependency_wait(PDL)
    slot = tl.load(rows + row * ROW + SLOT).to(tl.int64)
    fresh = tl.load(rows + row * ROW + FRESH)
    source = buffers + first + row * stride + fresh * per_frame
    tail = tl.load(source + at, mask=(at < size) & (fresh > 0), other=0.0)
    tl.store(arena + slot * WIDTH + start + at, tail, mask=(at < size) & (fresh > 0))


@triton.jit(do_not_specialize=["frames"])
def look_up(
    codes, tables, out, frames,
    BOOKS: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, OUT_TAIL: tl.constexpr, BD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Adds up one row of each quantizer's table. codes: [rows x frames, BOOKS] int16; out: [rows, tail + frames, D]."""
    launch_dependents(PDL)
    frame = tl.program_id(0)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    grid_dependency_wait(PDL)
    total = tl.zeros((BD,), tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.load(codes + frame * BOOKS + book).to(tl.int32) + book * SIZE
        total += tl.load(tables + code * D + d, mask=d < D, other=0.0).to(tl.float32)
    at = (frame // frames) * (OUT_TAIL + frames) + OUT_TAIL + frame % frames
    put(out + at * D + d, total, d < D)


@triton.jit(do_not_specialize=["frames"])
def attend(
    qkv, ring, rows, inverse, out, frames, scale,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, FULL: tl.constexpr,
    WINDOW: tl.constexpr, RING: tl.constexpr, BF: tl.constexpr, BP: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Rotary embedding, the ring's update, and attention of each frame to its window, for one key head of one row.

    qkv: [rows x frames, (HEADS + 2 GROUPS) x DIM]; ring: [slots, 2, RING, GROUPS x DIM], where position p lies at
    p % RING; inverse: [DIM / 2] float32, the rotary frequencies; out: [rows x frames, HEADS x DIM]. RING is at least
    WINDOW - 1 + frames, so what is written now is not among what is read.
    """
    launch_dependents(PDL)
    row = tl.program_id(0)
    group = tl.program_id(1)
    width: tl.constexpr = (HEADS + 2 * GROUPS) * DIM
    f = tl.arange(0, BF)
    half = tl.arange(0, HALF)
    full = tl.arange(0, FULL)
    back = tl.arange(0, BP)
    in_half = (half < DIM // 2)[None, :]
    in_full = (full < DIM)[None, :]
    frequencies = tl.load(inverse + half, mask=half < DIM // 2, other=0.0)
    grid_dependency_wait(PDL)
    slot = tl.load(rows + row * ROW + SLOT).to(tl.int64)
    past = tl.load(rows + row * ROW + PAST)
    fresh = tl.load(rows + row * ROW + FRESH)
    angle = (past + f).to(tl.float32)[:, None] * frequencies[None, :]
    cos = cosine(angle)
    sin = sine(angle)
    own = (f < frames)[:, None]
    at = (row * frames + f)[:, None] * width
    kind: tl.constexpr = qkv.dtype.element_ty
    key = qkv + at + (HEADS + group) * DIM
    low = tl.load(key + half[None, :], mask=own & in_half, other=0.0).to(tl.float32)
    high = tl.load(key + DIM // 2 + half[None, :], mask=own & in_half, other=0.0).to(tl.float32)
    key_low = (low * cos - high * sin).to(kind)
    key_high = (high * cos + low * sin).to(kind)
    value = tl.load(qkv + at + (HEADS + GROUPS + group) * DIM + full[None, :], mask=own & in_full, other=0.0)
    keys = ring + slot * (2 * RING * GROUPS * DIM) + group * DIM
    values = keys + RING * GROUPS * DIM
    position = past - (WINDOW - 1) + back
    heard = (back < WINDOW - 1) & (position >= 0)
    old_at = ((position + RING) % RING) * (GROUPS * DIM)
    old_low = tl.load(keys + old_at[:, None] + half[None, :], mask=heard[:, None] & in_half, other=0.0)
    old_high = tl.load(keys + DIM // 2 + old_at[:, None] + half[None, :], mask=heard[:, None] & in_half, other=0.0)
    old_value = tl.load(values + old_at[:, None] + full[None, :], mask=heard[:, None] & in_full, other=0.0)
    new_at = (((past + f) % RING) * (GROUPS * DIM))[:, None]
    written = (f < fresh)[:, None]
    tl.store(keys + new_at + half[None, :], key_low, mask=written & in_half)
    tl.store(keys + DIM // 2 + new_at + half[None, :], key_high, mask=written & in_half)
    tl.store(values + new_at + full[None, :], value, mask=written & in_full)
    old_reach = heard[None, :] & (back[None, :] >= f[:, None])
    new_reach = (f[None, :] <= f[:, None]) & (f[None, :] > f[:, None] - WINDOW) & (f < frames)[None, :]
    for one in tl.static_range(HEADS // GROUPS):
        head = group * (HEADS // GROUPS) + one
        query = qkv + at + head * DIM
        low = tl.load(query + half[None, :], mask=own & in_half, other=0.0).to(tl.float32)
        high = tl.load(query + DIM // 2 + half[None, :], mask=own & in_half, other=0.0).to(tl.float32)
        query_low = (low * cos - high * sin).to(kind)
        query_high = (high * cos + low * sin).to(kind)
        old = tl.dot(query_low, tl.trans(old_low), input_precision=PRECISION)
        old = tl.dot(query_high, tl.trans(old_high), old, input_precision=PRECISION)
        old = tl.where(old_reach, old * scale, float("-inf"))
        new = tl.dot(query_low, tl.trans(key_low), input_precision=PRECISION)
        new = tl.dot(query_high, tl.trans(key_high), new, input_precision=PRECISION)
        new = tl.where(new_reach, new * scale, float("-inf"))
        largest = tl.maximum(tl.maximum(tl.max(old, 1), tl.max(new, 1)), -1e30)
        old = tl.exp(old - largest[:, None])
        new = tl.exp(new - largest[:, None])
        total = tl.dot(old.to(kind), old_value, input_precision=PRECISION)
        total = tl.dot(new.to(kind), value, total, input_precision=PRECISION)
        share = tl.sum(old, 1) + tl.sum(new, 1)
        result = total / tl.where(share > 0, share, 1.0)[:, None]
        to = out + (row * frames + f)[:, None] * (HEADS * DIM) + head * DIM + full[None, :]
        put(to, result, own & in_full)


@triton.jit(do_not_specialize=["positions"])
def depthwise_norm(
    x, weight, bias, out, positions, eps,
    C: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A depthwise convolution, and a layer norm without weights: [rows, TAPS - 1 + positions, C] to [count, C].

    weight: [TAPS, C] and bias [C] float32; of C channels, CHANNELS are real and the others zero.
    """
    launch_dependents(PDL)
    at = tl.program_id(0)
    c = tl.arange(0, BC)
    first = ((at // positions).to(tl.int64) * (TAPS - 1 + positions) + at % positions) * C
    total = tl.load(bias + c, mask=c < C, other=0.0)
    grid_dependency_wait(PDL)
    for tap in tl.static_range(TAPS):
        values = tl.load(x + first + tap * C + c, mask=c < C, other=0.0).to(tl.float32)
        total += values * tl.load(weight + tap * C + c, mask=c < C, other=0.0)
    centred = tl.where(c < CHANNELS, total - tl.sum(total, 0) / CHANNELS, 0.0)
    result = centred * tl.rsqrt(tl.sum(centred * centred, 0) / CHANNELS + eps)
    put(out + at.to(tl.int64) * C + c, result, c < C)


@triton.jit(do_not_specialize=["count", "positions"])
def wave(
    x, weight, bias, pcm, count, positions,
    C: tl.constexpr, TAPS: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The last convolution, to 16-bit samples: [rows, TAPS - 1 + positions, C] to [count] int16."""
    launch_dependents(PDL)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, BC)
    held = tl.minimum(m, count - 1)
    first = (held // positions).to(tl.int64) * (TAPS - 1 + positions) + held % positions
    x_at = x + first[:, None] * C + c[None, :]
    total = tl.zeros((BM, BC), tl.float32)
    grid_dependency_wait(PDL)
    for tap in tl.static_range(TAPS):
        values = tl.load(x_at + tap * C, mask=(c < C)[None, :], other=0.0).to(tl.float32)
        total += values * tl.load(weight + tap * C + c, mask=c < C, other=0.0)[None, :]
    level = tl.sum(total, 1) + tl.load(bias)
    level = tl.minimum(tl.maximum(level, -1.0), 1.0) * 32767.0
    tl.store(pcm + m, nearest(level).to(tl.int16), mask=m < count)
