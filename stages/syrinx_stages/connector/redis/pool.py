"""The two connections for commands that do not block in Redis, with retries.

Scripts of the hot path are pipelined on one of them. What waits for a replica or may be large has the other one.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError, StorageFull
from syrinx_stages.connector.redis.connection import (
    LOST,
    Address,
    CannotSave,
    Command,
    Connection,
    Migrating,
    NoScript,
    OutOfMemory,
    Redirected,
    Refused,
    ReplyError,
    Unavailable,
)
from syrinx_stages.connector.redis.replication import ReplicationBarrier
from syrinx_stages.connector.redis.scripts import Script

COMMAND_SECONDS = 5.0
"""Timeout of a command. Blocking reads wait in Redis for far less."""
_Reply = asyncio.Future[Any]
"""The reply to a command that was sent: a value, or an exception as a value."""
_Attempt = Callable[[bool], Command]
"""Builds a command, given whether it is a retry."""
_Execute = Callable[[Command], Awaitable[Any]]
_REDIRECTED_OR_LOST = (Redirected, *LOST)


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


class _Lane:
    """One connection, opened when it is first used and after it was lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connection: Connection | None = None
        self.opening: asyncio.Task[Connection] | None = None

    @property
    def is_broken(self) -> bool:
        """The connection was lost, and nobody has noticed it yet."""
        return self.connection is not None and not self.connection.is_open


