"""Matrix products with few rows, which determine the time of a step: the weights are read once, at memory bandwidth.

Each product is fused with what surrounds it: the RMS norm of its input (the norm's weight is folded into the matrix,
and the kernel that wrote the rows summed their squares), the gate of a SwiGLU, the residual, and the sum of squares
for the next norm. There are two kernels: `direct_kernel` for up to 64 rows of a 16-bit type, and `_matrix_kernel` for
any number of rows and any type. Both run on every GPU since Ampere (sm_80).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from .launch import grid_dependency_wait, launch, launch_dependents, supports_pdl
from .split_k import SplitKWorkspace, split_k_reduce


@dataclass(frozen=True)
class MatrixTile:
    """Block sizes of `_matrix_kernel`: rows, columns and inner elements of a step."""

    rows: int
    columns: int
    inner: int
    num_stages: int
    """Steps whose operands are in flight in shared memory."""
    num_warps: int = 4
    split_k: int = 1
    """Programs that share a sum."""
    swap: bool = False
    """Whether the weights are the left operand, which suits few rows: a tensor core takes 64 there, but 8 right."""

    def shared_memory(self, gated: bool, element_size: int, capability: tuple[int, int]) -> int:
        """Returns the bytes of shared memory that a program needs on a GPU of this compute capability."""
        # With the tensor core instructions of sm_8x the operands of the current step are in registers.
        buffers = self.num_stages - 1 if capability[0] == 8 else self.num_stages
        # 64 bytes of barriers, on sm_100.
        return 64 + buffers * (self.rows + self.columns * (1 + gated)) * self.inner * element_size


@dataclass(frozen=True)
class DirectTile:
    """Block sizes of `direct_kernel`: columns, and inner elements of a warp and step. The rows are one block."""

    columns: int
    inner: int
    num_warps: int
    split_k: int = 1
    """Programs that share a sum."""
    prefetch_depth: int = 16
    """Steps whose weights are in flight in registers."""

    MAX_ROWS: ClassVar = 64

    def shared_memory(self, rows: int) -> int:
        """Returns the bytes of shared memory that a program needs to sum its warps."""
        return 4 * self.num_warps * self.columns * row_block(rows)


Tile = DirectTile | MatrixTile


def row_block(rows: int) -> int:
    """Returns the rows of the block that `direct_kernel` computes."""
    return max(8, triton.next_power_of_2(rows))


@triton.jit
def _matrix_kernel(
    x, row_index, weight, sum_of_squares, residual, out, out_sum_of_squares, partial_sums, counters, rows, eps,
    X_STRIDE: tl.constexpr, INDEX_STRIDE: tl.constexpr, K: tl.constexpr, N: tl.constexpr, OUT_STRIDE: tl.constexpr,
    PARTS: tl.constexpr, OUT_PARTS: tl.constexpr, GATED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, SPLIT_K: tl.constexpr,
    SWAP: tl.constexpr, LAUNCH_EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if LAUNCH_EARLY:
        launch_dependents(PDL)
    column, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = column * BN + tl.arange(0, BN)
    m = block * BM + tl.arange(0, BM)
    k = split * (K // SPLIT_K) + tl.arange(0, BK)
    w_ptrs = weight + n[:, None] * K + k[None, :] if SWAP else weight + n[None, :] * K + k[:, None]
    grid_dependency_wait(PDL)
    valid = m < rows
    row = m
    if row_index is not None:
        row = tl.load(row_index + m * INDEX_STRIDE, mask=valid, other=0)
    if SWAP:
        x_ptrs = x + row[None, :] * X_STRIDE + k[:, None]
        total = tl.zeros((BN, BM), tl.float32)
        gate = total
        for start in tl.range(0, K // SPLIT_K, BK, num_stages=STAGES):
            values = tl.load(x_ptrs + start, mask=valid[None, :], other=0.0)
            total = tl.dot(tl.load(w_ptrs + start), values, total)
            if GATED:
                gate = tl.dot(tl.load(w_ptrs + N * K + start), values, gate)
        total = tl.trans(total)
        gate = tl.trans(gate)
    else:
        x_ptrs = x + row[:, None] * X_STRIDE + k[None, :]
        total = tl.zeros((BM, BN), tl.float32)
        gate = total
        for start in tl.range(0, K // SPLIT_K, BK, num_stages=STAGES):
            values = tl.load(x_ptrs + start, mask=valid[:, None], other=0.0)
            total = tl.dot(values, tl.load(w_ptrs + start), total)
            if GATED:
                gate = tl.dot(values, tl.load(w_ptrs + N * K + start), gate)
    # Not earlier: the next kernel's programs would occupy multiprocessors and bandwidth that this kernel's need.
    if not LAUNCH_EARLY:
        launch_dependents(PDL)
    is_last = True
    if SPLIT_K > 1:
        pointers = partial_sums + m[:, None] * N + n[None, :]
        stride = tl.num_programs(1) * BM * N
        counter = counters + block * (N // BN) + column
        total, gate, is_last = split_k_reduce(total, gate, pointers, stride, split, counter, SPLIT_K, GATED)
    if is_last:
        if PARTS > 0:
            part = tl.arange(0, triton.next_power_of_2(PARTS))
            norm_mask = valid[:, None] & (part < PARTS)[None, :]
            sums = tl.load(sum_of_squares + m[:, None] * PARTS + part[None, :], mask=norm_mask, other=0.0)
            scale = tl.rsqrt(tl.sum(sums, 1) / K + eps)
            total *= scale[:, None]
            if GATED:
                gate *= scale[:, None]
        if GATED:
            total = total * tl.sigmoid(total) * gate
        offsets = m[:, None] * OUT_STRIDE + n[None, :]
        if residual is not None:
            total += tl.load(residual + offsets, mask=valid[:, None], other=0.0).to(tl.float32)
        result = total.to(out.dtype.element_ty)
        tl.store(out + offsets, result, mask=valid[:, None])
        if out_sum_of_squares is not None:
            rounded = result.to(tl.float32)
            tl.store(out_sum_of_squares + m * OUT_PARTS + column, tl.sum(rounded * rounded, 1), mask=valid)


@gluon.jit
def direct_kernel(
    x, row_index, weight, sum_of_squares, residual, out, out_sum_of_squares, partial_sums, counters, rows, eps,
    X_STRIDE: gl.constexpr, INDEX_STRIDE: gl.constexpr, K: gl.constexpr, N: gl.constexpr, OUT_STRIDE: gl.constexpr,
    PARTS: gl.constexpr, OUT_PARTS: gl.constexpr, GATED: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, SPLIT_K: gl.constexpr, WARPS: gl.constexpr,
    PREFETCH_DEPTH: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `linear`. Loads weights from global memory directly into tensor core registers.

    Gluon can express what Triton cannot: a load whose result already has the layout of a tensor core operand, 16 bytes
    per thread and load, without a detour through shared memory. All weights of a program are in flight before the
    previous kernel ends. The warps split the inner axis and are summed at the end. Each step multiplies WARPS x BK
    inner elements; weights of PREFETCH_DEPTH steps are in flight.

    Each thread holds eight consecutive inner elements (`k_width=8`), whereas the instruction takes pairs. Both operands
    are permuted the same way, so the sum is the same.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    products: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], instr_shape=[1, 16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, products, 8)
    right: gl.constexpr = gl.DotOperandLayout(1, products, 8)
    STEP: gl.constexpr = WARPS * BK
    STEPS: gl.constexpr = K // SPLIT_K // STEP
    column, split = gl.program_id(0), gl.program_id(1)
    first = split * (K // SPLIT_K)

    # Weights: [warps, columns, inner].
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, left)))
    n = column * BN + gl.arange(0, BN, gl.SliceLayout(0, gl.SliceLayout(2, left)))
    k = gl.arange(0, BK, gl.SliceLayout(0, gl.SliceLayout(1, left)))
    w_ptrs = weight + first + warp[:, None, None] * BK + n[None, :, None] * K + k[None, None, :]
    w = ()
    w_gate = ()
    for step in gl.static_range(min(PREFETCH_DEPTH, STEPS)):
        w += (gl.load(w_ptrs + step * STEP),)  # type: ignore[assignment]
        if GATED:
            w_gate += (gl.load(w_ptrs + N * K + step * STEP),)  # type: ignore[assignment]
    if PDL:
        tl.extra.cuda.gdc_wait()

    # The epilogue's inputs are loaded before the rows, so that they arrive during the products.
    summing: gl.constexpr = gl.BlockedLayout([WARPS, BN // 8, 1], [1, 8, 4], [1, 1, WARPS], [0, 1, 2])
    summed: gl.constexpr = gl.SliceLayout(0, summing)
    n = column * BN + gl.arange(0, BN, gl.SliceLayout(1, summed))
    m = gl.arange(0, BM, gl.SliceLayout(0, summed))
    offsets = m[None, :] * OUT_STRIDE + n[:, None]
    mask = (m < rows)[None, :]
    if PARTS > 0:
        spread: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
        norm_row = gl.arange(0, BM, gl.SliceLayout(1, spread))[:, None]
        part = gl.arange(0, triton.next_power_of_2(PARTS), gl.SliceLayout(0, spread))[None, :]
        norm_mask = (norm_row < rows) & (part < PARTS)
        sums = gl.load(sum_of_squares + norm_row * PARTS + part, mask=norm_mask, other=0.0)
    if residual is not None:
        added = gl.load(residual + offsets, mask=mask, other=0.0)

    # Rows: [warps, inner, rows].
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, right)))
    k = gl.arange(0, BK, gl.SliceLayout(0, gl.SliceLayout(2, right)))
    row = gl.arange(0, BM, gl.SliceLayout(0, gl.SliceLayout(1, right)))
    valid = row < rows
    if row_index is not None:
        row = gl.load(row_index + row * INDEX_STRIDE, mask=valid, other=0)
    x_ptrs = x + first + warp[:, None, None] * BK + k[None, :, None] + row[None, None, :] * X_STRIDE
    total = gl.zeros([WARPS, BN, BM], gl.float32, products)
    if GATED:
        gate = gl.zeros([WARPS, BN, BM], gl.float32, products)
    values = gl.load(x_ptrs, mask=valid[None, None, :], other=0.0)
    for step in gl.static_range(STEPS):
        if step + PREFETCH_DEPTH < STEPS:
            w += (gl.load(w_ptrs + (step + PREFETCH_DEPTH) * STEP),)  # type: ignore[assignment]
            if GATED:
                w_gate += (gl.load(w_ptrs + N * K + (step + PREFETCH_DEPTH) * STEP),)  # type: ignore[assignment]
        if step + 1 < STEPS:
            next_values = gl.load(x_ptrs + (step + 1) * STEP, mask=valid[None, None, :], other=0.0)
        total = mma_v2(w[step], values, total)
        if GATED:
            gate = mma_v2(w_gate[step], values, gate)
        if step + 1 < STEPS:
            values = next_values

    # Each thread sums its elements over the warps.
    total = gl.sum(gl.convert_layout(total, summing), 0)
    gate = gl.sum(gl.convert_layout(gate, summing), 0) if GATED else total
    is_last = True
    if SPLIT_K > 1:
        pointers = partial_sums + m[None, :] * N + n[:, None]
        total, gate, is_last = split_k_reduce(
            total, gate, pointers, BM * N, split, counters + column, SPLIT_K, GATED
        )  # fmt: skip
    if is_last:
        if PARTS > 0:
            scale = gl.convert_layout(gl.rsqrt(gl.sum(sums, 1) / K + eps), gl.SliceLayout(0, summed))[None, :]
            total *= scale
            if GATED:
                gate *= scale
        if GATED:
            total = total / (1 + gl.exp(-total)) * gate
        if residual is not None:
            total += added.to(gl.float32)
        result = total.to(out.dtype.element_ty)
        gl.store(out + offsets, result, mask=mask)
        if out_sum_of_squares is not None:
            rounded = result.to(gl.float32)
            gl.store(out_sum_of_squares + m * OUT_PARTS + column, gl.sum(rounded * rounded, 0), mask=m < rows)


def linear(
    x: Tensor, weight: Tensor, out: Tensor, tile: Tile, *, rows: int, row_index: Tensor | None = None,
    sum_of_squares: Tensor | None = None, eps: float = 0.0, gated: bool = False, residual: Tensor | None = None,
    out_sum_of_squares: Tensor | None = None, workspace: SplitKWorkspace | None = None, launch_early: bool = False,
) -> None:  # fmt: skip
    """Computes `out = x @ weight.T` for the first `rows` rows.

    Args:
        x: [rows, K]; with `row_index`, [any, K]. Rows may be strided.
        weight: [N, K], contiguous; gated: [2 N, K].
        out: [rows, N], output. Rows may be strided.
        tile: the kernel and its block sizes.
        rows: number of rows.
        row_index: int32 [rows, any]; column 0 selects the rows of `x`.
        sum_of_squares: float32 [rows, parts]; the sum over parts is that of the squares of x. Divides x by its RMS.
        eps: added to the mean square.
        gated: computes `silu(x @ weight[:N].T) * (x @ weight[N:].T)`.
        residual: [rows, N] with the strides of `out`, added to the result; may be `out` itself.
        out_sum_of_squares: float32 [rows, N / tile.columns], output: sums of squares of the result.
        workspace: required if `tile.split_k` is above 1.
        launch_early: launches the next kernel at once, because it has weights to prefetch; a `DirectTile` always does.

    Raises:
        ValueError: the tile does not divide the matrix or does not support the rows or type, or the workspace is too
            small.
    """
    inner = weight.shape[1]
    columns = weight.shape[0] // (2 if gated else 1)
    step = tile.inner * tile.split_k
    block = row_block(rows) if isinstance(tile, DirectTile) else tile.rows
    if isinstance(tile, DirectTile):
        step *= tile.num_warps
        if rows > tile.MAX_ROWS or weight.element_size() != 2:
            limit = f"{tile.MAX_ROWS} rows of a 16-bit type"
            raise ValueError(f"{tile} supports up to {limit}, not {rows} of {weight.dtype}")
    if columns % tile.columns or inner % step:
        raise ValueError(f"{tile} does not divide a matrix of {columns} x {inner}")
    grid = columns // tile.columns, triton.cdiv(rows, block), tile.split_k
    partial_sums = counters = None
    if tile.split_k > 1:
        needed = tile.split_k * grid[1] * block * columns * (2 if gated else 1), grid[0] * grid[1]
        if workspace is None or workspace.partial_sums.numel() < needed[0] or workspace.counters.numel() < needed[1]:
            raise ValueError(f"{tile} of {columns} columns needs {needed[0]} partial sums and {needed[1]} counters")
        partial_sums, counters = workspace.partial_sums, workspace.counters
    parts = 0 if sum_of_squares is None else sum_of_squares.shape[1]
    arguments = (
        x, row_index, weight, sum_of_squares, residual, out, out_sum_of_squares, partial_sums, counters, rows, eps,
    )  # fmt: skip
    pdl = supports_pdl(x.device)
    options: dict[str, Any] = {
        "X_STRIDE": x.stride(0), "INDEX_STRIDE": 0 if row_index is None else row_index.stride(0), "K": inner,
        "N": columns, "OUT_STRIDE": out.stride(0), "PARTS": parts,
        "OUT_PARTS": 0 if out_sum_of_squares is None else out_sum_of_squares.shape[1], "GATED": gated, "BM": block,
        "BN": tile.columns, "BK": tile.inner, "SPLIT_K": tile.split_k, "PDL": pdl,
        "num_warps": tile.num_warps, "launch_pdl": pdl,
    }  # fmt: skip
    if isinstance(tile, DirectTile):
        options |= {"WARPS": tile.num_warps, "PREFETCH_DEPTH": tile.prefetch_depth}
        launch(direct_kernel, grid[::2], *arguments, **options)
    else:
        options |= {"STAGES": tile.num_stages, "SWAP": tile.swap, "LAUNCH_EARLY": launch_early}
        launch(_matrix_kernel, grid, *arguments, **options)
