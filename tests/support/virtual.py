"""An event loop whose clock moves only when nothing else happens, and programs that run in it as processes do.

Sockets are real, so everything that talks to something outside of the loop's own process needs `real`. Tests with the
marker `virtual` run in such a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
from collections.abc import Coroutine, Iterator
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

HOPS = 3
"""Packets that may follow from one that was sent, before anything of the loop is ready: those of a TCP handshake."""
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class _Selector(selectors.DefaultSelector):
    """Moves the clock instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        # Connected to itself: what it sends arrives after what was sent to loopback before.
        self._echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._echo.bind(("127.0.0.1", 0))
        self._echo.connect(self._echo.getsockname())

    def close(self) -> None:
        self._echo.close()
        super().close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self._loop.outside:
            return super().select(timeout if timeout is None or timeout <= 0 else 0.01)
        found = super().select(0)
        if not found and timeout > 0:
            for _ in range(HOPS):
                self._echo.send(b".")
                self._echo.recv(1)
            if not (found := super().select(0)):
                self._loop.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """The clock stands still while anything is ready, a thread works, or in `real`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.outside = 0
        """How much of what is waited for happens in real time."""
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now

    @contextlib.contextmanager
    def real(self) -> Iterator[None]:
        """Stops the clock while something outside of the loop happens, such as a process."""
        self.outside += 1
        try:
            yield
        finally:
            self.outside -= 1

    def spend(self, seconds: float) -> None:
        """Moves the clock as if the running callback took so long."""
        self.now += seconds

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self.outside += 1
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: asyncio.Future[Any]) -> None:
        self.outside -= 1

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        program = _PROGRAM.get() if context is None else context.get(_PROGRAM)
        if program is not None:
            program.tasks.add(task)
            task.add_done_callback(program.tasks.discard)
        return task

    async def sock_connect(self, sock: Any, address: Any) -> None:
        if (program := _PROGRAM.get()) is not None and program.is_dead:
            raise ConnectionAbortedError(f"{program.name} has been killed")
        return await super().sock_connect(sock, address)

    async def create_server(self, *arguments: Any, **more: Any) -> Any:
        server = await super().create_server(*arguments, **more)
        if (program := _PROGRAM.get()) is not None:
            program.servers.append(server)
        return server

    def _make_socket_transport(self, *arguments: Any, **more: Any) -> asyncio.Transport:
        transport: asyncio.Transport = super()._make_socket_transport(*arguments, **more)  # type: ignore[misc]
        connection: socket.socket = transport.get_extra_info("socket")
        if connection.family == socket.AF_INET:
            # What is sent must not wait in real time for what was sent before.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (program := _PROGRAM.get()) is not None:
            program.transports.append(transport)
        return transport


class Program:
    """What runs in the loop as a process would: its tasks and connections can be killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.transports: list[asyncio.Transport] = []
        self.servers: list[asyncio.AbstractServer] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task of the program; those that it starts, and the connections that they open, are its own."""
        context = copy_context()
        context.run(_PROGRAM.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def is_running(self) -> bool:
        """Returns whether the running code is the program's."""
        return _PROGRAM.get() is self

    async def kill(self) -> None:
        """Ends it like SIGKILL: nothing that it does from now on reaches anybody."""
        self.is_dead = True
        for server in self.servers:
            server.close()
        while self.tasks or self.transports:
            for transport in self.transports:
                transport.abort()
            self.transports.clear()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)


_PROGRAM: ContextVar[Program | None] = ContextVar("program", default=None)


def now() -> datetime:
    """Returns the time of day, by the running loop's clock if that is virtual."""
    with contextlib.suppress(RuntimeError):
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            return EPOCH + timedelta(seconds=loop.time())
    return datetime.now(UTC)


def stamp(seconds_from_now: float = 0.0) -> str:
    """Returns the time of day as Kubernetes writes it."""
    return (now() + timedelta(seconds=seconds_from_now)).strftime("%Y-%m-%dT%H:%M:%SZ")
