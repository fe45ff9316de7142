"""The Redis of one local pipeline: started, restarted at the same address when it dies, stopped last."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from types import TracebackType
from typing import Self

from syrinx_operator.local.events import Exited, Observer, Ready, Starting, Stopped
from syrinx_operator.local.supervisor import BACKOFF_RESET, restart_delay
from syrinx_stages.connector.server import RedisServer, RedisServerError

NAME = "redis"


class ManagedRedis:
    """`async with ManagedRedis(observe) as redis:` has a Redis. Entering raises `RedisServerError`."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe

    @property
    def environment(self) -> dict[str, str]:
        """What leads a stage to it."""
        return {"REDIS_URL": self._server.url, "REDIS_PASSWORD": self._server.password}

    @property
    def pid(self) -> int:
        """Of the server that runs now."""
        return self._server.process.pid

    async def __aenter__(self) -> Self:
        # In this thread, for the server dies with the thread that started it; it takes some 50 ms.
        self._server = self._start()
        self._watch = asyncio.create_task(self._keep_running(), name="keep redis running")
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

    async def _keep_running(self) -> None:
        crashes = 0
        while True:
            begin = time.monotonic()
            await _exit_of(self.pid)
            code = self._server.process.wait()
            crashes = 1 if time.monotonic() - begin >= BACKOFF_RESET else crashes + 1
            while True:
                self._observe(Exited(NAME, code, restart_delay(crashes)))
                await asyncio.sleep(restart_delay(crashes))
                with contextlib.suppress(RedisServerError):
                    dead, self._server = self._server, self._start(self._server.port, self._server.password)
                    dead.stop()
                    break
                crashes += 1


async def _exit_of(pid: int) -> None:
    """Waits until a child process has ended."""
    descriptor, ended = os.pidfd_open(pid), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
