"""Samples codes on the device with the same random numbers and in the same order of operations as `model.sampling`.

Sampling parameters are float32 [slots, 2, NUM_SAMPLING_PARAMS]: one set for code 0 and one for the residual codes.
Temperature 0 selects the most likely code. A row whose scores are not finite gets INVALID_CODE and continues with code
0, so that it reads no memory outside of its tables; the host discards its frame.

In all functions, `codes` is int32 [rows, groups]; `x` [rows, width] and `sum_of_squares` float32 [rows, parts] are the
rows of a layer stack's input and the sums of their squares.

Every kernel here waits for its predecessor before it launches its dependents. The attention kernels rely on that: they
read what was written before the last code was sampled without waiting.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from .launch import grid_dependency_wait, launch, launch_dependents, supports_pdl
from .metadata import FRAME, NUM_POSITIONS, RING, SLOT, TEXT

TEMPERATURE = tl.constexpr(0)
TOP_K = tl.constexpr(1)
TOP_P = tl.constexpr(2)
REPETITION_PENALTY = tl.constexpr(3)
MIN_FRAMES = tl.constexpr(4)
NUM_SAMPLING_PARAMS = 5
INVALID_CODE = tl.constexpr(-1)
"""Sampled in place of a code from scores that have NaN, infinity or nothing else than -infinity."""


@triton.jit
def _splitmix64(x):
    """Returns SplitMix64's finalizer of `x` (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def uniform(seed, frame, group):
    """Returns the random number in [0, 1) that selects a code: `model.sampling.uniforms`, rounded down to 24 bits."""
    gamma = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    state = _splitmix64(_splitmix64(seed.to(tl.uint64, bitcast=True) + gamma) + (frame.to(tl.uint64) + 1) * gamma)
    bits = _splitmix64(state + gamma * (tl.full((), 1, tl.uint64) + group)) >> 40
    return bits.to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _sort_keys(scores):
    """Returns unsigned integers that have the same order as the float32 `scores`."""
    bits = scores.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | tl.full((), -2147483648, tl.int32))).to(tl.uint32, bitcast=True)


@triton.jit
def _top_k_threshold(keys, k, max_key):
    """Returns a threshold that exactly `k` keys reach, or, with ties, the largest that at least `k` keys reach.

    Each iteration counts at three pivots in one packed sum and quarters the range; about eight iterations find the
    50th of 2,048 keys.
    """
    low = tl.full((), 0, tl.uint32)
    high = max_key
    reached = tl.full((), 0x7FFFFFFF, tl.int32)
    mask = tl.full((), 0xFFFFF, tl.int64)
    while (reached > k) & (high > low):
        # At least 1, so that the range always shrinks; the threshold may be `high` itself.
        step = tl.maximum((high - low) >> 2, 1)
        one = low + step
        two = tl.minimum(one + step, high)
        three = tl.minimum(two + step, high)
        counts = (keys >= one).to(tl.int64) + ((keys >= two).to(tl.int64) << 20) + ((keys >= three).to(tl.int64) << 40)
        total = tl.sum(counts, 0)
        c1, c2, c3 = (total & mask).to(tl.int32), ((total >> 20) & mask).to(tl.int32), (total >> 40).to(tl.int32)
        if c3 >= k:
            low = three
            reached = c3
        elif c2 >= k:
            low = two
            high = three - 1
            reached = c2
        elif c1 >= k:
            low = one
            high = two - 1
            reached = c1
        else:
            high = one - 1
    return low


@triton.jit
def _top_p_threshold(keys, mass, max_dropped):
    """Returns the largest threshold such that the keys below it have at most `max_dropped` of the mass."""
    threshold = tl.full((), 0, tl.uint32)
    step = tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):
        raised = threshold + step
        step = step >> 1
        below = tl.sum(tl.where(keys < raised, mass, 0.0), 0)
        threshold = tl.where(below <= max_dropped, raised, threshold)
    return threshold


