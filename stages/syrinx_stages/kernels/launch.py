"""Launches and compiles Triton kernels; programmatic dependent launch (PDL).

With PDL a kernel starts while the previous one still runs, and prefetches its weights. Each kernel of a sequence calls
`launch_dependents` and `grid_dependency_wait`, and is launched with `launch_pdl` where `supports_pdl`. Since every
kernel waits for completion of its predecessor, it also waits for all earlier ones, and sees everything they wrote. A
kernel that waits before it launches its dependents gives its successor a stronger guarantee: the successor may read
what earlier kernels wrote without waiting. Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch".
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton
import triton.language as tl
from triton import AsyncCompileMode
from triton.runtime.interpreter import InterpretedFunction

from .gpu import gpu_of

COMPILE_THREADS = 16

_compile_only = ContextVar("compile_only", default=False)


@triton.jit
def launch_dependents(ENABLED: tl.constexpr):
    """Lets the next kernel start."""
    if ENABLED:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def grid_dependency_wait(ENABLED: tl.constexpr):
    """Waits until everything that earlier kernels wrote is visible."""
    if ENABLED:
        tl.extra.cuda.gdc_wait()


INTERPRETED = isinstance(launch_dependents, InterpretedFunction)
"""Whether Triton's interpreter runs the kernels on the CPU (`TRITON_INTERPRET=1`)."""


def supports_pdl(device: torch.device) -> bool:
    """Returns whether kernels on a device may be launched with PDL: on Hopper and later."""
    return not INTERPRETED and gpu_of(device).capability >= (9, 0)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Enqueues a kernel on the current stream, or only compiles it within `compile_only`."""
    if _compile_only.get():
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        kernel[grid](*arguments, **options)


@contextmanager
def compile_only() -> Iterator[None]:
    """Makes `launch` compile kernels on several threads, without running them, until the context exits."""
    token = _compile_only.set(True)
    try:
        with ThreadPoolExecutor(COMPILE_THREADS) as threads, AsyncCompileMode(threads):
            yield
    finally:
        _compile_only.reset(token)
