"""A connection for commands that wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError
from syrinx_stages.connector.redis_connection import Command, Connection
from syrinx_stages.connector.redis_errors import LOST, Refused, ReplyError
from syrinx_stages.connector.redis_link import COMMAND_SECONDS, Commands, pauses

log = logging.getLogger(__name__)


class Blocking:
    """One connection, and one waiting command on it at a time.

    The command outlives a caller that is cancelled: the next `call` gets its reply. `wake` ends it early, and cannot
    be lost: before the command is sent a flag stops it, and after that CLIENT UNBLOCK is repeated until the command
    has ended (Redis may see the unblocking before the command, which comes over another connection).

    `greet` is awaited after every new connection.
    """

    def __init__(self, commands: Commands, greet: Callable[[], Awaitable[None]]) -> None:
        self.interrupted = False
        """A connection was lost since the owner last said False: a reply may have been lost with it."""
        self._commands = commands
        self._greet = greet
        self._connection: Connection | None = None
        self._client_id = 0
        self._task: asyncio.Task[Any] | None = None
        self._waker: asyncio.Task[None] | None = None
        self._woken = False
        self._sent = False
        self._closed = False
        self._pauses = pauses()
        self._failing_since: float | None = None

    @property
    def outstanding(self) -> bool:
        """A command is waiting, or its reply has not been fetched."""
        return self._task is not None

    async def call(self, build: Callable[[], Command]) -> Any:
        """The reply to the command that `build` gives just before it is sent, or to the one that is outstanding.

        None if it waited in vain, was woken, or the connection was lost (after a pause). Raises `ConnectorError` when
        Redis has not been reached for a while, `ReplyError` for an error reply.
        """
        if self._task is None:
            if self._closed:
                return None
            self._woken = False
            self._task = asyncio.create_task(self._run(build))
        task = self._task
        try:
            reply = await asyncio.shield(task)
        except asyncio.CancelledError:
            raise  # the caller was cancelled; the command goes on
        except BaseException:
            self._task = None
            raise
        self._task = None
        return reply

    def wake(self) -> None:
        """Ends the waiting command, if there is one."""
        if self._task is None or self._task.done() or self._woken:
            return
        self._woken = True
        if self._sent:
            self._waker = asyncio.create_task(self._unblock(self._task))

    async def close(self) -> None:
        """Ends the waiting command with None and frees the connection."""
        self._closed = True
        # A task that is cancelled before its first step could not end with None.
        await asyncio.sleep(0)
        tasks = [task for task in (self._task, self._waker) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._disconnect()

    async def _run(self, build: Callable[[], Command]) -> Any:
        try:
            return await self._attempt(build)
        except asyncio.CancelledError:
            if self._closed:
                return None
            raise

    async def _attempt(self, build: Callable[[], Command]) -> Any:
        try:
            connection = await self._connected()
            if self._woken:
                return None
            self._sent = True
            reply = await connection.call(build(), COMMAND_SECONDS)
        except (ConnectorError, Refused, *LOST) as error:
            self._sent = False
            await self._lost(error)
            return None
        except ReplyError:
            self._sent = False
            await asyncio.sleep(next(self._pauses))
            raise
        self._sent = False
        if self._failing_since is not None:
            self._failing_since, self._pauses = None, pauses()
        return reply

    async def _connected(self) -> Connection:
        if self._connection is None or not self._connection.is_open:
            self._connection = await self._connect()
        return self._connection

    async def _connect(self) -> Connection:
        connection = await Connection.open(self._commands.address)
        try:
            self._client_id = await connection.call((b"CLIENT", b"ID"), COMMAND_SECONDS)
            await self._greet()
        except BaseException:
            connection.close()
            raise
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _lost(self, error: BaseException) -> None:
        now = asyncio.get_running_loop().time()
        self.interrupted = True
        self._commands.errors += 1
        self._failing_since = self._failing_since or now
        self._disconnect()
        failure = error if isinstance(error, ConnectorError) else self._commands.address.failure(error)
        log.warning("%s", failure)
        await asyncio.sleep(next(self._pauses))
        if now - self._failing_since > RETRY_SECONDS:
            raise failure from error

    async def _unblock(self, task: asyncio.Task[Any]) -> None:
        pause = 0.0
        while not task.done():
            try:
                if await self._commands.call(b"CLIENT", b"UNBLOCK", self._client_id):
                    return
            except ConnectorError:
                return  # the command's own time-out ends it
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, 0.001), 0.05)
