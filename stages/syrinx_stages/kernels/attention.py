"""Attention over a paged cache of keys and values, with everything around it: head norms, rotation, the cache's write.

A cache is [pages, 2, kv_heads, page, head_size]; keys are in it normalised and rotated. `table` [rows, width] (int32)
names each row's pages in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from .attend import attend
from .launch import INTERPRETED, PDL_SUPPORTED, grid_dependency_wait, launch, launch_dependents


@triton.jit
def _step(
    qkv, norms, cosines, sines, positions, table, cache, out, eps, scale,
    POSITION_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, PAIR: tl.constexpr, SMALL: tl.constexpr,
    KV: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    HALF: tl.constexpr = SIZE // 2
    WIDTH: tl.constexpr = KV * (GROUP + 2) * SIZE
    i = tl.arange(0, HALF)
    g = tl.arange(0, GROUP_P)
    slot = tl.arange(0, PAGE)
    real = (g < GROUP)[:, None]
    # Neither the weights nor a row's place are written by the kernel before.
    qw1 = tl.load(norms + i).to(tl.float32)
    qw2 = tl.load(norms + HALF + i).to(tl.float32)
    kw1 = tl.load(norms + SIZE + i).to(tl.float32)
    kw2 = tl.load(norms + SIZE + HALF + i).to(tl.float32)
    if PAIR:
        # The first half of the rows are at position 0, row for row before those of the second at position 1.
        pairs = tl.num_programs(0) // 2
        position = tl.where(row < pairs, 0, 1)
        own = tl.where(row < pairs, row, row - pairs)
    else:
        position = tl.load(positions + row * POSITION_STRIDE)
        own = row
    c = tl.load(cosines + position * HALF + i)
    s = tl.load(sines + position * HALF + i)
    page = tl.load(table + own * TABLE_STRIDE + position // PAGE)
    if not PAIR:
        # What came before is of another graph or behind a drawn code: it was there before the kernel before this one.
        first = page if SMALL else tl.load(table + own * TABLE_STRIDE)
        slots = cache + ((first.to(tl.int64) * 2 * KV + head) * PAGE + slot) * SIZE
        past = slot < position
        ks1 = tl.load(slots[None, :] + i[:, None], mask=past[None, :], other=0.0)
        ks2 = tl.load(slots[None, :] + HALF + i[:, None], mask=past[None, :], other=0.0)
        vs1 = tl.load(slots[:, None] + KV * PAGE * SIZE + i[None, :], mask=past[:, None], other=0.0)
        vs2 = tl.load(slots[:, None] + KV * PAGE * SIZE + HALF + i[None, :], mask=past[:, None], other=0.0)
    grid_dependency_wait(PDL)
    # Only now: the next product would read its weights while this reads keys and values.
    launch_dependents(PDL)
    base = qkv + row * WIDTH
    q_at = base + (head * GROUP + g[:, None]) * SIZE + i[None, :]
    q1 = tl.load(q_at, mask=real, other=0.0).to(tl.float32)
    q2 = tl.load(q_at + HALF, mask=real, other=0.0).to(tl.float32)
    q_scale = tl.rsqrt(tl.sum(q1 * q1 + q2 * q2, 1) / SIZE + eps)[:, None]
    q1 *= q_scale * qw1[None, :]
    q2 *= q_scale * qw2[None, :]
    r1 = (q1 * c[None, :] - q2 * s[None, :]) * scale
    r2 = (q2 * c[None, :] + q1 * s[None, :]) * scale

    k_at = base + (KV * GROUP + head) * SIZE + i
    k1 = tl.load(k_at).to(tl.float32)
    k2 = tl.load(k_at + HALF).to(tl.float32)
    k_scale = tl.rsqrt(tl.sum(k1 * k1 + k2 * k2, 0) / SIZE + eps)
    k1 *= k_scale * kw1
    k2 *= k_scale * kw2
    element = out.dtype.element_ty
    t1 = (k1 * c - k2 * s).to(element)
    t2 = (k2 * c + k1 * s).to(element)
    v1 = tl.load(k_at + KV * SIZE)
    v2 = tl.load(k_at + KV * SIZE + HALF)
    written = cache + ((page.to(tl.int64) * 2 * KV + head) * PAGE + position % PAGE) * SIZE + i
    tl.store(written, t1)
    tl.store(written + HALF, t2)
    tl.store(written + KV * PAGE * SIZE, v1)
    tl.store(written + KV * PAGE * SIZE + HALF, v2)

    # The new position comes from registers; it is the first of the running softmax.
    best = tl.sum(r1 * t1.to(tl.float32)[None, :] + r2 * t2.to(tl.float32)[None, :], 1)
    mass = tl.full((GROUP_P,), 1.0, tl.float32)
    sum1 = tl.zeros((GROUP_P, HALF), tl.float32) + v1.to(tl.float32)[None, :]
    sum2 = tl.zeros((GROUP_P, HALF), tl.float32) + v2.to(tl.float32)[None, :]
    if PAIR:
        if row >= pairs:
            # The other position's key is being written by another program: it is made again. Position 0 is not turned.
            o_at = k_at - pairs * WIDTH
            o1 = tl.load(o_at).to(tl.float32)
            o2 = tl.load(o_at + HALF).to(tl.float32)
            o_scale = tl.rsqrt(tl.sum(o1 * o1 + o2 * o2, 0) / SIZE + eps)
            o1 = (o1 * o_scale * kw1).to(element).to(tl.float32)
            o2 = (o2 * o_scale * kw2).to(element).to(tl.float32)
            score = tl.sum(r1 * o1[None, :] + r2 * o2[None, :], 1)
            top = tl.maximum(best, score)
            kept, weight = tl.exp(best - top), tl.exp(score - top)
            sum1 = sum1 * kept[:, None] + weight[:, None] * tl.load(o_at + KV * SIZE).to(tl.float32)[None, :]
            sum2 = sum2 * kept[:, None] + weight[:, None] * tl.load(o_at + KV * SIZE + HALF).to(tl.float32)[None, :]
            mass = kept + weight
    else:
        d1 = r1.to(element)
        d2 = r2.to(element)
        scores = tl.dot(d2, ks2, tl.dot(d1, ks1))
        scores = tl.where((slot < position)[None, :], scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        kept = tl.exp(best - top)
        weights = tl.exp(scores - top[:, None])
        mass = kept + tl.sum(weights, 1)
        best = top
        weights = weights.to(element)
        sum1 = tl.dot(weights, vs1, sum1 * kept[:, None])
        sum2 = tl.dot(weights, vs2, sum2 * kept[:, None])
    if not (PAIR or SMALL):
        for start in tl.range(PAGE, position, PAGE):
            page = tl.load(table + own * TABLE_STRIDE + start // PAGE)
            keys = cache + ((page.to(tl.int64) * 2 * KV + head) * PAGE + slot) * SIZE
            past = start + slot < position
            values = keys[:, None] + KV * PAGE * SIZE + i[None, :]
            vt1 = tl.load(values, mask=past[:, None], other=0.0)
            vt2 = tl.load(values + HALF, mask=past[:, None], other=0.0)
            kt1 = tl.load(keys[None, :] + i[:, None], mask=past[None, :], other=0.0)
            kt2 = tl.load(keys[None, :] + HALF + i[:, None], mask=past[None, :], other=0.0)
            scores = tl.dot(d2, kt2, tl.dot(d1, kt1))
            scores = tl.where(past[None, :], scores, float("-inf"))
            top = tl.maximum(best, tl.max(scores, 1))
            kept = tl.exp(best - top)
            weights = tl.exp(scores - top[:, None])
            mass = mass * kept + tl.sum(weights, 1)
            best = top
            weights = weights.to(element)
            sum1 = tl.dot(weights, vt1, sum1 * kept[:, None])
            sum2 = tl.dot(weights, vt2, sum2 * kept[:, None])
    out_at = out + row * (KV * GROUP * SIZE) + (head * GROUP + g[:, None]) * SIZE + i[None, :]
    tl.store(out_at, (sum1 / mass[:, None]).to(element), mask=real)
    tl.store(out_at + HALF, (sum2 / mass[:, None]).to(element), mask=real)


@triton.jit
def _store(
    qkv, norms, cosines, sines, positions, table, cache, queries, eps, scale,
    LENGTH: tl.constexpr, POSITION_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr,
    KV: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    token, head = tl.program_id(0), tl.program_id(1)
    row, step = token // LENGTH, token % LENGTH
    HALF: tl.constexpr = SIZE // 2
    i = tl.arange(0, HALF)
    g = tl.arange(0, GROUP_P)
    real = (g < GROUP)[:, None]
    qw1 = tl.load(norms + i).to(tl.float32)
    qw2 = tl.load(norms + HALF + i).to(tl.float32)
    kw1 = tl.load(norms + SIZE + i).to(tl.float32)
    kw2 = tl.load(norms + SIZE + HALF + i).to(tl.float32)
    position = tl.load(positions + row * POSITION_STRIDE) + step
    held = step < tl.load(positions + row * POSITION_STRIDE + 1)
    # Padding may be past the model's last position.
    c = tl.load(cosines + position * HALF + i, mask=held & (i < HALF), other=0.0)
    s = tl.load(sines + position * HALF + i, mask=held & (i < HALF), other=0.0)
    page = tl.load(table + row * TABLE_STRIDE + position // PAGE, mask=held, other=0)
    grid_dependency_wait(PDL)
    base = qkv + token * (KV * (GROUP + 2) * SIZE)
    q_at = base + (head * GROUP + g[:, None]) * SIZE + i[None, :]
    q1 = tl.load(q_at, mask=real, other=0.0).to(tl.float32)
    q2 = tl.load(q_at + HALF, mask=real, other=0.0).to(tl.float32)
    q_scale = tl.rsqrt(tl.sum(q1 * q1 + q2 * q2, 1) / SIZE + eps)[:, None]
    q1 *= q_scale * qw1[None, :]
    q2 *= q_scale * qw2[None, :]
    element = queries.dtype.element_ty
    to = queries + token * (KV * GROUP * SIZE) + (head * GROUP + g[:, None]) * SIZE + i[None, :]
    tl.store(to, ((q1 * c[None, :] - q2 * s[None, :]) * scale).to(element), mask=real)
    tl.store(to + HALF, ((q2 * c[None, :] + q1 * s[None, :]) * scale).to(element), mask=real)
    k_at = base + (KV * GROUP + head) * SIZE + i
    k1 = tl.load(k_at).to(tl.float32)
    k2 = tl.load(k_at + HALF).to(tl.float32)
    k_scale = tl.rsqrt(tl.sum(k1 * k1 + k2 * k2, 0) / SIZE + eps)
    k1 *= k_scale * kw1
    k2 *= k_scale * kw2
    written = cache + ((page.to(tl.int64) * 2 * KV + head) * PAGE + position % PAGE) * SIZE + i
    keep = held & (i < HALF)
    tl.store(written, (k1 * c - k2 * s).to(element), mask=keep)
    tl.store(written + HALF, (k2 * c + k1 * s).to(element), mask=keep)
    tl.store(written + KV * PAGE * SIZE, tl.load(k_at + KV * SIZE), mask=keep)
    tl.store(written + KV * PAGE * SIZE + HALF, tl.load(k_at + KV * SIZE + HALF), mask=keep)


@triton.jit
def _prompt(
    queries, positions, table, cache, out,
    LENGTH: tl.constexpr, POSITION_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr,
    KV: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, SIZE_P: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    BLOCKS: tl.constexpr = (LENGTH + BLOCK - 1) // BLOCK
    row, block, head = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS, tl.program_id(1)
    i = tl.arange(0, SIZE_P)
    q = block * BLOCK + tl.arange(0, BLOCK)
    slot = tl.arange(0, PAGE)
    first = tl.load(positions + row * POSITION_STRIDE)
    length = tl.load(positions + row * POSITION_STRIDE + 1)
    held = q < length
    grid_dependency_wait(PDL)
    at = (row * LENGTH + q[:, None]) * (KV * GROUP * SIZE) + head * SIZE + i[None, :]
    inside = held[:, None] & (i < SIZE)[None, :]
    query = tl.load(queries + at, mask=inside, other=0.0)
    best = tl.full((BLOCK,), -1e30, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK, SIZE_P), tl.float32)
    element = out.dtype.element_ty
    last = first + tl.minimum(length, block * BLOCK + BLOCK)
    for start in tl.range(0, last, PAGE):
        page = tl.load(table + row * TABLE_STRIDE + start // PAGE)
        keys = cache + ((page.to(tl.int64) * 2 * KV + head // GROUP) * PAGE + slot) * SIZE
        present = start + slot < last
        k = tl.load(keys[None, :] + i[:, None], mask=present[None, :] & (i < SIZE)[:, None], other=0.0)
        scores = tl.dot(query, k)
        heard = (start + slot)[None, :] <= (first + q)[:, None]
        scores = tl.where(heard & present[None, :], scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        kept = tl.exp(best - top)
        weights = tl.exp(scores - top[:, None])
        mass = mass * kept + tl.sum(weights, 1)
        best = top
        v = tl.load(
            keys[:, None] + KV * PAGE * SIZE + i[None, :], mask=present[:, None] & (i < SIZE)[None, :], other=0.0
        )
        total = tl.dot(weights.to(element), v, total * kept[:, None])
    tl.store(out + at, (total / mass[:, None]).to(element), mask=inside)


@dataclass(frozen=True)
class Heads:
    """One layer's attention: what its kernels need of the model."""

    kv: int
    """Heads of keys and values."""
    group: int
    """Query heads that share one of them."""
    size: int
    """Width of a head: a power of two, at least 32."""
    norms: Tensor
    """Weights of the query norm and the key norm [2, size]."""
    cosines: Tensor
    """Of the rotation, [positions, size / 2] float32."""
    sines: Tensor
    eps: float

    @property
    def scale(self) -> float:
        """What queries are multiplied by."""
        return float(self.size**-0.5)


