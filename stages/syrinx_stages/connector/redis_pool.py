"""A small pool of connections for commands that do not block in Redis, with retries."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError
from syrinx_stages.connector.redis_connection import LOST, Address, Command, Connection, NoScript, Refused, ReplyError
from syrinx_stages.connector.redis_scripts import Script

COMMAND_SECONDS = 5.0
"""Timeout of a command. Blocking reads wait in Redis for far less."""
MAX_CONNECTIONS = 8
"""Size of the pool. Redis executes one command at a time anyway."""

_Sent = tuple[Connection, asyncio.Future[Any]]
"""A command whose reply is outstanding."""


def backoff() -> Iterator[float]:
    """Yields the seconds to wait before each retry: growing to 1 s, with jitter so that replicas do not synchronize."""
    longest = 0.02
    while True:
        yield random.uniform(0.5, 1.0) * longest
        longest = min(2 * longest, 1.0)


class CommandPool:
    """Runs each command on a free connection of a pool, and retries it when the connection is lost."""

    def __init__(self, address: Address, on_error: Callable[[], object]) -> None:
        self.address = address
        self.on_error = on_error
        """Called for each command that failed and is retried, on all connections of the connector."""
        self.retry_seconds = RETRY_SECONDS
        self._free: asyncio.LifoQueue[Connection | None] = asyncio.LifoQueue()
        """An item is the right to use one connection: the item itself, or a new one if it is None or closed."""
        for _ in range(MAX_CONNECTIONS):
            self._free.put_nowait(None)
        self._closed = False

    async def call(self, *command: bytes | str | int) -> Any:
        """Runs an idempotent command and returns its reply. Raises `ConnectorError`."""
        return await self._retried(lambda retry: command, None)

    def run(self, script: Script, keys: Command, arguments: Command) -> Coroutine[Any, Any, Any]:
        """Runs a script, which learns from its first argument whether an earlier attempt may have been executed.

        If a connection is open and free, the script is sent before this returns. Await the result for the reply.
        """

        def attempt(retry: bool) -> Command:
            return (b"EVALSHA", script.digest, len(keys), *keys, b"1" if retry else b"0", *arguments)

        return self._run(script, attempt, self._send(attempt(False)))

    def failure(self, error: BaseException) -> ConnectorError:
        """Returns the `ConnectorError` for a failed command."""
        if isinstance(error, Refused):
            return ConnectorError(
                f"{self.address.name} refused the user or password: {error}; is REDIS_PASSWORD right?"
            )
        if isinstance(error, LOST):
            return ConnectorError(f"{self.address.name} cannot be reached: {error or type(error).__name__}")
        return ConnectorError(f"{self.address.name} replied: {error}")

    async def close(self) -> None:
        """Closes the connections. Later commands raise `ConnectorError`."""
        self._closed = True
        self._close_free()

    async def _run(self, script: Script, attempt: Callable[[bool], Command], sent: _Sent | None) -> Any:
        try:
            return await self._retried(attempt, sent)
        except NoScript:
            return await self._retried(lambda retry: (b"EVAL", script.source, *attempt(retry)[2:]), None)

    async def _retried(self, attempt: Callable[[bool], Command], sent: _Sent | None) -> Any:
        """Runs the commands that `attempt` builds until one succeeds. `sent` is the first one, if already sent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.retry_seconds
        reply = self._received(sent) if sent is not None else self._once(attempt(False))
        for pause in backoff():
            try:
                return await reply
            except NoScript:
                raise
            except (ReplyError, *LOST) as error:
                if not isinstance(error, LOST) or loop.time() + pause > deadline:
                    raise self.failure(error) from error
            self.on_error()
            self._close_free()
            await asyncio.sleep(pause)
            reply = self._once(attempt(True))

    def _send(self, command: Command) -> _Sent | None:
        """Sends a command if a connection is open and free."""
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
        connection, reply = sent
        try:
            return await connection.receive(reply)
        finally:
            if self._closed:
                connection.close()
            self._free.put_nowait(connection)

    def _close_free(self) -> None:
        """Closes all free connections: when one is lost, the others usually are too."""
        free = [self._free.get_nowait() for _ in range(self._free.qsize())]
        for connection in free:
            if connection is not None:
                connection.close()
            self._free.put_nowait(None)
