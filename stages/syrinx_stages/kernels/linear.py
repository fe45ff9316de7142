"""Matrix products of few rows: what a step's time is made of. The weights are read once, at the memory's speed.

What surrounds a product happens in it: the RMS norm before (its weight is folded into the matrix, the squares were
summed by whoever wrote the rows), the gate of a SwiGLU, residual, and the sums of squares for the next norm.
Two kernels: `direct` is for up to 64 rows, with weights that are in the tensor cores' registers before the kernel
before has ended; `_matrix` is for any number of rows and any type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import triton
import triton.language as tl
from torch import Tensor

from .direct import direct
from .launch import PDL_SUPPORTED, grid_dependency_wait, launch, launch_dependents


@dataclass(frozen=True)
class Matrix:
    """How `_matrix` is cut: rows, columns and inner elements of a step, steps in flight, warps, programs per sum.

    swap: the weights are the left factor.
    """

    rows: int
    columns: int
    inner: int
    stages: int
    warps: int = 4
    shares: int = 1
    swap: bool = False


@dataclass(frozen=True)
class Direct:
    """How `direct` is cut: columns, inner elements of a warp and step, warps, programs per sum, steps on their way.

    For up to 64 rows of a 16-bit type.
    """

    columns: int
    inner: int
    warps: int
    shares: int = 1
    ahead: int = 16

    MOST_ROWS: ClassVar = 64


Tile = Direct | Matrix


@triton.jit
def _matrix(
    x, index, weight, squares, residual, out, out_squares, shared, arrived, rows, eps,
    X_STRIDE: tl.constexpr, INDEX_STRIDE: tl.constexpr, K: tl.constexpr, N: tl.constexpr, OUT_STRIDE: tl.constexpr,
    PARTS: tl.constexpr, PARTS_P: tl.constexpr, OUT_PARTS: tl.constexpr, GATED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, SHARES: tl.constexpr,
    SWAP: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if EARLY:
        launch_dependents(PDL)
    column, block, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = column * BN + tl.arange(0, BN)
    m = block * BM + tl.arange(0, BM)
    first = share * (K // SHARES)
    k = first + tl.arange(0, BK)
    w_at = weight + n[:, None] * K + k[None, :] if SWAP else weight + n[None, :] * K + k[:, None]
    grid_dependency_wait(PDL)
    held = m < rows
    row = m
    if index is not None:
        row = tl.load(index + m * INDEX_STRIDE, mask=held, other=0)
    if SWAP:
        # The weights' columns take the place of the rows: a tensor core has at least 64 of those, and eight of these.
        x_at = x + row[None, :] * X_STRIDE + k[:, None]
        total = tl.zeros((BN, BM), tl.float32)
        if GATED:
            gated = tl.zeros((BN, BM), tl.float32)
        for start in tl.range(0, K // SHARES, BK, num_stages=STAGES):
            values = tl.load(x_at + start, mask=held[None, :], other=0.0)
            total = tl.dot(tl.load(w_at + start), values, total)
            if GATED:
                gated = tl.dot(tl.load(w_at + N * K + start), values, gated)
        total = tl.trans(total)
        if GATED:
            gated = tl.trans(gated)
    else:
        x_at = x + row[:, None] * X_STRIDE + k[None, :]
        total = tl.zeros((BM, BN), tl.float32)
        if GATED:
            gated = tl.zeros((BM, BN), tl.float32)
        for start in tl.range(0, K // SHARES, BK, num_stages=STAGES):
            values = tl.load(x_at + start, mask=held[:, None], other=0.0)
            total = tl.dot(values, tl.load(w_at + start), total)
            if GATED:
                gated = tl.dot(values, tl.load(w_at + N * K + start), gated)
    # Not before: the next kernel's programs would take the place and the bandwidth of those that still wait for theirs.
    if not EARLY:
        launch_dependents(PDL)
    last = True
    if SHARES > 1:
        place = shared + (block * BM + tl.arange(0, BM))[:, None] * N + n[None, :]
        size = tl.num_programs(1) * BM * N
        tl.store(place + share * size, total, cache_modifier=".cg")
        if GATED:
            tl.store(place + (SHARES + share) * size, gated, cache_modifier=".cg")
        tl.debug_barrier()
        counter = arrived + block * (N // BN) + column
        last = tl.atomic_add(counter, 1, sem="acq_rel") == SHARES - 1
        if last:
            # All shares are summed in their order, whoever came last.
            total = tl.load(place, cache_modifier=".cg")
            for other in range(1, SHARES):
                total += tl.load(place + other * size, cache_modifier=".cg")
            if GATED:
                gated = tl.load(place + SHARES * size, cache_modifier=".cg")
                for other in range(SHARES + 1, 2 * SHARES):
                    gated += tl.load(place + other * size, cache_modifier=".cg")
            tl.store(counter, 0)
    if last:
        if PARTS > 0:
            part = tl.arange(0, PARTS_P)
            here = held[:, None] & (part < PARTS)[None, :]
            sums = tl.load(squares + m[:, None] * PARTS + part[None, :], mask=here, other=0.0)
            scale = tl.rsqrt(tl.sum(sums, 1) / K + eps)
            total *= scale[:, None]
            if GATED:
                gated *= scale[:, None]
        if GATED:
            total = total * tl.sigmoid(total) * gated
        at = m[:, None] * OUT_STRIDE + n[None, :]
        if residual is not None:
            total += tl.load(residual + at, mask=held[:, None], other=0.0).to(tl.float32)
        result = total.to(out.dtype.element_ty)
        tl.store(out + at, result, mask=held[:, None])
        if out_squares is not None:
            rounded = result.to(tl.float32)
            tl.store(out_squares + m * OUT_PARTS + column, tl.sum(rounded * rounded, 1), mask=held)


@dataclass(frozen=True)
class SplitKWorkspace:
    """Where the programs that share a sum leave their parts, and count who has arrived: zeros between launches."""

    parts: Tensor
    """float32, at least shares x rows (whole blocks) x columns."""
    arrived: Tensor
    """int32, at least one for each block."""


def linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    tile: Tile,
    *,
    rows: int,
    index: Tensor | None = None,
    squares: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    out_squares: Tensor | None = None,
    sharing: SplitKWorkspace | None = None,
    early: bool = False,
) -> None:
    """`out = x @ weight.T`, for the first `rows` rows.

    x: [rows, K] or, of a larger one, the rows that column 0 of `index` [rows, any] (int32) names. weight: [N, K]
    contiguous; gated, [2 N, K], and the result is silu(first half) * second half. squares: [rows, parts] float32,
    whose sum over parts is that of x's squares: x is normalised by it. residual: added, may be `out`. out_squares:
    [rows, N / tile.columns] float32, takes the sums of the result's squares. sharing: for a tile with several shares.
    early: the next kernel has something to fetch, so it begins at once; with `Direct` it always does.
    Raises ValueError if the tile does not divide the matrix, or is not for so many rows.
    """
    inner = weight.shape[1]
    outer = weight.shape[0] // (2 if gated else 1)
    parts = 0 if squares is None else squares.shape[1]
    common = {
        "X_STRIDE": x.stride(0), "INDEX_STRIDE": 0 if index is None else index.stride(0), "K": inner, "N": outer,
        "OUT_STRIDE": out.stride(0), "PARTS": parts, "PARTS_P": triton.next_power_of_2(max(parts, 1)),
        "OUT_PARTS": 0 if out_squares is None else out_squares.shape[1], "GATED": gated, "BN": tile.columns,
        "PDL": PDL_SUPPORTED, "num_warps": tile.warps, "launch_pdl": PDL_SUPPORTED,
    }  # fmt: skip
    at_a_time = tile.inner * tile.shares
    if isinstance(tile, Direct):
        at_a_time *= tile.warps
        if rows > tile.MOST_ROWS or weight.element_size() != 2:
            limit = f"{tile.MOST_ROWS} rows of a 16-bit type"
            raise ValueError(f"{tile} is for up to {limit}, not {rows} of {weight.dtype}")
    if outer % tile.columns or inner % at_a_time:
        raise ValueError(f"{tile} does not divide a matrix of {outer} x {inner}")
    operands = x, index, weight, squares, residual, out, out_squares
    columns = outer // tile.columns
    block = max(8, triton.next_power_of_2(rows)) if isinstance(tile, Direct) else tile.rows
    height = triton.cdiv(rows, block)
    shared = arrived = None
    if tile.shares > 1:
        wanted = tile.shares * height * block * outer * (2 if gated else 1), height * columns
        if sharing is None or sharing.parts.numel() < wanted[0] or sharing.arrived.numel() < wanted[1]:
            raise ValueError(f"{tile} of {outer} columns needs room for {wanted[0]} parts and {wanted[1]} counts")
        shared, arrived = sharing.parts, sharing.arrived
    cut: dict[str, Any] = {"BM": block, "BK": tile.inner, "SHARES": tile.shares, **common}
    if isinstance(tile, Direct):
        launch(
            direct,
            (columns, tile.shares),
            *operands,
            shared,
            arrived,
            rows,
            eps,
            WARPS=tile.warps,
            AHEAD=tile.ahead,
            **cut,
        )
        return
    launch(
        _matrix, (columns, height, tile.shares), *operands, shared, arrived, rows, eps, STAGES=tile.stages,
        SWAP=tile.swap, EARLY=early, **cut,
    )  # fmt: skip
