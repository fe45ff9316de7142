"""A thread that runs functions in order, called from the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Job = tuple[asyncio.Future[Any], Callable[[], Any]]


class _OneThread(Executor):
    """An executor for `run_in_executor` that makes its future itself: half the cost of a `ThreadPoolExecutor`."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    def submit(self, function: Callable[[], T], /) -> asyncio.Future[T]:  # type: ignore[override]
        """Queues a function. Must be called on an event loop, which gets the result."""
        if not self._started:
            self._started = True
            self._thread.start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, function))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the thread after the functions that are queued, or the current one."""
        while cancel_futures and not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                job[0].cancel()
        self._jobs.put(None)
        if wait and self._started:
            self._thread.join()

    def _run(self) -> None:
        while self._run_next(self._jobs.get()):
            pass

    @staticmethod
    def _run_next(job: _Job | None) -> bool:
        """Runs a function, and keeps nothing of it. Returns whether others may follow."""
        if job is None:
            return False
        future, function = job
        if future.cancelled():
            return True
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        try:
            future.get_loop().call_soon_threadsafe(_complete, future, result, error)
        except RuntimeError:
            return False  # The event loop is closed.
        return True


def _complete(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class SerialThread:
    """One thread. Its functions run one after the other, and the event loop is free meanwhile."""

    def __init__(self, name: str) -> None:
        self._executor = _OneThread(name)
        self._queued: list[Callable[[], object]] = []

    @property
    def has_queued(self) -> bool:
        """Whether functions are queued that no `start` has taken along yet."""
        return bool(self._queued)

    def queue(self, function: Callable[[], object]) -> None:
        """Queues a function to run before that of the next `start`. Does not wait."""
        self._queued.append(function)

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Starts the queued functions and then this one; returns the future of its result."""
        queued, self._queued = self._queued, []

        def job() -> T:
            for each in queued:
                each()
            return function(*args, **kwargs)

        return asyncio.get_running_loop().run_in_executor(self._executor, job)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the queued functions and then this one, and returns its result."""
        return await self.start(function, *args, **kwargs)

    async def close(self) -> None:
        """Ends the thread after its current function."""
        await asyncio.get_running_loop().run_in_executor(self._executor, lambda: None)
        self._executor.shutdown()

    def abandon(self) -> None:
        """Ends the thread after its current function, without waiting."""
        self._executor.shutdown(wait=False, cancel_futures=True)
