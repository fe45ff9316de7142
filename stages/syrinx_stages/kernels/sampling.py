"""Draws codes on the device, as `model.sampling` does on a CPU: the same numbers decide, in the same order of steps.

A row's knobs lie at its slot: [temperature, top_k, top_p, repetition penalty, least frames] in float32, once for code 0
and once for the residual codes. Temperature 0 takes the best.

Every kernel here lets the next one begin only after its own wait: attention relies on it to read, without waiting, what
was written before the last code was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from .dependent import DEPENDENT, begin, wait
from .launch import launch

KNOBS = 5


@triton.jit
def _mixed(x):
    """SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def uniform(seed, frame, group):
    """The number in [0, 1) that decides a code; `model.sampling.uniforms` is the same with eight more bits."""
    gamma = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    state = _mixed(_mixed(seed.to(tl.uint64, bitcast=True) + gamma) + (frame.to(tl.uint64) + 1) * gamma)
    bits = _mixed(state + gamma * (tl.full((), 1, tl.uint64) + group)) >> 40
    return bits.to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _ordered(scores):
    """Numbers in the order of the scores, as unsigned integers."""
    bits = scores.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | tl.full((), -2147483648, tl.int32))).to(tl.uint32, bitcast=True)


@triton.jit
def _kth(keys, count, top):
    """A number that exactly `count` keys reach, or the largest that at least so many do; `top`: the largest key.

    Three counts in one sum quarter the range at each turn; about eight turns find the 50th of 2,048.
    """
    low = tl.full((), 0, tl.uint32)
    high = top
    reached = tl.full((), 0x7FFFFFFF, tl.int32)
    mask = tl.full((), 0xFFFFF, tl.int64)
    while (reached > count) & (high > low):
        # Upwards, so that the range ends; the highest count may be at `high` itself.
        step = tl.maximum((high - low) >> 2, 1)
        one = low + step
        two = tl.minimum(one + step, high)
        three = tl.minimum(two + step, high)
        counts = (keys >= one).to(tl.int64) + ((keys >= two).to(tl.int64) << 20) + ((keys >= three).to(tl.int64) << 40)
        total = tl.sum(counts, 0)
        c1, c2, c3 = (total & mask).to(tl.int32), ((total >> 20) & mask).to(tl.int32), (total >> 40).to(tl.int32)
        if c3 >= count:
            low = three
            reached = c3
        elif c2 >= count:
            low = two
            high = three - 1
            reached = c2
        elif c1 >= count:
            low = one
            high = two - 1
            reached = c1
        else:
            high = one - 1
    return low


@triton.jit
def _least(keys, mass, dropped):
    """The largest number below which the keys have at most `dropped` of the mass."""
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):
        raised = found + step
        step = step >> 1
        below = tl.sum(tl.where(keys < raised, mass, 0.0), 0)
        found = tl.where(below <= dropped, raised, found)
    return found


@triton.jit
def draw(scores, id, knobs, number):
    """One id of a row: scores by id, -inf where there is none; see the module for the knobs."""
    temperature = tl.load(knobs)
    top_k = tl.load(knobs + 1).to(tl.int32)
    top_p = tl.load(knobs + 2)
    best = tl.max(scores, 0)
    # The best, the first of several, unless there is something to draw.
    mass = tl.where(scores == best, 1.0, 0.0)
    target = tl.full((), 0.0, tl.float32)
    if temperature > 0:
        scores = scores / temperature
        best = best / temperature
        mass = tl.exp(scores - best)
        if top_k > 0:
            keys = _ordered(scores)
            mass = tl.where(keys >= _kth(keys, top_k, _ordered(best)), mass, 0.0)
        total = tl.sum(mass, 0)
        if top_p < 1:
            keys = _ordered(scores)
            # The best is always kept.
            least = tl.minimum(_least(keys, mass, (1 - top_p) * total), _ordered(best))
            mass = tl.where(keys >= least, mass, 0.0)
            total = tl.sum(mass, 0)
        target = number * total
    # The first id whose sum exceeds the number.
    drawn = tl.min(tl.where(tl.cumsum(mass, 0) > target, id, 0x7FFFFFFF), 0)
    if drawn == 0x7FFFFFFF:
        # Rounding led past the last that has any mass.
        drawn = tl.max(tl.where(mass > 0, id, 0), 0)
    return drawn


