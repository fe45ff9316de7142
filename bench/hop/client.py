"""The connector on redis-py's asyncio connections, with hiredis as parser: what a client of our own is worth."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import NoScriptError, RedisError

from hop.measure import Case
from hop.sides import Start, read, write
from syrinx_stages.connector.redis import pool
from syrinx_stages.connector.redis.connection import Address, Command, NoScript, ReplyError


async def write_on_redis_py(url: str, case: Case, steps: int, start: Start) -> list[float]:
    """The writer, on redis-py's connections."""
    _use(url)
    return await write(url, case, steps, start)


async def read_on_redis_py(url: str, case: Case, steps: int, start: Start) -> list[tuple[int, float]]:
    """The reader, on redis-py's connections."""
    _use(url)
    return await read(url, case, steps, start)


def _use(url: str) -> None:
    """Replaces the connections of this process. Scripts, keys and calls are the same."""
    connections = ConnectionPool.from_url(url, protocol=2)

    class Here(_Connection):
        @classmethod
        async def open(cls, address: Address) -> Here:
            connection = connections.make_connection()  # type: ignore[no-untyped-call]
            await connection.connect()
            return cls(connection)

    pool.Connection = Here  # type: ignore[attr-defined, assignment]


class _Connection:
    """Commands are packed and sent together as in a pipeline of redis-py; a task reads their replies meanwhile."""

    def __init__(self, connection: AbstractConnection) -> None:
        self.is_open = True
        self._connection = connection
        self._unsent: list[Command] = []
        self._pending: deque[Callable[[Any], None]] = deque()
        self._has_unsent, self._has_pending = asyncio.Event(), asyncio.Event()
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]

    def send_with_callback(self, command: Command, seconds: float, on_reply: Callable[[Any], None]) -> None:
        self._unsent.append(command)
        self._pending.append(on_reply)
        self._has_unsent.set()
        self._has_pending.set()

    async def call(self, command: Command, seconds: float) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.send_with_callback(command, seconds, lambda reply: None if future.done() else future.set_result(reply))
        if isinstance(reply := await future, Exception):
            raise reply
        return reply

    def close(self) -> None:
        self.is_open = False
        for task in self._tasks:
            task.cancel()

    async def _send(self) -> None:
        while await self._has_unsent.wait():
            self._has_unsent.clear()
            commands, self._unsent = self._unsent, []
            await self._connection.send_packed_command(self._connection.pack_commands(commands))

    async def _receive(self) -> None:
        while await self._has_pending.wait():
            while self._pending:
                self._pending.popleft()(await self._reply())
            self._has_pending.clear()

    async def _reply(self) -> Any:
        try:
            return await self._connection.read_response(disable_decoding=True, timeout=60)
        except NoScriptError as error:
            return NoScript(str(error))
        except RedisError as error:
            return ReplyError(str(error))
