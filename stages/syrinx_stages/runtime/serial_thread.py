"""A thread that runs functions in order, called from the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SerialThread:
    """One thread. Its functions run one after the other, and the event loop is free meanwhile."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._queued: list[Callable[[], object]] = []

    @property
    def has_queued(self) -> bool:
        """Whether functions are queued that no `run` has taken along yet."""
        return bool(self._queued)

    def queue(self, function: Callable[[], object]) -> None:
        """Queues a function to run before that of the next `run`. Does not wait."""
        self._queued.append(function)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the queued functions and then this one, and returns its result."""
        queued, self._queued = self._queued, []

        def job() -> T:
            for each in queued:
                each()
            return function(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._executor, job)

    async def close(self) -> None:
        """Ends the thread after its current function."""
        await asyncio.get_running_loop().run_in_executor(self._executor, lambda: None)
        self._executor.shutdown()

    def abandon(self) -> None:
        """Ends the thread after its current function, without waiting."""
        self._executor.shutdown(wait=False, cancel_futures=True)
