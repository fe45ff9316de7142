"""Split-K reduction: several programs compute parts of one sum, and the last one to finish adds them up."""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class SplitKWorkspace:
    """Global memory for split-K products."""

    partial_sums: Tensor
    """float32 [at least split_k * rows (rounded up to whole blocks) * columns (gated: twice as many)]."""
    counters: Tensor
    """int32 [at least the number of blocks]; zeros between launches."""


@triton.jit
def split_k_reduce(
    total, gate, partial_sums, stride, split, counter, SPLIT_K: tl.constexpr, GATED: tl.constexpr = False
):  # fmt: skip
    """Returns both sums and whether this program is the last of SPLIT_K; in the others the sums remain partial.

    The partial sums are added in the order of their split, so the result does not depend on which program is last.
    Gluon kernels may call it too.

    Args:
        total, gate: this program's partial sums, float32 blocks; without GATED, `gate` is returned unchanged.
        partial_sums: pointers to split 0 of the block in global memory; with GATED, splits SPLIT_K to 2 * SPLIT_K - 1
            are those of `gate`.
        stride: elements from one split to the next.
        split: this program's number, below SPLIT_K, which is at least 2.
        counter: pointer to an int32 that is 0 between launches.
    """
    tl.store(partial_sums + split * stride, total, cache_modifier=".cg")
    if GATED:
        tl.store(partial_sums + (SPLIT_K + split) * stride, gate, cache_modifier=".cg")
    tl.debug_barrier()
    is_last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLIT_K - 1
    if is_last:
        total = tl.load(partial_sums, cache_modifier=".cg")
        for other in tl.static_range(1, SPLIT_K):
            total += tl.load(partial_sums + other * stride, cache_modifier=".cg")
        if GATED:
            gate = tl.load(partial_sums + SPLIT_K * stride, cache_modifier=".cg")
            for other in tl.static_range(SPLIT_K + 1, 2 * SPLIT_K):
                gate += tl.load(partial_sums + other * stride, cache_modifier=".cg")
        tl.store(counter, 0)
    return total, gate, is_last