@triton.jit
def _row_of(
    table,
    code,
    out,
    squares,
    row,
    WIDTH: tl.constexpr,
    WIDTH_P: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_P: tl.constexpr,
):
    """Copies a table's row to the next input, and says its squares' sum."""
    i = tl.arange(0, WIDTH_P)
    values = tl.load(table + code.to(tl.int64) * WIDTH + i, mask=i < WIDTH, other=0.0)
    tl.store(out + row * WIDTH + i, values, mask=i < WIDTH)
    squared = values.to(tl.float32)
    part = tl.arange(0, PARTS_P)
    sums = tl.where(part == 0, tl.sum(squared * squared, 0), 0.0)
    tl.store(squares + row * PARTS + part, sums, mask=part < PARTS)


@triton.jit
def _code0(
    scores, meta, knobs, seeds, seen, table, codes, out, squares, bias,
    META: tl.constexpr, SCORES: tl.constexpr, VOCABULARY: tl.constexpr, VOCABULARY_P: tl.constexpr,
    FIRST_MARK: tl.constexpr, EOS: tl.constexpr, KNOBS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_P: tl.constexpr, PARTS: tl.constexpr, PARTS_P: tl.constexpr, CODES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    slot = tl.load(meta + row * META)
    frame = tl.load(meta + row * META + 2)
    id = tl.arange(0, VOCABULARY_P)
    wait(PDL)
    begin(PDL)
    score = tl.load(scores + row * SCORES + id, mask=id < VOCABULARY, other=float("-inf"))
    said = tl.load(seen + slot.to(tl.int64) * VOCABULARY + id, mask=id < VOCABULARY, other=0) != 0
    own = knobs + slot * (2 * KNOBS)
    penalty = tl.load(own + 3)
    score = tl.where(said, tl.where(score < 0, score * penalty, score / penalty), score)
    early = frame < tl.load(own + 4).to(tl.int32)
    score = tl.where((id >= FIRST_MARK) & ((id != EOS) | early), float("-inf"), score)
    code = draw(score, id, own, uniform(tl.load(seeds + slot), frame, 0))
    tl.store(codes + row * CODES, code.to(codes.dtype.element_ty))
    tl.store(seen + slot.to(tl.int64) * VOCABULARY + code, 1)
    # The predictor's first input is the talker's state, which came through the same product.
    i = tl.arange(0, WIDTH_P)
    state = tl.load(scores + row * SCORES + VOCABULARY + i, mask=i < WIDTH, other=0.0) + tl.load(
        bias + i, mask=i < WIDTH, other=0.0
    ).to(tl.float32)
    state = state.to(out.dtype.element_ty)
    tl.store(out + row * WIDTH + i, state, mask=i < WIDTH)
    squared = state.to(tl.float32)
    part = tl.arange(0, PARTS_P)
    tl.store(squares + row * PARTS + part, tl.where(part == 0, tl.sum(squared * squared, 0), 0.0), mask=part < PARTS)
    _row_of(table, code, out, squares, rows + row, WIDTH, WIDTH_P, PARTS, PARTS_P)


@triton.jit
def _residual(
    scores, meta, knobs, seeds, table, codes, out, squares, group,
    META: tl.constexpr, VOCABULARY: tl.constexpr, VOCABULARY_P: tl.constexpr, KNOBS: tl.constexpr, LAST: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_P: tl.constexpr, PARTS: tl.constexpr, PARTS_P: tl.constexpr, CODES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(meta + row * META)
    frame = tl.load(meta + row * META + 2)
    number = uniform(tl.load(seeds + slot), frame, group)
    id = tl.arange(0, VOCABULARY_P)
    wait(PDL)
    begin(PDL)
    score = tl.load(scores + row * VOCABULARY + id, mask=id < VOCABULARY, other=float("-inf"))
    code = draw(score, id, knobs + slot * (2 * KNOBS) + KNOBS, number)
    tl.store(codes + row * CODES + group, code.to(codes.dtype.element_ty))
    if not LAST:
        _row_of(table, code, out, squares, row, WIDTH, WIDTH_P, PARTS, PARTS_P)


@triton.jit
def _sum_frame(
    codes, meta, first, rest, texts, out, squares, handed,
    META: tl.constexpr, CODEBOOK: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, PARTS_P: tl.constexpr, HANDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0), tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    text = tl.load(meta + row * META + 3)
    total = tl.load(texts + text.to(tl.int64) * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    ring = tl.load(meta + row * META + 4)
    wait(PDL)
    begin(PDL)
    group = tl.arange(0, GROUPS)
    frame = tl.load(codes + row * GROUPS + group)
    if block == 0:
        tl.store(handed + (ring * HANDED + row) * GROUPS + group, frame.to(handed.dtype.element_ty))
    code = tl.load(codes + row * GROUPS)
    total += tl.load(first + code.to(tl.int64) * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    for g in tl.static_range(1, GROUPS):
        code = tl.load(codes + row * GROUPS + g) + (g - 1) * CODEBOOK
        total += tl.load(rest + code.to(tl.int64) * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    result = total.to(out.dtype.element_ty)
    tl.store(out + row * WIDTH + i, result, mask=inside)
    squared = result.to(tl.float32)
    part = tl.arange(0, PARTS_P)
    # This block's sum at its own part; the parts that no block has are empty.
    sums = tl.where(part == block, tl.sum(squared * squared, 0), 0.0)
    tl.store(squares + row * PARTS + part, sums, mask=(part % tl.num_programs(1) == block) & (part < PARTS))


@triton.jit
def _normalise(
    x, squares, weight, places, out, eps,
    PLACE: tl.constexpr, LENGTH: tl.constexpr, WIDTH: tl.constexpr, WIDTH_P: tl.constexpr,
    PARTS: tl.constexpr, PARTS_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(places + row * PLACE)
    i = tl.arange(0, WIDTH_P)
    w = tl.load(weight + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    source = row
    if LENGTH > 1:
        source = row * LENGTH + tl.maximum(tl.load(places + row * PLACE + 2), 1) - 1
    wait(PDL)
    begin(PDL)
    part = tl.arange(0, PARTS_P)
    total = tl.sum(tl.load(squares + source * PARTS + part, mask=part < PARTS, other=0.0), 0)
    values = tl.load(x + source * WIDTH + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    result = (values * tl.rsqrt(total / WIDTH + eps) * w).to(out.dtype.element_ty)
    tl.store(out + slot.to(tl.int64) * WIDTH + i, result, mask=i < WIDTH)


@triton.jit
def _enter(
    x,
    out,
    squares,
    WIDTH: tl.constexpr,
    WIDTH_P: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_P: tl.constexpr,
    PDL: tl.constexpr,
):
    wait(PDL)
    begin(PDL)
    row = tl.program_id(0)
    _row_of(x, row, out, squares, row, WIDTH, WIDTH_P, PARTS, PARTS_P)


@dataclass(frozen=True)
class Rows:
    """Where the rows of a step stand, and how each draws.

    meta: int32 [rows, at least 5]: slot, position, frame, row of text, place in the ring of results. knobs: float32
    [slots, 2, 5], see the module. seeds: int64 [slots]. seen: int8 [slots, vocabulary], codes 0 said before.
    """

    meta: Tensor
    knobs: Tensor
    seeds: Tensor
    seen: Tensor


def code0(
    rows: Rows,
    scores: Tensor,
    bias: Tensor,
    table: Tensor,
    codes: Tensor,
    x: Tensor,
    squares: Tensor,
    *,
    eos: int,
    marks: int,
) -> None:
    """Draws code 0 of each row and makes the code predictor's first two inputs.

    scores: float32 [rows, vocabulary + width]: logits, then the state in the predictor's width, less `bias` [width].
    table: [vocabulary, width]. codes: int32 [rows, groups], column 0 is written. x: [2 rows, width], states first;
    squares: [2 rows, parts]. Of the last `marks` ids EOS alone is drawn.
    """
    vocabulary, width = table.shape
    launch(
        _code0, (codes.shape[0],), scores, rows.meta, rows.knobs, rows.seeds, rows.seen, table, codes, x, squares, bias,
        META=rows.meta.stride(0), SCORES=scores.stride(0), VOCABULARY=vocabulary,
        VOCABULARY_P=triton.next_power_of_2(vocabulary), FIRST_MARK=vocabulary - marks, EOS=eos, KNOBS=KNOBS,
        CODES=codes.stride(0), **_widths(width, squares),
    )  # fmt: skip


def residual(
    rows: Rows, scores: Tensor, group: int, table: Tensor | None, codes: Tensor, x: Tensor, squares: Tensor
) -> None:
    """Draws the codes of a group from scores [rows, codebook] (float32).

    table: [codebook, width], gives the next input; without it there is none.
    """
    codebook = scores.shape[1]
    launch(
        _residual, (codes.shape[0],), scores, rows.meta, rows.knobs, rows.seeds, table, codes, x, squares, group,
        META=rows.meta.stride(0), VOCABULARY=codebook, VOCABULARY_P=triton.next_power_of_2(codebook), KNOBS=KNOBS,
        LAST=table is None, CODES=codes.stride(0), **_widths(x.shape[1], squares),
    )  # fmt: skip


def sum_frame(
    rows: Rows, codes: Tensor, first: Tensor, rest: Tensor, texts: Tensor, x: Tensor, squares: Tensor, handed: Tensor
) -> None:
    """The talker's next input: the sum of a frame's embeddings and its row of text; and hands the codes over.

    first: [vocabulary, width]; rest: [groups - 1, codebook, width]; texts: [any, width]; handed: int16 [ring, most
    rows, groups], in memory that the host can read.
    """
    count, groups = codes.shape
    width = x.shape[1]
    block = min(512, triton.next_power_of_2(width))
    widths = _widths(width, squares)
    launch(
        _sum_frame, (count, triton.cdiv(width, block)), codes, rows.meta, first, rest, texts, x, squares, handed,
        META=rows.meta.stride(0), CODEBOOK=rest.shape[1], GROUPS=groups, WIDTH=width, BLOCK=block,
        PARTS=widths["PARTS"], PARTS_P=widths["PARTS_P"], HANDED=handed.shape[1], PDL=DEPENDENT, launch_pdl=DEPENDENT,
    )  # fmt: skip


def normalise(
    x: Tensor, squares: Tensor, weight: Tensor, eps: float, places: Tensor, out: Tensor, length: int = 1
) -> None:
    """RMS norm of the last position of each row, written to the row's slot of `out` [slots, width].

    x: [rows x length, width]; places: int32 [rows, at least 3]: slot, and in column 2 how many of the `length`
    positions a row has.
    """
    launch(
        _normalise,
        (places.shape[0],),
        x,
        squares,
        weight,
        places,
        out,
        eps,
        PLACE=places.stride(0),
        LENGTH=length,
        **_widths(x.shape[1], squares),
    )


def enter(x: Tensor, out: Tensor, squares: Tensor) -> None:
    """Copies inputs [rows, width], and sums their squares for the first norm."""
    launch(_enter, (x.shape[0],), x, out, squares, **_widths(x.shape[1], squares))


def _widths(width: int, squares: Tensor) -> dict[str, int | bool]:
    parts = squares.shape[1]
    return {
        "WIDTH": width, "WIDTH_P": triton.next_power_of_2(width), "PARTS": parts,
        "PARTS_P": triton.next_power_of_2(parts), "PDL": DEPENDENT, "launch_pdl": DEPENDENT,
    }  # fmt: skip