@triton.jit
def sample(scores, id, params, number):
    """Returns one sampled id, or INVALID_CODE.

    scores: float32 by id, -inf for ids that must not be sampled. params: pointer to one set of sampling parameters.
    number: the random number in [0, 1).

    A score that is not finite makes its mass, the total and so `target` NaN, and no cumulative mass exceeds NaN. For
    that, masses are removed by multiplication. The check itself is only on the path that rounding rarely takes.
    """
    temperature = tl.load(params + TEMPERATURE)
    top_k = tl.load(params + TOP_K).to(tl.int32)
    top_p = tl.load(params + TOP_P)
    best = tl.max(scores, 0)
    if temperature > 0:
        scores = scores / temperature
        best = best / temperature
        mass = tl.exp(scores - best)
        if top_k > 0:
            keys = _sort_keys(scores)
            mass *= (keys >= _top_k_threshold(keys, top_k, _sort_keys(best))).to(tl.float32)
        total = tl.sum(mass, 0)
        if top_p < 1:
            keys = _sort_keys(scores)
            # The best id is always kept.
            threshold = tl.minimum(_top_p_threshold(keys, mass, (1 - top_p) * total), _sort_keys(best))
            mass *= (keys >= threshold).to(tl.float32)
            total = tl.sum(mass, 0)
        target = number * total
    else:
        # The first id with the best score.
        mass = tl.where(scores == best, 1.0, tl.where(scores == scores, 0.0, float("nan")))
        target = (best - best) * tl.sum(mass, 0)
    # The first id whose cumulative mass exceeds the target.
    sampled = tl.min(tl.where(tl.cumsum(mass, 0) > target, id, 0x7FFFFFFF), 0)
    if sampled == 0x7FFFFFFF:
        # Rounding moved the target past the last id that has any mass.
        sampled = tl.where(target == target, tl.max(tl.where(mass > 0, id, 0), 0), INVALID_CODE)
    return sampled