def step(
    heads: Heads, qkv: Tensor, cache: Tensor, table: Tensor, positions: Tensor | None, out: Tensor, rows: int,
    *, small: bool = False,
) -> None:  # fmt: skip
    """One new position of each row: normalises, rotates, writes keys and values to the cache, attends.

    qkv: [rows, (group + 2) kv size]; positions: int32, one row of a matrix each, of which column 0 is read; out:
    [rows, group kv size]. Without positions, the first half of the rows are at position 0 and the second half are
    their second positions. small: a row has one page, of few positions.
    """
    group = triton.next_power_of_2(heads.group)
    if small and positions is not None and not INTERPRETED:
        warps = min(group, 4)
        launch(
            attend, (rows, heads.kv),
            qkv, heads.norms, heads.cosines, heads.sines, positions, table, cache, out, heads.eps, heads.scale,
            POSITION_STRIDE=positions.stride(0), TABLE_STRIDE=table.stride(0), KV=heads.kv, GROUP=heads.group,
            GROUP_P=group, SIZE=heads.size, PAGE=cache.shape[3], WARPS=warps, PDL=PDL_SUPPORTED,
            launch_pdl=PDL_SUPPORTED, num_warps=warps,
        )  # fmt: skip
        return
    launch(
        _step, (rows, heads.kv),
        qkv, heads.norms, heads.cosines, heads.sines, positions, table, cache, out, heads.eps, heads.scale,
        POSITION_STRIDE=0 if positions is None else positions.stride(0), TABLE_STRIDE=table.stride(0),
        PAIR=positions is None, SMALL=small, KV=heads.kv, GROUP=heads.group,
        GROUP_P=group if positions is None else max(16, group), SIZE=heads.size, PAGE=cache.shape[3],
        PDL=PDL_SUPPORTED, launch_pdl=PDL_SUPPORTED, num_warps=1 if small and rows > 16 else 4,
    )  # fmt: skip


