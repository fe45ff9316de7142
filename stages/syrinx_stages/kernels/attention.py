"""Attention over a paged key-value cache, fused with query and key norms, rotary embedding and the cache write.

The cache is [pages, 2, KV heads, page size, head size]; its keys are normalized and rotated. The page table is int32
[rows, pages]: each row's pages in order. Head vectors are processed as two halves, as the rotary embedding pairs them.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from .attention_frame import frame_attention_kernel
from .launch import INTERPRETED, grid_dependency_wait, launch, launch_dependents, supports_pdl


@triton.jit
def _load_norms(norms, HEAD_SIZE: tl.constexpr):
    """Returns the halves of the query norm's and the key norm's weights, in float32."""
    HALF: tl.constexpr = HEAD_SIZE // 2
    i = tl.arange(0, HALF)
    return (
        tl.load(norms + i).to(tl.float32),
        tl.load(norms + HALF + i).to(tl.float32),
        tl.load(norms + HEAD_SIZE + i).to(tl.float32),
        tl.load(norms + HEAD_SIZE + HALF + i).to(tl.float32),
    )


@triton.jit
def _norm_rope_cache(
    qkv, norms, cos, sin, cache, page, position, mask, head, eps, scale, dtype: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_POW2: tl.constexpr, HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Normalizes and rotates one key head and its queries; writes key and value to the cache.

    qkv: pointer to one row [(GROUP + 2) * KV_HEADS * HEAD_SIZE]. norms: see `_load_norms`. cos, sin: float32
    [HEAD_SIZE / 2], of the row's position. mask: None, or whether to write to the cache. head: of the keys.
    Returns the halves of the scaled queries, float32 [GROUP_POW2, HEAD_SIZE / 2], of the key and of the value.
    """
    HALF: tl.constexpr = HEAD_SIZE // 2
    i = tl.arange(0, HALF)
    g = tl.arange(0, GROUP_POW2)
    q_weight1, q_weight2, k_weight1, k_weight2 = norms
    q_mask = (g < GROUP)[:, None]
    q_ptrs = qkv + (head * GROUP + g[:, None]) * HEAD_SIZE + i[None, :]
    q1 = tl.load(q_ptrs, mask=q_mask, other=0.0).to(tl.float32)
    q2 = tl.load(q_ptrs + HALF, mask=q_mask, other=0.0).to(tl.float32)
    q_scale = tl.rsqrt(tl.sum(q1 * q1 + q2 * q2, 1) / HEAD_SIZE + eps)[:, None]
    q1 *= q_scale * q_weight1[None, :]
    q2 *= q_scale * q_weight2[None, :]
    query1 = (q1 * cos[None, :] - q2 * sin[None, :]) * scale
    query2 = (q2 * cos[None, :] + q1 * sin[None, :]) * scale

    k_ptrs = qkv + (KV_HEADS * GROUP + head) * HEAD_SIZE + i
    k1 = tl.load(k_ptrs).to(tl.float32)
    k2 = tl.load(k_ptrs + HALF).to(tl.float32)
    k_scale = tl.rsqrt(tl.sum(k1 * k1 + k2 * k2, 0) / HEAD_SIZE + eps)
    k1 *= k_scale * k_weight1
    k2 *= k_scale * k_weight2
    key1 = (k1 * cos - k2 * sin).to(dtype)
    key2 = (k2 * cos + k1 * sin).to(dtype)
    value1 = tl.load(k_ptrs + KV_HEADS * HEAD_SIZE)
    value2 = tl.load(k_ptrs + KV_HEADS * HEAD_SIZE + HALF)
    VALUES: tl.constexpr = KV_HEADS * PAGE_SIZE * HEAD_SIZE
    cache_ptrs = cache + ((page.to(tl.int64) * 2 * KV_HEADS + head) * PAGE_SIZE + position % PAGE_SIZE) * HEAD_SIZE + i
    tl.store(cache_ptrs, key1, mask=mask)
    tl.store(cache_ptrs + HALF, key2, mask=mask)
    tl.store(cache_ptrs + VALUES, value1, mask=mask)
    tl.store(cache_ptrs + VALUES + HALF, value2, mask=mask)
    return query1, query2, key1, key2, value1, value2


