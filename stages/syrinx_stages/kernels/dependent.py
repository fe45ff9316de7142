"""Programmatic dependent launch: a kernel starts while the one before it still runs, and fetches its weights meanwhile.

Every kernel of a chain calls `begin`, reads nothing that an earlier kernel writes before it has called `wait`, and is
launched with `launch_pdl=DEPENDENT`. As each waits for the one before to be complete, so it does for all before that.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction


def _supported() -> bool:
    """Hopper and later have it (CUDA programming guide, "Programmatic Dependent Launch")."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


DEPENDENT = _supported()
"""Whether this device has programmatic dependent launch, and the bulk prefetch that goes with it."""


@triton.jit
def begin(ENABLED: tl.constexpr):
    """Lets the next kernel start."""
    if ENABLED:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(ENABLED: tl.constexpr):
    """Waits until all that the earlier kernels wrote can be read."""
    if ENABLED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(start, BYTES: tl.constexpr, THREADS: tl.constexpr, ASM: tl.constexpr):
    """Brings BYTES from the pointer `start` to the L2 cache, an equal part of them by each thread; ASM: see `bulk`."""
    address = start.to(tl.uint64, bitcast=True) + tl.arange(0, THREADS).to(tl.uint64) * (BYTES // THREADS)
    tl.inline_asm_elementwise(ASM, "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1)


def bulk(total: int, threads: int) -> str:
    """The instruction by which each thread prefetches its part; empty if parts are not whole 16 bytes, or unsupported."""
    part = total // threads
    if not DEPENDENT or not part or part % 16 or total % threads:
        return ""
    return f"cp.async.bulk.prefetch.L2.global [$1], {part}; mov.u32 $0, 0;"


INTERPRETED = isinstance(begin, InterpretedFunction)
"""Kernels run in Triton's interpreter, on a CPU (`TRITON_INTERPRET=1`)."""