def prompt(
    heads: Heads, qkv: Tensor, cache: Tensor, table: Tensor, spans: Tensor, queries: Tensor, out: Tensor, length: int
) -> None:
    """Several new positions of each row, `length` places for each: the same, each attending to those before it.

    qkv: [rows x length, ...]; spans: int32 [rows, at least 2], first position and number of positions of each row;
    queries: as out, [rows x length, group kv size], holds the rotated queries meanwhile.
    """
    rows = spans.shape[0]
    common = {
        "LENGTH": length, "POSITION_STRIDE": spans.stride(0), "TABLE_STRIDE": table.stride(0), "KV": heads.kv,
        "GROUP": heads.group, "SIZE": heads.size, "PAGE": cache.shape[3], "PDL": PDL_SUPPORTED,
        "launch_pdl": PDL_SUPPORTED,
    }  # fmt: skip
    launch(
        _store, (rows * length, heads.kv),
        qkv, heads.norms, heads.cosines, heads.sines, spans, table, cache, queries, heads.eps, heads.scale,
        GROUP_P=triton.next_power_of_2(heads.group), **common,
    )  # fmt: skip
    block = 16 if length <= 16 else 32
    launch(
        _prompt,
        (rows * triton.cdiv(length, block), heads.kv * heads.group),
        queries,
        spans,
        table,
        cache,
        out,
        SIZE_P=triton.next_power_of_2(heads.size),
        BLOCK=block,
        **common,
    )