class CommandPool:
    """Runs commands, and retries them when the connection is lost. `name` is what Redis lists its connections under."""

    def __init__(self, address: Address, on_error: Callable[[], object], name: str = "") -> None:
        self.address = address
        self.name = name
        self.on_error = on_error
        """Called for each command that failed and is retried, on all connections of the connector."""
        self.on_reconnect: list[Callable[[], None]] = []
        """Called when the first connection is open, and once after each loss of connections."""
        self._reconnected_at = -math.inf
        self.retry_seconds = RETRY_SECONDS
        self._scripts = _Lane("scripts")
        self._others = _Lane("others")
        self._lanes = (self._scripts, self._others)
        self._barrier = ReplicationBarrier()
        self._lost = True
        """No connection was opened since the start, or since one was lost."""
        self._closed = False

    async def call(self, *command: bytes | str | int) -> Any:
        """Runs an idempotent command beside the scripts and returns its reply. Raises `ConnectorError`."""
        return await self._retried(self._execute_beside, lambda retry: command, None)

    async def call_together(self, commands: Sequence[Command]) -> list[Any]:
        """Sends commands with none of others between them, and returns the replies: a `ReplyError` is a value.

        Raises `ConnectorError` if the connection is lost; there is no retry.
        """
        try:
            connection = await self._open(self._others)
            replies = await asyncio.gather(*[self._send(connection, command) for command in commands])
        except (ReplyError, *LOST) as error:
            raise self.failure(error) from error
        if (lost := next((each for each in replies if isinstance(each, LOST)), None)) is not None:
            raise self.failure(lost)
        return replies

    async def call_in_turn(self, *command: bytes | str | int) -> Any:
        """Runs an idempotent command in turn with the scripts and returns its reply. Raises `ConnectorError`."""
        return await self._retried(self._execute, lambda retry: command, None)

    def run(self, script: Script, keys: Command, arguments: Command, replicated: bool = False) -> Awaitable[Any]:
        """Runs a script, which learns from its first argument whether an earlier attempt may have been executed.

        If the connection is open, the script is sent before this returns. Await the result for the reply. With
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
        connection = self._scripts.connection
        sent = self._send(connection, attempt(False)) if connection is not None and connection.is_open else None
        return _Run(self._run_to_end, self._execute, script, attempt, sent)

    @property
    def connected_seconds(self) -> float:
        """Seconds since the first connection, or the last reconnection; 0 while disconnected."""
        if self._lost or any(lane.is_broken for lane in self._lanes):
            return 0.0
        return asyncio.get_running_loop().time() - self._reconnected_at

    def failure(self, error: BaseException) -> ConnectorError:
        """Returns the `ConnectorError` for a failed command."""
        if isinstance(error, Refused):
            return ConnectorError(
                f"{self.address.name} refused the user or password: {error}; is REDIS_PASSWORD right?"
            )
        if isinstance(error, Redirected):
            if not self.address.redirects:
                return Rejected(f"{self.address.name} is a node of a Redis Cluster: use redis+cluster://HOST:PORT")
            return ConnectorError(f"{self.address.name} does not serve the slot of this pipeline now: {error}")
        if isinstance(error, Unavailable):
            return ConnectorError(f"{self.address.name} does not serve now: {error}")
        if isinstance(error, LOST):
            return ConnectorError(f"{self.address.name} cannot be reached: {str(error) or type(error).__name__}")
        if isinstance(error, OutOfMemory):
            return StorageFull(
                f"{self.address.name} has no memory left (maxmemory): raise its limit, or remove what else it stores"
            )
        if isinstance(error, CannotSave):
            return StorageFull(f"{self.address.name} refuses writes because it cannot save to its disk: see its log")
        return Rejected(f"{self.address.name} replied: {error}")

    async def open_connection(self, purpose: str) -> Connection:
        """Opens a connection. Raises `OSError` or `ReplyError`."""
        connection = await Connection.open(self.address)
        if self.name:
            try:
                await connection.call((b"CLIENT", b"SETNAME", f"{self.name}:{purpose}"), COMMAND_SECONDS)
            except ReplyError:
                # The user may lack this right. The name only helps those who list the connections.
                pass
            except BaseException:
                connection.close()
                raise
        return connection

    async def close(self) -> None:
        """Closes the connections, also under commands whose callers have left. Later ones raise `ConnectorError`."""
        self._closed = True
        self.disconnect()
        opening = [lane.opening for lane in self._lanes if lane.opening is not None]
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        self.address.close()

    def disconnect(self) -> None:
        """Closes both connections: when one is lost, the other one usually is too."""
        self._lost = True
        for lane in self._lanes:
            connection, lane.connection = lane.connection, None
            if connection is not None:
                connection.close()

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
                if not self._can_retry(error) or loop.time() + pause > deadline:
                    raise self.failure(error) from error
                self._prepare_retry(error)
            self.on_error()
            await asyncio.sleep(pause)
            sent, retry = None, True

    def _can_retry(self, error: Exception) -> bool:
        return isinstance(error, LOST) or (isinstance(error, Redirected) and self.address.redirects)

    def _prepare_retry(self, error: Exception) -> None:
        if isinstance(error, Migrating):
            # The node is the right one, until the slot has moved. Owners cannot renew their leases until then either.
            self._reconnected_at = asyncio.get_running_loop().time()

    async def _execute(self, command: Command) -> Any:
        """Returns the reply to a command of the hot path, or its exception as a value."""
        return await self._send(await self._open(self._scripts), command)

    async def _execute_beside(self, command: Command) -> Any:
        """Returns the reply to another command, or its exception as a value."""
        return await self._send(await self._open(self._others), command)

    async def _execute_replicated(self, command: Command) -> Any:
        """Returns the reply to a command once a replica has what it wrote."""
        connection = await self._open(self._others)
        reply = await self._send(connection, command)
        if isinstance(reply, Exception):
            raise reply
        # A caller that is cancelled must not take the connection from the others.
        await asyncio.shield(asyncio.create_task(self._wait_for_replica(connection)))
        return reply

    async def _wait_for_replica(self, connection: Connection) -> None:
        try:
            await self._barrier.wait(connection, self.address, self.connected_seconds)
            if not connection.is_open:
                raise Unavailable("the server was replaced while its replicas were awaited")
        except _REDIRECTED_OR_LOST:
            self._lose(connection)
            raise

    def _send(self, connection: Connection, command: Command) -> _Reply:
        """Sends a command; whether or not anyone awaits the reply."""
        reply = asyncio.get_running_loop().create_future()

        def on_reply(value: Any) -> None:
            if isinstance(value, _REDIRECTED_OR_LOST) and not isinstance(value, Migrating):
                self._lose(connection)
            if not reply.done():
                reply.set_result(value)

        connection.send_with_callback(command, COMMAND_SECONDS, on_reply)
        return reply

    async def _open(self, lane: _Lane) -> Connection:
        """Returns the open connection of a lane."""
        if self._closed:
            raise ConnectorError("the connector is closed")
        if lane.is_broken:
            self.disconnect()
        if lane.connection is not None:
            return lane.connection
        if lane.opening is None:
            lane.opening = asyncio.create_task(self._connect(lane))
        # Others may wait for the same connection.
        return await asyncio.shield(lane.opening)

    async def _connect(self, lane: _Lane) -> Connection:
        try:
            connection = await self.open_connection(lane.name)
        except BaseException:
            self._lost = True
            raise
        finally:
            lane.opening = None
        lane.connection = connection
        if self._lost:
            self._lost = False
            self._reconnected_at = asyncio.get_running_loop().time()
            for callback in self.on_reconnect:
                callback()
        return connection

    def _lose(self, connection: Connection) -> None:
        """Disconnects, unless that was done since the connection was opened."""
        if any(lane.connection is connection for lane in self._lanes):
            self.disconnect()


class _Run:
    """A script that may have been sent. Awaiting it returns the reply; a coroutine would have to be awaited."""

    def __init__(self, run: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._run, self._arguments = run, arguments

    def __await__(self) -> Generator[Any, None, Any]:
        return self._run(*self._arguments).__await__()
