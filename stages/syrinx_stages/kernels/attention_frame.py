"""The attention kernel of the code predictor: a program computes one key head of a row, and a warp one of its queries.

Computes what `attention._decode_kernel` does, in Gluon. There, tensor cores need 16 queries where only two exist, and
every layout conversion is a barrier for all warps. Here every thread keeps its elements of at most 16 positions in
registers, and no warp waits for another. It uses no instruction that is newer than Ampere (sm_80), apart from PDL.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def frame_attention_kernel(
    qkv, norms, cosines, sines, positions, page_table, cache, out, eps, scale,
    POSITION_STRIDE: gl.constexpr, TABLE_STRIDE: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr,
    GROUP_POW2: gl.constexpr, HEAD_SIZE: gl.constexpr, PAGE_SIZE: gl.constexpr, WARPS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `attention.decode_attention`; every row has one page."""
    row, head = gl.program_id(0), gl.program_id(1)
    HALF: gl.constexpr = HEAD_SIZE // 2
    LANES: gl.constexpr = min(HEAD_SIZE // 8, 32)
    # [query, position, element], and its slices without position, without element, and without both.
    whole: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 32 // LANES, LANES], [WARPS, 1, 1], [2, 1, 0])
    queries: gl.constexpr = gl.SliceLayout(1, whole)
    scored: gl.constexpr = gl.SliceLayout(2, whole)
    each: gl.constexpr = gl.SliceLayout(1, queries)

    # The previous kernel writes neither the weights nor the page table, so these loads need not wait for it.
    i = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, queries))[None, :]
    other = (i + HALF) % HEAD_SIZE
    position = gl.load(positions + row * POSITION_STRIDE)
    page = gl.load(page_table + row * TABLE_STRIDE).to(gl.int64)
    cosine = gl.load(cosines + position * HALF + i % HALF)
    sine = gl.load(sines + position * HALF + i % HALF)
    sine = gl.where(i < HALF, -sine, sine)
    q_own = gl.load(norms + i).to(gl.float32) * cosine * scale
    q_other = gl.load(norms + other).to(gl.float32) * sine * scale
    k_own = gl.load(norms + HEAD_SIZE + i).to(gl.float32) * cosine
    k_other = gl.load(norms + HEAD_SIZE + other).to(gl.float32) * sine
    # Earlier positions belong to earlier codes: they were written before the previous kernel started.
    past = gl.arange(0, PAGE_SIZE, gl.SliceLayout(0, gl.SliceLayout(2, whole)))[None, :, None]
    element = gl.arange(0, HEAD_SIZE, gl.SliceLayout(0, gl.SliceLayout(1, whole)))[None, None, :]
    keys = cache + (page * 2 * KV_HEADS + head) * (PAGE_SIZE * HEAD_SIZE)
    values = keys + KV_HEADS * PAGE_SIZE * HEAD_SIZE
    k = gl.load(keys + past * HEAD_SIZE + element, mask=past < position, other=0.0)
    v = gl.load(values + past * HEAD_SIZE + element, mask=past < position, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()

    dtype: gl.constexpr = out.dtype.element_ty
    base = qkv + row * (KV_HEADS * (GROUP + 2) * HEAD_SIZE)
    g = gl.arange(0, GROUP_POW2, gl.SliceLayout(1, queries))[:, None]
    q_ptrs = base + (head * GROUP + g) * HEAD_SIZE
    k_ptrs = base + (KV_HEADS * GROUP + head) * HEAD_SIZE
    q = gl.load(q_ptrs + i, mask=g < GROUP, other=0.0).to(gl.float32)
    q2 = gl.load(q_ptrs + other, mask=g < GROUP, other=0.0).to(gl.float32)
    new_k = gl.load(k_ptrs + i).to(gl.float32)
    new_k2 = gl.load(k_ptrs + other).to(gl.float32)
    new_v = gl.load(k_ptrs + KV_HEADS * HEAD_SIZE + i)
    q = (q * q_own + q2 * q_other) * gl.rsqrt(gl.sum(q * q, 1) / HEAD_SIZE + eps)[:, None]
    new_k = (new_k * k_own + new_k2 * k_other) * gl.rsqrt(gl.sum(new_k * new_k, 1) / HEAD_SIZE + eps)[:, None]
    new_k = new_k.to(dtype)
    if PDL:
        # Not earlier: the next product would read its weights while this kernel reads queries, keys and values.
        tl.extra.cuda.gdc_launch_dependents()
    gl.store(keys + position * HEAD_SIZE + i, new_k)
    gl.store(values + position * HEAD_SIZE + i, new_v)

    # The new position's key and value come from registers.
    own_score = gl.sum(q * new_k.to(gl.float32), 1)
    scores = gl.sum(q[:, None, :] * k.to(gl.float32), 2)
    is_past = gl.arange(0, PAGE_SIZE, gl.SliceLayout(0, scored))[None, :] < position
    scores = gl.where(is_past, scores, float("-inf"))
    top = gl.maximum(own_score, gl.convert_layout(gl.max(scores, 1), each))
    weights = gl.exp(scores - gl.convert_layout(top, gl.SliceLayout(1, scored))[:, None])
    own_weight = gl.exp(own_score - top)
    mass = own_weight + gl.convert_layout(gl.sum(weights, 1), each)
    total = gl.sum(weights[:, :, None] * v.to(gl.float32), 1) + own_weight[:, None] * new_v.to(gl.float32)
    out_ptrs = out + row * (KV_HEADS * GROUP * HEAD_SIZE) + (head * GROUP + g) * HEAD_SIZE + i
    gl.store(out_ptrs, (total / mass[:, None]).to(dtype), mask=g < GROUP)
