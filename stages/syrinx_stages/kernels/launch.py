"""How kernels are run, or compiled beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from triton import AsyncCompileMode

COMPILERS = 16
"""Kernels compiled at once."""

_compiling = ContextVar("compiling", default=False)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Runs a kernel, or enqueues it on the current stream."""
    if _compiling.get():
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        kernel[grid](*arguments, **options)


@contextmanager
def compiling() -> Iterator[None]:
    """Within, what this thread launches is compiled, on several threads, and not run. All of it is done at the end."""
    token = _compiling.set(True)
    try:
        with ThreadPoolExecutor(COMPILERS) as threads, AsyncCompileMode(threads):
            yield
    finally:
        _compiling.reset(token)
