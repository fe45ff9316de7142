"""Programmatic dependent launch: a kernel starts while the one before it still runs, and fetches its weights meanwhile.

Every kernel of a chain calls `begin` and `wait`, and is launched with `launch_pdl=DEPENDENT`. As each waits for the one
before to be complete, so it does for all before that; nothing that an earlier kernel writes is read sooner. But where a
kernel has called `wait` before `begin`, whatever comes after it may read at once what was written before it.
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
"""Whether this device has programmatic dependent launch."""


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
def prefetch(start, rows, stride, bytes, THREADS: tl.constexpr, ENABLED: tl.constexpr):
    """Brings the first `bytes` of each of `rows` rows, `stride` bytes apart, to the L2 cache; all programs share them.

    THREADS: of a program. The bytes are whole 16.
    """
    if ENABLED:
        program = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
        programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
        for first in range(program * THREADS, rows, programs * THREADS):
            row = first + tl.arange(0, THREADS)
            address = start.to(tl.uint64, bitcast=True) + row.to(tl.uint64) * stride
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $3; mov.u32 $0, 0; }",
                "=r,l,r,r",
                [address, (row < rows).to(tl.int32), tl.full((THREADS,), 0, tl.int32) + bytes],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


INTERPRETED = isinstance(begin, InterpretedFunction)
"""Kernels run in Triton's interpreter, on a CPU (`TRITON_INTERPRET=1`)."""
