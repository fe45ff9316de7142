"""Attention within a frame, on a device: a program is a row's key head, and a warp does one of its queries alone.

What `attention._step` says in Triton's language, in Gluon. There, tensor cores want 16 queries where there are two, and
every change of layout is a barrier for all warps; here every thread keeps its elements of at most 16 positions, and no
warp waits for another.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def attend(
    qkv, norms, cosines, sines, positions, table, cache, out, eps, scale,
    POSITION_STRIDE: gl.constexpr, TABLE_STRIDE: gl.constexpr, KV: gl.constexpr, GROUP: gl.constexpr,
    GROUP_P: gl.constexpr, SIZE: gl.constexpr, PAGE: gl.constexpr, WARPS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `attention.step`, of rows with one page each."""
    row, head = gl.program_id(0), gl.program_id(1)
    HALF: gl.constexpr = SIZE // 2
    LANES: gl.constexpr = min(SIZE // 8, 32)
    # [query, position, element], and what is left of it without a position, without an element, without both.
    whole: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 32 // LANES, LANES], [WARPS, 1, 1], [2, 1, 0])
    queries: gl.constexpr = gl.SliceLayout(1, whole)
    scored: gl.constexpr = gl.SliceLayout(2, whole)
    each: gl.constexpr = gl.SliceLayout(1, queries)

    # Neither the weights nor a row's place are written by the kernel before.
    i = gl.arange(0, SIZE, gl.SliceLayout(0, queries))[None, :]
    other = (i + HALF) % SIZE
    position = gl.load(positions + row * POSITION_STRIDE)
    page = gl.load(table + row * TABLE_STRIDE).to(gl.int64)
    cosine = gl.load(cosines + position * HALF + i % HALF)
    sine = gl.load(sines + position * HALF + i % HALF)
    sine = gl.where(i < HALF, -sine, sine)
    q_own = gl.load(norms + i).to(gl.float32) * cosine * scale
    q_other = gl.load(norms + other).to(gl.float32) * sine * scale
    k_own = gl.load(norms + SIZE + i).to(gl.float32) * cosine
    k_other = gl.load(norms + SIZE + other).to(gl.float32) * sine
    # What came before is of an earlier code: it was there before the kernel before this one.
    slot = gl.arange(0, PAGE, gl.SliceLayout(0, gl.SliceLayout(2, whole)))[None, :, None]
    element = gl.arange(0, SIZE, gl.SliceLayout(0, gl.SliceLayout(1, whole)))[None, None, :]
    keys = cache + (page * 2 * KV + head) * (PAGE * SIZE)
    values = keys + KV * PAGE * SIZE
    k = gl.load(keys + slot * SIZE + element, mask=slot < position, other=0.0)
    v = gl.load(values + slot * SIZE + element, mask=slot < position, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()

    kind: gl.constexpr = out.dtype.element_ty
    base = qkv + row * (KV * (GROUP + 2) * SIZE)
    g = gl.arange(0, GROUP_P, gl.SliceLayout(1, queries))[:, None]
    q_at = base + (head * GROUP + g) * SIZE
    k_at = base + (KV * GROUP + head) * SIZE
    q = gl.load(q_at + i, mask=g < GROUP, other=0.0).to(gl.float32)
    q2 = gl.load(q_at + other, mask=g < GROUP, other=0.0).to(gl.float32)
    new_k = gl.load(k_at + i).to(gl.float32)
    new_k2 = gl.load(k_at + other).to(gl.float32)
    new_v = gl.load(k_at + KV * SIZE + i)
    q = (q * q_own + q2 * q_other) * gl.rsqrt(gl.sum(q * q, 1) / SIZE + eps)[:, None]
    new_k = (new_k * k_own + new_k2 * k_other) * gl.rsqrt(gl.sum(new_k * new_k, 1) / SIZE + eps)[:, None]
    new_k = new_k.to(kind)
    if PDL:
        # Only now: the next product would read its weights while this reads queries, keys and values.
        tl.extra.cuda.gdc_launch_dependents()
    gl.store(keys + position * SIZE + i, new_k)
    gl.store(values + position * SIZE + i, new_v)

    # The new position comes from registers.
    best = gl.sum(q * new_k.to(gl.float32), 1)
    scores = gl.sum(q[:, None, :] * k.to(gl.float32), 2)
    past = gl.arange(0, PAGE, gl.SliceLayout(0, scored))[None, :] < position
    scores = gl.where(past, scores, float("-inf"))
    top = gl.maximum(best, gl.convert_layout(gl.max(scores, 1), each))
    weights = gl.exp(scores - gl.convert_layout(top, gl.SliceLayout(1, scored))[:, None])
    new = gl.exp(best - top)
    mass = new + gl.convert_layout(gl.sum(weights, 1), each)
    total = gl.sum(weights[:, :, None] * v.to(gl.float32), 1) + new[:, None] * new_v.to(gl.float32)
    to = out + row * (KV * GROUP * SIZE) + (head * GROUP + g) * SIZE + i
    gl.store(to, (total / mass[:, None]).to(kind), mask=g < GROUP)