@triton.jit
def _store_row(values, out, sum_of_squares, row, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Stores a row and its sum of squares, all of it in part 0."""
    i = tl.arange(0, triton.next_power_of_2(WIDTH))
    tl.store(out + row * WIDTH + i, values, mask=i < WIDTH)
    squared = values.to(tl.float32)
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    sums = tl.where(part == 0, tl.sum(squared * squared, 0), 0.0)
    tl.store(sum_of_squares + row * PARTS + part, sums, mask=part < PARTS)


@triton.jit
def _copy_row(table, index, out, sum_of_squares, row, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Copies row `index` of a table, or row 0 for INVALID_CODE, and stores its sum of squares."""
    i = tl.arange(0, triton.next_power_of_2(WIDTH))
    values = tl.load(table + tl.maximum(index, 0).to(tl.int64) * WIDTH + i, mask=i < WIDTH, other=0.0)
    _store_row(values, out, sum_of_squares, row, WIDTH, PARTS)


@triton.jit
def _first_code_kernel(
    scores, metadata, sampling_params, seeds, seen, table, codes, out, sum_of_squares, bias,
    METADATA_STRIDE: tl.constexpr, PARAMS_STRIDE: tl.constexpr, SCORES_STRIDE: tl.constexpr,
    CODES_STRIDE: tl.constexpr, VOCABULARY: tl.constexpr, FIRST_SPECIAL: tl.constexpr, EOS: tl.constexpr,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    slot = tl.load(metadata + row * METADATA_STRIDE + SLOT)
    frame = tl.load(metadata + row * METADATA_STRIDE + FRAME)
    id = tl.arange(0, triton.next_power_of_2(VOCABULARY))
    grid_dependency_wait(PDL)
    launch_dependents(PDL)
    score = tl.load(scores + row * SCORES_STRIDE + id, mask=id < VOCABULARY, other=float("-inf"))
    # What an earlier request of the slot has left does not count.
    repeated = (tl.load(seen + slot.to(tl.int64) * VOCABULARY + id, mask=id < VOCABULARY, other=0) != 0) & (frame > 0)
    row_params = sampling_params + slot * PARAMS_STRIDE
    penalty = tl.load(row_params + REPETITION_PENALTY)
    score = tl.where(repeated, tl.where(score < 0, score * penalty, score / penalty), score)
    too_early = frame < tl.load(row_params + MIN_FRAMES).to(tl.int32)
    score = tl.where((id >= FIRST_SPECIAL) & ((id != EOS) | too_early), float("-inf"), score)
    code = sample(score, id, row_params, uniform(tl.load(seeds + slot), frame, 0))
    tl.store(codes + row * CODES_STRIDE, code.to(codes.dtype.element_ty))
    is_new = (id == code) | (frame == 0)
    tl.store(seen + slot.to(tl.int64) * VOCABULARY + id, (id == code).to(tl.int8), mask=(id < VOCABULARY) & is_new)
    # The predictor's first input is the talker's state, projected by the same product as the logits.
    i = tl.arange(0, triton.next_power_of_2(WIDTH))
    state = tl.load(scores + row * SCORES_STRIDE + VOCABULARY + i, mask=i < WIDTH, other=0.0)
    state += tl.load(bias + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    _store_row(state.to(out.dtype.element_ty), out, sum_of_squares, row, WIDTH, PARTS)
    _copy_row(table, code, out, sum_of_squares, rows + row, WIDTH, PARTS)


@triton.jit
def _residual_code_kernel(
    scores, metadata, sampling_params, seeds, table, codes, out, sum_of_squares, group,
    METADATA_STRIDE: tl.constexpr, PARAMS_STRIDE: tl.constexpr, CODES_STRIDE: tl.constexpr, CODEBOOK: tl.constexpr,
    LAST: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(metadata + row * METADATA_STRIDE + SLOT)
    frame = tl.load(metadata + row * METADATA_STRIDE + FRAME)
    number = uniform(tl.load(seeds + slot), frame, group)
    id = tl.arange(0, triton.next_power_of_2(CODEBOOK))
    grid_dependency_wait(PDL)
    launch_dependents(PDL)
    score = tl.load(scores + row * CODEBOOK + id, mask=id < CODEBOOK, other=float("-inf"))
    # The second half of a slot's parameters is for the residual codes.
    code = sample(score, id, sampling_params + slot * PARAMS_STRIDE + PARAMS_STRIDE // 2, number)
    tl.store(codes + row * CODES_STRIDE + group, code.to(codes.dtype.element_ty))
    if not LAST:
        _copy_row(table, code, out, sum_of_squares, row, WIDTH, PARTS)


@triton.jit
def _embed_frame_kernel(
    codes, metadata, first, rest, texts, out, sum_of_squares, host_codes,
    METADATA_STRIDE: tl.constexpr, CODEBOOK: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, MAX_ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0), tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    text = tl.load(metadata + row * METADATA_STRIDE + TEXT)
    total = tl.load(texts + text.to(tl.int64) * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    ring = tl.load(metadata + row * METADATA_STRIDE + RING)
    grid_dependency_wait(PDL)
    launch_dependents(PDL)
    group = tl.arange(0, GROUPS)
    frame = tl.load(codes + row * GROUPS + group)
    if block == 0:
        tl.store(host_codes + (ring * MAX_ROWS + row) * GROUPS + group, frame.to(host_codes.dtype.element_ty))
    code = tl.maximum(tl.load(codes + row * GROUPS), 0)
    total += tl.load(first + code.to(tl.int64) * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    for g in tl.static_range(1, GROUPS):
        code = tl.maximum(tl.load(codes + row * GROUPS + g), 0) + (g - 1) * CODEBOOK
        total += tl.load(rest + code.to(tl.int64) * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    result = total.to(out.dtype.element_ty)
    tl.store(out + row * WIDTH + i, result, mask=inside)
    squared = result.to(tl.float32)
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    # Each program stores its sum in the part of its own number; parts beyond the number of programs become 0.
    sums = tl.where(part == block, tl.sum(squared * squared, 0), 0.0)
    tl.store(sum_of_squares + row * PARTS + part, sums, mask=(part % tl.num_programs(1) == block) & (part < PARTS))


@triton.jit
def _norm_last_kernel(
    x, sum_of_squares, weight, metadata, out, eps,
    METADATA_STRIDE: tl.constexpr, LENGTH: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(metadata + row * METADATA_STRIDE + SLOT)
    i = tl.arange(0, triton.next_power_of_2(WIDTH))
    w = tl.load(weight + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    source = row
    if LENGTH > 1:
        source = row * LENGTH + tl.maximum(tl.load(metadata + row * METADATA_STRIDE + NUM_POSITIONS), 1) - 1
    grid_dependency_wait(PDL)
    launch_dependents(PDL)
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    total = tl.sum(tl.load(sum_of_squares + source * PARTS + part, mask=part < PARTS, other=0.0), 0)
    values = tl.load(x + source * WIDTH + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    result = (values * tl.rsqrt(total / WIDTH + eps) * w).to(out.dtype.element_ty)
    tl.store(out + slot.to(tl.int64) * WIDTH + i, result, mask=i < WIDTH)


@triton.jit
def _copy_kernel(x, out, sum_of_squares, WIDTH: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr):
    grid_dependency_wait(PDL)
    launch_dependents(PDL)
    row = tl.program_id(0)
    _copy_row(x, row, out, sum_of_squares, row, WIDTH, PARTS)


@triton.jit
def _embed_prompts_kernel(
    inputs, texts, first, added, out, sum_of_squares,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    text = tl.load(inputs + row * COLUMNS).to(tl.int64)
    code = tl.load(inputs + row * COLUMNS + 1).to(tl.int64)
    has_added = tl.load(inputs + row * COLUMNS + 2) != 0
    i = tl.arange(0, triton.next_power_of_2(WIDTH))
    inside = i < WIDTH
    total = tl.load(texts + text * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(first + code * WIDTH + i, mask=inside & (code >= 0), other=0.0).to(tl.float32)
    total += tl.load(added + row * WIDTH + i, mask=inside & has_added, other=0.0).to(tl.float32)
    grid_dependency_wait(PDL)
    launch_dependents(PDL)
    _store_row(total.to(out.dtype.element_ty), out, sum_of_squares, row, WIDTH, PARTS)


@dataclass(frozen=True)
class SamplingInputs:
    """The rows of a step and the per-request sampling state."""

    metadata: Tensor
    """int32 [rows, NUM_COLUMNS + pages], see `kernels.metadata`."""
    params: Tensor
    """float32 [slots, 2, NUM_SAMPLING_PARAMS]."""
    seeds: Tensor
    """int64 [slots]."""
    seen: Tensor
    """int8 [slots, vocabulary]: 1 for each code 0 that the request has generated."""


def sample_first_code(
    rows: SamplingInputs, scores: Tensor, bias: Tensor, table: Tensor, codes: Tensor, x: Tensor,
    sum_of_squares: Tensor, *, eos: int, num_special: int,
) -> None:  # fmt: skip
    """Samples code 0 of each row and writes the code predictor's first two inputs.

    Args:
        rows: rows of the step; `seen` is updated.
        scores: float32 [rows, vocabulary + width]: logits, then the state in the predictor's width without its bias.
        bias: [width], added to the state.
        table: [vocabulary, width], code 0's embeddings in the predictor's width.
        codes: column 0 is written.
        x: [2 * rows, width], output: the states of all rows, then the embeddings of their codes.
        sum_of_squares: [2 * rows, parts], output.
        eos: the only one of the last `num_special` ids, which are not codes, that may be sampled.
    """
    vocabulary, width = table.shape
    launch(
        _first_code_kernel, (codes.shape[0],), scores, rows.metadata, rows.params, rows.seeds, rows.seen, table, codes,
        x, sum_of_squares, bias, METADATA_STRIDE=rows.metadata.stride(0), PARAMS_STRIDE=rows.params.stride(0),
        SCORES_STRIDE=scores.stride(0), CODES_STRIDE=codes.stride(0), VOCABULARY=vocabulary,
        FIRST_SPECIAL=vocabulary - num_special, EOS=eos, **_row_options(width, sum_of_squares),
    )  # fmt: skip


def sample_residual_code(
    rows: SamplingInputs, scores: Tensor, group: int, table: Tensor | None, codes: Tensor, x: Tensor,
    sum_of_squares: Tensor,
) -> None:  # fmt: skip
    """Samples column `group` of `codes` and writes the code predictor's next input to `x` and `sum_of_squares`.

    scores: float32 [rows, codebook]. table: [codebook, width], the codes' embeddings; None for the last codebook, which
    has no next input.
    """
    launch(
        _residual_code_kernel, (codes.shape[0],), scores, rows.metadata, rows.params, rows.seeds, table, codes, x,
        sum_of_squares, group, METADATA_STRIDE=rows.metadata.stride(0), PARAMS_STRIDE=rows.params.stride(0),
        CODES_STRIDE=codes.stride(0), CODEBOOK=scores.shape[1], LAST=table is None,
        **_row_options(x.shape[1], sum_of_squares),
    )  # fmt: skip


def embed_frame(
    rows: SamplingInputs, codes: Tensor, first: Tensor, rest: Tensor, texts: Tensor, x: Tensor, sum_of_squares: Tensor,
    host_codes: Tensor,
) -> None:  # fmt: skip
    """Writes the talker's next input, the sum of a frame's embeddings and its text's; copies the codes to the host.

    Args:
        rows, codes: the step's rows and their codes.
        first: [vocabulary, width], embeddings of code 0.
        rest: [groups - 1, codebook, width], embeddings of the residual codes.
        texts: [text vocabulary, width], embeddings of text tokens.
        x, sum_of_squares: outputs.
        host_codes: int16 [ring, max rows, groups] in pinned host memory, output.
    """
    count, groups = codes.shape
    width = x.shape[1]
    block = min(512, triton.next_power_of_2(width))
    launch(
        _embed_frame_kernel, (count, triton.cdiv(width, block)), codes, rows.metadata, first, rest, texts, x,
        sum_of_squares, host_codes, METADATA_STRIDE=rows.metadata.stride(0), CODEBOOK=rest.shape[1], GROUPS=groups,
        BLOCK=block, MAX_ROWS=host_codes.shape[1], **_row_options(width, sum_of_squares),
    )  # fmt: skip


def embed_prompts(
    inputs: Tensor, texts: Tensor, first: Tensor, added: Tensor, x: Tensor, sum_of_squares: Tensor
) -> None:
    """Writes the talker's inputs of prompts, the sums of the embeddings of text tokens and codes.

    Args:
        inputs: int32 [rows, 3]: text token; code 0, or -1 for none; whether the same row of `added` is added.
        texts: [text vocabulary, width], embeddings of text tokens.
        first: [vocabulary, width], embeddings of code 0.
        added: [rows, width].
        x, sum_of_squares: outputs.
    """
    launch(
        _embed_prompts_kernel, (len(inputs),), inputs, texts, first, added, x, sum_of_squares, COLUMNS=inputs.shape[1],
        **_row_options(x.shape[1], sum_of_squares),
    )  # fmt: skip


def norm_last_position(
    x: Tensor, sum_of_squares: Tensor, weight: Tensor, eps: float, metadata: Tensor, out: Tensor, length: int = 1
) -> None:
    """Writes the RMS norm of each row's last position to the row's slot of `out` [slots, width].

    x and sum_of_squares have `length` positions per row. With a length above 1, NUM_POSITIONS of them are valid.
    weight: [width]. eps: added to the mean square. metadata: int32 [rows, columns].
    """
    launch(
        _norm_last_kernel, (metadata.shape[0],), x, sum_of_squares, weight, metadata, out, eps,
        METADATA_STRIDE=metadata.stride(0), LENGTH=length, **_row_options(x.shape[1], sum_of_squares),
    )  # fmt: skip


def copy_rows(x: Tensor, out: Tensor, sum_of_squares: Tensor) -> None:
    """Copies `x` [rows, width] to `out` and writes its sums of squares."""
    launch(_copy_kernel, (x.shape[0],), x, out, sum_of_squares, **_row_options(x.shape[1], sum_of_squares))


def _row_options(width: int, sum_of_squares: Tensor) -> dict[str, int | bool]:
    pdl = supports_pdl(sum_of_squares.device)
    return {"WIDTH": width, "PARTS": sum_of_squares.shape[1], "PDL": pdl, "launch_pdl": pdl}