@triton.jit
def _load_page(
    cache, page, head, first, end, KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Returns the halves of a page's keys [HEAD_SIZE / 2, PAGE_SIZE] and values [PAGE_SIZE, HEAD_SIZE / 2].

    first: position of the page's first entry. Entries at positions from `end` on are zeros.
    """
    HALF: tl.constexpr = HEAD_SIZE // 2
    i = tl.arange(0, HALF)
    entry = tl.arange(0, PAGE_SIZE)
    mask = first + entry < end
    keys = cache + ((page.to(tl.int64) * 2 * KV_HEADS + head) * PAGE_SIZE + entry) * HEAD_SIZE
    key_ptrs = keys[None, :] + i[:, None]
    value_ptrs = keys[:, None] + KV_HEADS * PAGE_SIZE * HEAD_SIZE + i[None, :]
    keys1 = tl.load(key_ptrs, mask=mask[None, :], other=0.0)
    keys2 = tl.load(key_ptrs + HALF, mask=mask[None, :], other=0.0)
    values1 = tl.load(value_ptrs, mask=mask[:, None], other=0.0)
    values2 = tl.load(value_ptrs + HALF, mask=mask[:, None], other=0.0)
    return keys1, keys2, values1, values2


@triton.jit
def _attend_page(query1, query2, page, best, mass, sum1, sum2, mask, dtype: tl.constexpr):
    """Adds a page, as `_load_page` returns it, to the running softmax; entries where `mask` is false are ignored."""
    keys1, keys2, values1, values2 = page
    scores = tl.dot(query2, keys2, tl.dot(query1, keys1))
    scores = tl.where(mask[None, :], scores, float("-inf"))
    top = tl.maximum(best, tl.max(scores, 1))
    kept = tl.exp(best - top)
    weights = tl.exp(scores - top[:, None])
    mass = mass * kept + tl.sum(weights, 1)
    weights = weights.to(dtype)
    sum1 = tl.dot(weights, values1, sum1 * kept[:, None])
    sum2 = tl.dot(weights, values2, sum2 * kept[:, None])
    return top, mass, sum1, sum2


@triton.jit
def _decode_kernel(
    qkv, norms, cosines, sines, positions, page_table, cache, out, eps, scale,
    POSITION_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, PAIR: tl.constexpr, ONE_PAGE: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_POW2: tl.constexpr, HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    HALF: tl.constexpr = HEAD_SIZE // 2
    WIDTH: tl.constexpr = KV_HEADS * (GROUP + 2) * HEAD_SIZE
    i = tl.arange(0, HALF)
    g = tl.arange(0, GROUP_POW2)
    entry = tl.arange(0, PAGE_SIZE)
    # The previous kernel writes neither the weights nor the page table, so these loads need not wait for it.
    norm_weights = _load_norms(norms, HEAD_SIZE)
    if PAIR:
        # The first half of the rows are at position 0; the second half are the same requests at position 1.
        pairs = tl.num_programs(0) // 2
        position = tl.where(row < pairs, 0, 1)
        request = tl.where(row < pairs, row, row - pairs)
    else:
        position = tl.load(positions + row * POSITION_STRIDE)
        request = row
    cos = tl.load(cosines + position * HALF + i)
    sin = tl.load(sines + position * HALF + i)
    page = tl.load(page_table + request * TABLE_STRIDE + position // PAGE_SIZE)
    if not PAIR:
        # Earlier positions were written in another graph or before a code was sampled: before the previous kernel
        # started.
        first_page = page if ONE_PAGE else tl.load(page_table + request * TABLE_STRIDE)
        past = _load_page(cache, first_page, head, 0, position, KV_HEADS, HEAD_SIZE, PAGE_SIZE)
    grid_dependency_wait(PDL)
    # Not earlier: the next product would read its weights while this kernel reads keys and values.
    launch_dependents(PDL)
    dtype: tl.constexpr = out.dtype.element_ty
    base = qkv + row * WIDTH
    query1, query2, key1, key2, value1, value2 = _norm_rope_cache(
        base, norm_weights, cos, sin, cache, page, position, None, head, eps, scale, dtype,
        KV_HEADS, GROUP, GROUP_POW2, HEAD_SIZE, PAGE_SIZE,
    )  # fmt: skip

    # The new position's key and value come from registers; they start the running softmax.
    best = tl.sum(query1 * key1.to(tl.float32)[None, :] + query2 * key2.to(tl.float32)[None, :], 1)
    mass = tl.full((GROUP_POW2,), 1.0, tl.float32)
    sum1 = tl.zeros((GROUP_POW2, HALF), tl.float32) + value1.to(tl.float32)[None, :]
    sum2 = tl.zeros((GROUP_POW2, HALF), tl.float32) + value2.to(tl.float32)[None, :]
    if PAIR:
        if row >= pairs:
            # Another program writes the key of position 0, so it is computed again. Position 0 is not rotated.
            _, _, k_weight1, k_weight2 = norm_weights
            k_ptrs = base + (KV_HEADS * GROUP + head) * HEAD_SIZE + i - pairs * WIDTH
            k1 = tl.load(k_ptrs).to(tl.float32)
            k2 = tl.load(k_ptrs + HALF).to(tl.float32)
            k_scale = tl.rsqrt(tl.sum(k1 * k1 + k2 * k2, 0) / HEAD_SIZE + eps)
            k1 = (k1 * k_scale * k_weight1).to(dtype).to(tl.float32)
            k2 = (k2 * k_scale * k_weight2).to(dtype).to(tl.float32)
            score = tl.sum(query1 * k1[None, :] + query2 * k2[None, :], 1)
            top = tl.maximum(best, score)
            kept, weight = tl.exp(best - top), tl.exp(score - top)
            v_ptrs = k_ptrs + KV_HEADS * HEAD_SIZE
            sum1 = sum1 * kept[:, None] + weight[:, None] * tl.load(v_ptrs).to(tl.float32)[None, :]
            sum2 = sum2 * kept[:, None] + weight[:, None] * tl.load(v_ptrs + HALF).to(tl.float32)[None, :]
            mass = kept + weight
    else:
        query1 = query1.to(dtype)
        query2 = query2.to(dtype)
        best, mass, sum1, sum2 = _attend_page(query1, query2, past, best, mass, sum1, sum2, entry < position, dtype)
    if not (PAIR or ONE_PAGE):
        for start in tl.range(PAGE_SIZE, position, PAGE_SIZE):
            page = tl.load(page_table + request * TABLE_STRIDE + start // PAGE_SIZE)
            past = _load_page(cache, page, head, start, position, KV_HEADS, HEAD_SIZE, PAGE_SIZE)
            best, mass, sum1, sum2 = _attend_page(
                query1, query2, past, best, mass, sum1, sum2, start + entry < position, dtype
            )  # fmt: skip
    q_mask = (g < GROUP)[:, None]
    out_ptrs = out + row * (KV_HEADS * GROUP * HEAD_SIZE) + (head * GROUP + g[:, None]) * HEAD_SIZE + i[None, :]
    tl.store(out_ptrs, (sum1 / mass[:, None]).to(dtype), mask=q_mask)
    tl.store(out_ptrs + HALF, (sum2 / mass[:, None]).to(dtype), mask=q_mask)


@triton.jit
def _prefill_write_kernel(
    qkv, norms, cosines, sines, positions, lengths, page_table, cache, queries, eps, scale,
    LENGTH: tl.constexpr, POSITION_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, GROUP_POW2: tl.constexpr, HEAD_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    token, head = tl.program_id(0), tl.program_id(1)
    row, step = token // LENGTH, token % LENGTH
    HALF: tl.constexpr = HEAD_SIZE // 2
    i = tl.arange(0, HALF)
    g = tl.arange(0, GROUP_POW2)
    norm_weights = _load_norms(norms, HEAD_SIZE)
    position = tl.load(positions + row * POSITION_STRIDE) + step
    valid = step < tl.load(lengths + row * POSITION_STRIDE)
    # Padding may be beyond the model's last position.
    cos = tl.load(cosines + position * HALF + i, mask=valid, other=0.0)
    sin = tl.load(sines + position * HALF + i, mask=valid, other=0.0)
    page = tl.load(page_table + row * TABLE_STRIDE + position // PAGE_SIZE, mask=valid, other=0)
    grid_dependency_wait(PDL)
    dtype: tl.constexpr = queries.dtype.element_ty
    query1, query2, _, _, _, _ = _norm_rope_cache(
        qkv + token * (KV_HEADS * (GROUP + 2) * HEAD_SIZE), norm_weights, cos, sin, cache, page, position,
        valid, head, eps, scale, dtype, KV_HEADS, GROUP, GROUP_POW2, HEAD_SIZE, PAGE_SIZE,
    )  # fmt: skip
    q_mask = (g < GROUP)[:, None]
    q_ptrs = queries + token * (KV_HEADS * GROUP * HEAD_SIZE) + (head * GROUP + g[:, None]) * HEAD_SIZE + i[None, :]
    tl.store(q_ptrs, query1.to(dtype), mask=q_mask)
    tl.store(q_ptrs + HALF, query2.to(dtype), mask=q_mask)


@triton.jit
def _prefill_kernel(
    queries, positions, lengths, page_table, cache, out,
    LENGTH: tl.constexpr, POSITION_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, HEAD_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    BLOCKS: tl.constexpr = (LENGTH + BLOCK - 1) // BLOCK
    row, block, head = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS, tl.program_id(1)
    i = tl.arange(0, HEAD_SIZE)
    q = block * BLOCK + tl.arange(0, BLOCK)
    entry = tl.arange(0, PAGE_SIZE)
    first = tl.load(positions + row * POSITION_STRIDE)
    length = tl.load(lengths + row * POSITION_STRIDE)
    grid_dependency_wait(PDL)
    offsets = (row * LENGTH + q[:, None]) * (KV_HEADS * GROUP * HEAD_SIZE) + head * HEAD_SIZE + i[None, :]
    mask = (q < length)[:, None]
    query = tl.load(queries + offsets, mask=mask, other=0.0)
    best = tl.full((BLOCK,), -1e30, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK, HEAD_SIZE), tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    end = first + tl.minimum(length, block * BLOCK + BLOCK)
    for start in tl.range(0, end, PAGE_SIZE):
        page = tl.load(page_table + row * TABLE_STRIDE + start // PAGE_SIZE)
        keys = cache + ((page.to(tl.int64) * 2 * KV_HEADS + head // GROUP) * PAGE_SIZE + entry) * HEAD_SIZE
        values = keys + KV_HEADS * PAGE_SIZE * HEAD_SIZE
        present = start + entry < end
        k = tl.load(keys[None, :] + i[:, None], mask=present[None, :], other=0.0)
        scores = tl.dot(query, k)
        causal = (start + entry)[None, :] <= (first + q)[:, None]
        scores = tl.where(causal & present[None, :], scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        kept = tl.exp(best - top)
        weights = tl.exp(scores - top[:, None])
        mass = mass * kept + tl.sum(weights, 1)
        best = top
        v = tl.load(values[:, None] + i[None, :], mask=present[:, None], other=0.0)
        total = tl.dot(weights.to(dtype), v, total * kept[:, None])
    tl.store(out + offsets, (total / mass[:, None]).to(dtype), mask=mask)


@dataclass(frozen=True)
class AttentionParams:
    """What the kernels need of one attention layer."""

    num_kv_heads: int
    group_size: int
    """Query heads per KV head."""
    head_size: int
    """A power of two, at least 32."""
    norms: Tensor
    """[2, head size]: weights of the query norm and the key norm."""
    cosines: Tensor
    """float32 [positions, head size / 2], of the rotary embedding."""
    sines: Tensor
    """float32 [positions, head size / 2]."""
    eps: float

    @property
    def scale(self) -> float:
        """The softmax scale."""
        return float(self.head_size**-0.5)


def decode_attention(
    params: AttentionParams, qkv: Tensor, cache: Tensor, page_table: Tensor, positions: Tensor | None, out: Tensor,
    rows: int, *, one_page: bool = False,
) -> None:  # fmt: skip
    """Computes one new position of each row: norms, rotary embedding, cache write and attention.

    Args:
        params: of the layer.
        qkv: [rows, (group size + 2) * KV heads * head size]: queries, keys and values.
        cache: [pages, 2, KV heads, page size, head size]; the new keys and values are written.
        page_table: int32 [rows, pages].
        positions: int32 [rows], may be strided. None: the first half of the rows are requests at position 0, and the
            second half are the same requests at position 1.
        out: [rows, group size * KV heads * head size], output.
        rows: number of rows.
        one_page: every row has one page with few positions.
    """
    group = triton.next_power_of_2(params.group_size)
    arguments = (
        qkv, params.norms, params.cosines, params.sines, positions, page_table, cache, out, params.eps, params.scale,
    )  # fmt: skip
    options, grid = _options(params, cache, page_table, positions), (rows, params.num_kv_heads)
    if one_page and positions is not None and not INTERPRETED:
        warps = min(group, 4)
        launch(frame_attention_kernel, grid, *arguments, GROUP_POW2=group, WARPS=warps, num_warps=warps, **options)
        return
    launch(
        _decode_kernel, grid, *arguments, PAIR=positions is None, ONE_PAGE=one_page,
        # A tensor core product has at least 16 rows.
        GROUP_POW2=group if positions is None else max(16, group), num_warps=1 if one_page and rows > 16 else 4,
        **options,
    )  # fmt: skip


def prefill_attention(
    params: AttentionParams, qkv: Tensor, cache: Tensor, page_table: Tensor, positions: Tensor, lengths: Tensor,
    queries: Tensor, out: Tensor, length: int,
) -> None:  # fmt: skip
    """Computes several new positions of each row, padded to `length`: as `decode_attention`, with a causal mask.

    Args:
        params, cache, page_table: as for `decode_attention`.
        qkv: [rows * length, (group size + 2) * KV heads * head size].
        positions: int32 [rows], each row's first new position; may be strided.
        lengths: int32 [rows] with the stride of `positions`: number of new positions; 0 for padded rows.
        queries: [rows * length, group size * KV heads * head size], scratch memory for the rotated queries.
        out: as `queries`, output; padding is not written.
        length: positions of a row in `qkv`.
    """
    rows = len(positions)
    options = {"LENGTH": length, **_options(params, cache, page_table, positions)}
    launch(
        _prefill_write_kernel, (rows * length, params.num_kv_heads),
        qkv, params.norms, params.cosines, params.sines, positions, lengths, page_table, cache, queries, params.eps,
        params.scale, GROUP_POW2=triton.next_power_of_2(params.group_size), **options,
    )  # fmt: skip
    block = 16 if length <= 16 else 32
    launch(
        _prefill_kernel, (rows * triton.cdiv(length, block), params.num_kv_heads * params.group_size),
        queries, positions, lengths, page_table, cache, out, BLOCK=block, **options,
    )  # fmt: skip


def _options(params: AttentionParams, cache: Tensor, page_table: Tensor, positions: Tensor | None) -> dict[str, int]:
    pdl = supports_pdl(cache.device)
    return {
        "POSITION_STRIDE": 0 if positions is None else positions.stride(0), "TABLE_STRIDE": page_table.stride(0),
        "KV_HEADS": params.num_kv_heads, "GROUP": params.group_size, "HEAD_SIZE": params.head_size,
        "PAGE_SIZE": cache.shape[3], "PDL": pdl, "launch_pdl": pdl,
    }  # fmt: skip
