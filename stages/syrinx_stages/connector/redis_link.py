"""Commands that answer at once, over a small pool of connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError
from syrinx_stages.connector.redis_address import Address
from syrinx_stages.connector.redis_connection import Command, Connection
from syrinx_stages.connector.redis_errors import LOST, NoScript, ReplyError
from syrinx_stages.connector.redis_scripts import Script

COMMAND_SECONDS = 5.0
"""A command that is not answered for this long has failed; blocking reads wait for far less."""
MAX_CONNECTIONS = 8
"""Of the pool for commands. Redis works on one at a time anyway."""

_Sent = tuple[Connection, asyncio.Future[Any]]
"""A command on its way."""


def pauses() -> Iterator[float]:
    """Seconds to wait before each next attempt: growing, and spread so that replicas do not come back in step."""
    longest = 0.02
    while True:
        yield random.uniform(0.5, 1.0) * longest
        longest = min(2 * longest, 1.0)


class Commands:
    """Commands that answer at once, each on a free connection of a small pool, tried again when one is lost."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.errors = 0
        """Commands that failed and were tried again, on any of the process's connections."""
        self.retry_seconds = RETRY_SECONDS
        self._free: asyncio.LifoQueue[Connection | None] = asyncio.LifoQueue()
        """Who takes an item may use a connection: this one, or if it is None or lost a new one."""
        for _ in range(MAX_CONNECTIONS):
            self._free.put_nowait(None)
        self._closed = False

    async def call(self, *command: bytes | str | int) -> Any:
        """Runs a command that may safely run twice."""
        return await self._retried(lambda again: command, None)

    def run(self, script: Script, keys: Command, arguments: Command) -> Coroutine[Any, Any, Any]:
        """Runs a script; it is told if an attempt before may have been carried out.

        Where a connection is open and free the script is sent before this returns; await what it returns.
        """

        def attempt(again: bool) -> Command:
            return (b"EVALSHA", script.digest, len(keys), *keys, b"1" if again else b"0", *arguments)

        return self._run(script, attempt, self._send(attempt(False)))

    async def ping(self) -> None:
        """Raises `ConnectorError` if Redis does not answer now."""
        try:
            await self._once((b"PING",))
        except (ReplyError, *LOST) as error:
            raise self.address.failure(error) from error

    async def close(self) -> None:
        """Frees the connections; a command after this raises `ConnectorError`."""
        self._closed = True
        self._drop_free()

    async def _run(self, script: Script, attempt: Callable[[bool], Command], sent: _Sent | None) -> Any:
        try:
            return await self._retried(attempt, sent)
        except NoScript:
            return await self._retried(lambda again: (b"EVAL", script.source, *attempt(again)[2:]), None)

    async def _retried(self, attempt: Callable[[bool], Command], sent: _Sent | None) -> Any:
        """What `attempt` gives, until it succeeds; its first command may have been sent."""
        deadline = asyncio.get_running_loop().time() + self.retry_seconds
        try:
            return await (self._received(sent) if sent is not None else self._once(attempt(False)))
        except NoScript:
            raise
        except (ReplyError, *LOST) as error:
            failure: Exception = error
        for pause in pauses():
            late = asyncio.get_running_loop().time() + pause > deadline
            if late or not isinstance(failure, LOST):
                break
            self.errors += 1
            self._drop_free()
            await asyncio.sleep(pause)
            try:
                return await self._once(attempt(True))
            except NoScript:
                raise
            except (ReplyError, *LOST) as error:
                failure = error
        raise self.address.failure(failure) from failure

    def _send(self, command: Command) -> _Sent | None:
        """Sends a command without waiting for anything, if that is possible."""
        if self._free.empty():
            return None
        connection = self._free.get_nowait()
        if connection is None or not connection.is_open:
            self._free.put_nowait(connection)
            return None
        return connection, connection.send(command, COMMAND_SECONDS)

    async def _once(self, command: Command) -> Any:
        connection = await self._free.get()
        try:
            if self._closed:
                raise ConnectorError("the connector is closed")
            if connection is None or not connection.is_open:
                connection = await Connection.open(self.address)
        except BaseException:
            self._free.put_nowait(None)
            raise
        return await self._received((connection, connection.send(command, COMMAND_SECONDS)))

    async def _received(self, sent: _Sent) -> Any:
        connection, answer = sent
        try:
            return await connection.receive(answer)
        finally:
            if self._closed:
                connection.close()
            self._free.put_nowait(connection)

    def _drop_free(self) -> None:
        """One lost connection seldom comes alone."""
        free = [self._free.get_nowait() for _ in range(self._free.qsize())]
        for connection in free:
            if connection is not None:
                connection.close()
            self._free.put_nowait(None)
