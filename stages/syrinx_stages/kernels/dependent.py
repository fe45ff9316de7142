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


INTERPRETED = isinstance(begin, InterpretedFunction)
"""Kernels run in Triton's interpreter, on a CPU (`TRITON_INTERPRET=1`)."""
