"""A small pool of connections for commands that do not block in Redis, with retries."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError, StorageFull
from syrinx_stages.connector.redis_connection import (
    LOST,
    Address,
    Command,
    Connection,
    NoScript,
    OutOfMemory,
    Refused,
    ReplyError,
    Unavailable,
)
from syrinx_stages.connector.redis_scripts import Script
from syrinx_stages.connector.replication import ReplicationBarrier

COMMAND_SECONDS = 5.0
"""Timeout of a command. Blocking reads wait in Redis for far less."""
MAX_CONNECTIONS = 8
"""Size of the pool. Redis executes one command at a time anyway."""

_Reply = asyncio.Future[Any]
"""The reply to a command that was sent: a value, or an exception as a value."""
_Attempt = Callable[[bool], Command]
"""Builds a command, given whether it is a retry."""
_Execute = Callable[[Command], Awaitable[Any]]


class Rejected(ConnectorError):
    """Redis replied to a command with an error that a retry does not resolve."""


def backoff() -> Iterator[float]:
    """Yields the seconds to wait before each retry, with jitter so that replicas do not synchronize.

    They grow to 0.25 s: a stream pauses as much longer as a fail-over goes unnoticed.
    """
    longest = 0.02
    while True:
        yield random.uniform(0.5, 1.0) * longest
        longest = min(2 * longest, 0.25)


class CommandPool:
    """Runs each command on a free connection of a pool, and retries it when the connection is lost."""

    def __init__(self, address: Address, on_error: Callable[[], object]) -> None:
        self.address = address
        self.on_error = on_error
        """Called for each command that failed and is retried, on all connections of the connector."""
        self.on_reconnect: list[Callable[[], None]] = []
        """Called when the first connection is open, and once after each loss of connections."""
        self._reconnected_at = -math.inf
        self.retry_seconds = RETRY_SECONDS
        self._free: asyncio.LifoQueue[Connection | None] = asyncio.LifoQueue()
        """An item is the right to use one connection: the item itself, or a new one if it is None or closed."""
        for _ in range(MAX_CONNECTIONS):
            self._free.put_nowait(None)
        self._busy: set[Connection] = set()
        """Connections that wait for a reply."""
        self._barrier = ReplicationBarrier()
        self._lost = True
        """No connection was opened since the start, or since one was lost."""
        self._closed = False

    async def call(self, *command: bytes | str | int) -> Any:
        """Runs an idempotent command and returns its reply. Raises `ConnectorError`."""
        return await self._retried(self._execute, lambda retry: command, None)

    def run(self, script: Script, keys: Command, arguments: Command, replicated: bool = False) -> Awaitable[Any]:
        """Runs a script, which learns from its first argument whether an earlier attempt may have been executed.

        If a connection is open and free, the script is sent before this returns. Await the result for the reply. With
        `replicated`, it comes when a replica has what the script wrote; a script whose server is no longer the primary
        is run again on its successor (see `ReplicationBarrier`).
        """

        retried = False

        def attempt(retry: bool) -> Command:
            nonlocal retried
            # Also true when the source is sent, to a server that has replaced the one of the first attempt.
            retried = retried or retry
            return (b"EVALSHA", script.digest, len(keys), *keys, b"1" if retried else b"0", *arguments)

        if replicated:
            return self._run_to_end(self._execute_replicated, script, attempt, None)
        return _Run(self._run_to_end, self._execute, script, attempt, self._send_if_free(attempt(False)))

    @property
    def connected_seconds(self) -> float:
        """Seconds since the first connection, or the last reconnection; 0 while disconnected."""
        free: list[Connection | None] = list(self._free._queue)  # type: ignore[attr-defined]
        if self._lost or any(connection is not None and not connection.is_open for connection in free):
            return 0.0
        return asyncio.get_running_loop().time() - self._reconnected_at

    def failure(self, error: BaseException) -> ConnectorError:
        """Returns the `ConnectorError` for a failed command."""
        if isinstance(error, Refused):
            return ConnectorError(
                f"{self.address.name} refused the user or password: {error}; is REDIS_PASSWORD right?"
            )
        if isinstance(error, LOST):
            return ConnectorError(f"{self.address.name} cannot be reached: {str(error) or type(error).__name__}")
        if isinstance(error, OutOfMemory):
            return StorageFull(
                f"{self.address.name} has no memory left (maxmemory): raise its limit, or remove what else it stores"
            )
        return Rejected(f"{self.address.name} replied: {error}")

    async def close(self) -> None:
        """Closes the connections, also under commands whose callers have left. Later ones raise `ConnectorError`."""
        self._closed = True
        self._close_free()
        for connection in list(self._busy):
            connection.close()
        self.address.close()

    async def _run_to_end(self, execute: _Execute, script: Script, attempt: _Attempt, sent: _Reply | None) -> Any:
        """Returns the reply to a script; `sent` is that to the first attempt if it was already sent."""
        try:
            return await self._retried(execute, attempt, sent)
        except NoScript:
            return await self._retried(execute, lambda retry: (b"EVAL", script.source, *attempt(retry)[2:]), None)

    async def _retried(self, execute: _Execute, attempt: _Attempt, sent: _Reply | None) -> Any:
        """Runs the commands that `attempt` builds until one succeeds. `sent` is the first one, if already sent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.retry_seconds
        retry = False
        for pause in backoff():
            try:
                reply = await (sent or execute(attempt(retry)))
                if isinstance(reply, Exception):
                    raise reply
                return reply
            except NoScript:
                raise
            except (ReplyError, *LOST) as error:
                if not isinstance(error, LOST) or loop.time() + pause > deadline:
                    raise self.failure(error) from error
            self.on_error()
            self._close_free()
            await asyncio.sleep(pause)
            sent, retry = None, True

    async def _execute(self, command: Command) -> Any:
        """Returns the reply to a command, or its exception as a value."""
        return await self._send_on(await self._take(), command)

    async def _execute_replicated(self, command: Command) -> Any:
        """Returns the reply to a command once a replica has what it wrote."""
        connection = await self._take()
        self._busy.add(connection)
        try:
            reply = await connection.call(command, COMMAND_SECONDS)
            await self._barrier.wait(connection, self.address, self.connected_seconds)
            if not connection.is_open:
                raise Unavailable("the server was replaced while its replicas were awaited")
            return reply
        finally:
            self._busy.discard(connection)
            self._free.put_nowait(connection if connection.is_open else None)

    def _send_if_free(self, command: Command) -> _Reply | None:
        """Sends a command if a connection is open and free."""
        if self._free.empty():
            return None
        connection = self._free.get_nowait()
        if connection is None or not connection.is_open:
            self._free.put_nowait(connection)
            return None
        return self._send_on(connection, command)

    async def _take(self) -> Connection:
        """Returns an open connection as soon as one is free. Whoever takes it puts it back into `_free`."""
        connection = await self._free.get()
        try:
            if self._closed:
                raise ConnectorError("the connector is closed")
            if connection is not None and not connection.is_open:
                self._close_free()
            if connection is None or not connection.is_open:
                connection = await self._connect()
        except BaseException:
            self._free.put_nowait(None)
            raise
        return connection

    async def _connect(self) -> Connection:
        connection = await Connection.open(self.address)
        if self._lost:
            self._lost = False
            self._reconnected_at = asyncio.get_running_loop().time()
            for callback in self.on_reconnect:
                callback()
        return connection

    def _send_on(self, connection: Connection, command: Command) -> _Reply:
        """Sends a command on a connection taken from `_free`. The reply frees it, whether or not anyone awaits it."""
        reply = asyncio.get_running_loop().create_future()

        def on_reply(value: Any) -> None:
            self._busy.discard(connection)
            self._free.put_nowait(connection)
            if not reply.done():
                reply.set_result(value)

        self._busy.add(connection)
        connection.send_with_callback(command, COMMAND_SECONDS, on_reply)
        return reply

    def _close_free(self) -> None:
        """Closes all free connections: when one is lost, the others usually are too."""
        self._lost = True
        free = [self._free.get_nowait() for _ in range(self._free.qsize())]
        for connection in free:
            if connection is not None:
                connection.close()
            self._free.put_nowait(None)


class _Run:
    """A script that may have been sent. Awaiting it returns the reply; a coroutine would have to be awaited."""

    def __init__(self, run: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._run, self._arguments = run, arguments

    def __await__(self) -> Generator[Any, None, Any]:
        return self._run(*self._arguments).__await__()
