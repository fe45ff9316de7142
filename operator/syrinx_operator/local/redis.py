"""The managed Redis of a local pipeline, which is restarted at the same address."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from types import TracebackType
from typing import Self

from syrinx_operator.local.events import Exited, Observer, Ready, Starting, Stopped
from syrinx_operator.local.supervisor import BACKOFF_RESET_SECONDS, restart_delay
from syrinx_stages.connector.server import RedisServer, RedisServerError

NAME = "redis"


class ManagedRedis:
    """A Redis server as an async context manager. Entering raises `RedisServerError`."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the stages."""
        return {"REDIS_URL": self._server.url, "REDIS_PASSWORD": self._server.password}

    @property
    def pid(self) -> int:
        """Process ID of the current server."""
        return self._server.process.pid

    async def __aenter__(self) -> Self:
        # In this thread, because the server dies with the thread that started it. Takes about 50 ms.
        self._server = self._start()
        self._watch = asyncio.create_task(self._supervise(), name="supervise redis")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watch
        begin = time.monotonic()
        self._server.stop()
        self._observe(Stopped(NAME, 0, time.monotonic() - begin))

    def _start(self, port: int | None = None, password: str | None = None) -> RedisServer:
        self._observe(Starting(NAME))
        begin = time.monotonic()
        server = RedisServer(port, password)
        self._observe(Ready(NAME, server.url, time.monotonic() - begin))
        return server

    async def _supervise(self) -> None:
        crashes = 0
        while True:
            begin = time.monotonic()
            await _exit_of(self.pid)
            code = self._server.process.wait()
            crashes = 1 if time.monotonic() - begin >= BACKOFF_RESET_SECONDS else crashes + 1
            while True:
                self._observe(Exited(NAME, code, restart_delay(crashes)))
                await asyncio.sleep(restart_delay(crashes))
                with contextlib.suppress(RedisServerError):
                    dead, self._server = self._server, self._start(self._server.port, self._server.password)
                    dead.stop()
                    break
                crashes += 1


async def _exit_of(pid: int) -> None:
    """Waits until a child process has exited."""
    descriptor, ended = os.pidfd_open(pid), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
