"""Compiles what a piece of work would launch, all at once: one kernel after the other they take minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    # On a machine without a GPU whoever imports Triton first decides whether kernels are interpreted.
    from syrinx_stages.talker.cuda_engine import CudaTalkerEngine

THREADS = 16


@contextmanager
def only_compiling() -> Iterator[None]:
    """Within, kernels are compiled on several threads and not launched."""
    from triton import AsyncCompileMode
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)

    with (
        patch.object(JITFunction, "run", compiled),
        ThreadPoolExecutor(THREADS) as threads,
        AsyncCompileMode(threads),
    ):
        yield


def warm_up(engine: CudaTalkerEngine) -> None:
    """An engine's `warm_up`, its kernels compiled at once."""

    def run(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work

    with patch.object(engine._recorder, "record", run), only_compiling():
        engine.warm_up()
    engine.warm_up()
