"""An asyncio event loop with a simulated clock and simulated processes.

When nothing is ready, the clock jumps to the next timer. A handle belongs to the process that created it: the loop
delays the handles of a paused process and drops those of a crashed one. Everything runs on one thread; the order of
execution depends on nothing but the program.
"""

import asyncio
import contextlib
import functools
import heapq
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, copy_context
from typing import Any

START = 1_700_000_000.0
"""Unix time at the start of a run."""
SWITCH_SECONDS = 0.0002
"""Time until the event loop continues after a call on another thread."""
HANDLE_SECONDS = 0.000005
"""Time that a handle takes."""
MAX_HANDLES = 20_000
"""A program that runs more handles than this within a second spins."""


class Process:
    """A simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = self.runs = True
        self.clock_skew = 0.0
        """Seconds by which its wall clock is ahead."""
        self.backlog: list[_Handle] = []
        """What would have run during the pause."""
        self.tasks: list[asyncio.Task[Any]] = []

    def end(self) -> None:
        """Ends the process: it never runs again."""
        self.alive = self.runs = False

    @property
    def paused(self) -> bool:
        """It is stopped for a while."""
        return self.alive and not self.runs

    def delay(self, handle: "_Handle") -> None:
        """Keeps a handle until the end of a pause. Drops that of a process that has ended."""
        if self.alive:
            self.backlog.append(handle)


class _Handle:
    """A scheduled call: what `asyncio.Handle` and `asyncio.TimerHandle` are, for half the time."""

    __slots__ = ("_when", "arguments", "callback", "context", "is_cancelled", "process")

    def __init__(
        self,
        callback: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: Context,
        process: Process | None,
        when: float | None = None,
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.process = process
        self.is_cancelled = False
        self._when = when

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.arguments, self.context = _nothing, (), None  # Frees what they refer to.

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        assert self._when is not None
        return self._when

    @property
    def is_timer(self) -> bool:
        return self._when is not None


def _nothing() -> None:
    """The callback of a cancelled handle."""


class _Task(asyncio.Task[Any]):
    """Hashes by order of creation, so that sets of tasks are iterated in the same order in every run."""

    number: int
    process: Process | None

    def __hash__(self) -> int:
        return self.number


class Spinning(Exception):
    """The program runs forever without waiting."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs until a coroutine has ended."""

    def __init__(self) -> None:
        self.process: Process | None = None
        """The process whose handle is running; None is the world around the processes."""
        self.errors: list[str] = []
        """Exceptions of callbacks."""
        self.handles = 0
        """Handles executed."""
        self._now = 0.0
        self._spent = 0.0
        """Time that the running call on another thread has taken so far."""
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._created = 0
        self._lanes: dict[Any, deque[Callable[[], None]]] = {}
        """Calls that wait for each executor; a missing key is an idle executor."""
        self._tasks: list[_Task] = []
        """Those that are not done are kept, so that no garbage collection runs the rest of a crashed process."""
        self._context = copy_context()
        """That of callbacks that come without one: a copy for each takes 4 % of a run."""
        self._closed = False

    # Time -------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now + self._spent

    def wall_time(self) -> float:
        """Unix time by the clock of the running process."""
        return START + self.time() + (self.process.clock_skew if self.process else 0.0)

    def spend(self, seconds: float) -> None:
        """Lets time pass within a call on another thread."""
        self._spent += seconds

    # Running ----------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine as the world. Raises `Spinning`, and what the coroutine raises."""
        with self._installed():
            task = self.create_task(main)
            try:
                self._run_until_done(task)
                return task.result()
            finally:
                self._closed = True
                self._discard_tasks()

    def _discard_tasks(self) -> None:
        """Ends what is left of all tasks here, before a garbage collection does so at an arbitrary time."""
        for task in self._tasks:
            coroutine = task.get_coro()
            while not task.done() and coroutine.cr_frame is not None:
                # What a task does at its end has no effect any more.
                with contextlib.suppress(BaseException):
                    coroutine.close()

    def _run_until_done(self, task: _Task) -> None:
        """Runs handles until a task is done. One function, because most of the time of a run passes here."""
        ready, timers, checked = self._ready, self._timers, -1.0
        while not task.done():
            if ready:
                handle = ready.popleft()
            elif timers:
                when, _, handle = heapq.heappop(timers)
                if when > self._now and not handle.is_cancelled:
                    self._now = when
            else:
                raise RuntimeError("deadlock: nothing can ever happen any more")
            if handle.is_cancelled:
                continue
            process = handle.process
            if process is not None and not process.runs:
                process.delay(handle)
                continue
            self.process = process
            self.handles += 1
            self._now += HANDLE_SECONDS
            try:
                handle.context.run(handle.callback, *handle.arguments)
            except Exception as error:
                self.errors.append(f"exception in {handle.callback}: {error!r}")
            self.process = None
            if self.handles % MAX_HANDLES == 0:
                if self._now < checked + 1:
                    raise Spinning(f"the program waits for nothing at {self._now:.3f} s")
                checked = self._now
                self._forget_done()

    def _forget_done(self) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        for process in {task.process for task in self._tasks} - {None}:
            process.tasks[:] = [task for task in process.tasks if not task.done()]

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        names = {"monotonic": self.time, "perf_counter": self.time, "time": self.wall_time}
        real = {name: getattr(time, name) for name in names}
        asyncio._set_running_loop(self)
        try:
            for name, clock in names.items():
                setattr(time, name, clock)
            yield
        finally:
            for name, clock in real.items():
                setattr(time, name, clock)
            asyncio._set_running_loop(None)

    # Processes --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def within(self, process: Process | None) -> Iterator[None]:
        """What is scheduled in this block belongs to `process`."""
        before, self.process = self.process, process
        try:
            yield
        finally:
            self.process = before

    def run_in(self, process: Process, callback: Callable[..., None], *arguments: Any) -> None:
        """Runs a call in a process, from outside: at once if the process runs."""
        if process.runs:
            self.process = process
            callback(*arguments)
            self.process = None
        else:
            process.delay(_Handle(callback, arguments, self._context, process))

    def pause(self, process: Process) -> None:
        """Stops a process, as SIGSTOP does."""
        process.runs = False

    def resume(self, process: Process) -> None:
        """Continues a process: first with what it has received, then with the timers that are due."""
        process.runs = process.alive
        backlog, process.backlog = process.backlog, []
        self._ready.extend(sorted(backlog, key=lambda handle: handle.is_timer))

    # The interface of an event loop -----------------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        # A task runs in its own process, also if another one wakes it.
        task = getattr(callback, "__self__", None)
        handle = _Handle(
            callback,
            args,
            self._context if context is None else context,
            task.process if type(task) is _Task else self.process,
        )
        if not self._closed:
            self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self._schedule(self._now + self._spent + delay, callback, args, context, self.process)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self._schedule(when, callback, args, context, self.process)

    def call_outside(self, when: float, callback: Any, *args: Any) -> Any:
        """Schedules a call that belongs to no process."""
        return self._schedule(when, callback, args, self._context, None)

    def _schedule(
        self, when: float, callback: Any, args: tuple[Any, ...], context: Context | None, process: Process | None
    ) -> _Handle:
        handle = _Handle(callback, args, self._context if context is None else context, process, when)
        heapq.heappush(self._timers, (when, self._next_number(), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> _Task:
        # A task is hashed while it is initialized.
        task = _Task.__new__(_Task)
        task.number, task.process = self._next_number(), self.process
        task.__init__(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if self.process is not None:
            self.process.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Runs a function on this thread when its simulated thread is free; the time that it spends passes after it."""
        future = self.create_future()
        lane = executor if executor is not None else future
        call = functools.partial(self._execute, lane, future, functools.partial(func, *args))
        if lane in self._lanes:
            self._lanes[lane].append(call)
        else:
            self._lanes[lane] = deque()
            self.call_soon(call)
        return future

    def _execute(self, lane: Any, future: asyncio.Future[Any], function: Callable[[], Any]) -> None:
        result: Any = None
        error: BaseException | None = None
        self._spent = 0.0
        try:
            result = function()
        except Exception as raised:
            error = raised
        spent, self._spent = self._spent, 0.0

        def finish() -> None:
            if waiting := self._lanes[lane]:
                self.call_soon(waiting.popleft())
            else:
                del self._lanes[lane]
            if future.cancelled():
                return
            future.set_result(result) if error is None else future.set_exception(error)

        self.call_later(spent + SWITCH_SECONDS, finish)

    def _next_number(self) -> int:
        self._created += 1
        return self._created

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._closed and error is not None and "never retrieved" not in context["message"]:
            self.errors.append(f"{context['message']}: {error!r}")
