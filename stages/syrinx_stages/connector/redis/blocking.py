"""A connection for blocking commands: a consumer waits on it for requests."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError
from syrinx_stages.connector.redis.connection import LOST, Command, Connection, Redirected, Refused, ReplyError
from syrinx_stages.connector.redis.pool import COMMAND_SECONDS, CommandPool, backoff

log = logging.getLogger(__name__)


class BlockingConnection:
    """One connection with at most one blocking command at a time.

    The command outlives a caller that is cancelled: the next `call` receives its reply. `wake` ends it early, without
    a race: a flag stops a command that was not sent yet, and CLIENT UNBLOCK is repeated until a sent command has ended,
    because Redis may see the unblocking (on another connection) before the command.

    `on_connect` is awaited after every new connection.
    """

    def __init__(self, pool: CommandPool, on_connect: Callable[[], Awaitable[None]]) -> None:
        self.interrupted = False
        """A connection was lost, perhaps with a reply, since the owner last reset this flag."""
        self._pool = pool
        self._on_connect = on_connect
        self._connection: Connection | None = None
        self._client_id = 0
        self._task: asyncio.Task[Any] | None = None
        self._waker: asyncio.Task[None] | None = None
        self._woken = False
        self._sent = False
        self._closed = False
        self._backoff = backoff()
        self._failing_since: float | None = None

    @property
    def outstanding(self) -> bool:
        """A command is blocking, or its reply was not fetched yet."""
        return self._task is not None

    async def call(self, build: Callable[[], Command]) -> Any:
        """Returns the reply to the outstanding command, else to the command that `build` returns when it is sent.

        Returns None if the command timed out in Redis, was woken, or its connection was lost (after a pause). Raises
        `ConnectorError` if Redis has been unreachable for `RETRY_SECONDS`, and `ReplyError` for an error reply.
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
            raise  # The caller was cancelled; the command continues.
        except BaseException:
            self._task = None
            raise
        self._task = None
        return reply

    def wake(self) -> None:
        """Ends the blocking command, if any."""
        if self._task is None or self._task.done() or self._woken:
            return
        self._woken = True
        if self._sent:
            self._waker = asyncio.create_task(self._unblock(self._task))

    async def close(self) -> None:
        """Ends the blocking command with None and closes the connection."""
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
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._connect()
            if self._woken:
                return None
            self._sent = True
            reply = await self._connection.call(build(), COMMAND_SECONDS)
        except (ConnectorError, Redirected, Refused, *LOST) as error:
            await self._handle_loss(error)
            return None
        except ReplyError:
            self._sent = False
            await asyncio.sleep(next(self._backoff))
            raise
        self._sent = False
        if self._failing_since is not None:
            self._failing_since, self._backoff = None, backoff()
        return reply

    async def _connect(self) -> Connection:
        connection = await self._pool.open_connection("claims")
        try:
            self._client_id = await connection.call((b"CLIENT", b"ID"), COMMAND_SECONDS)
            await self._on_connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _handle_loss(self, error: BaseException) -> None:
        """Pauses, and raises `ConnectorError` if Redis has been unreachable for `RETRY_SECONDS`."""
        now = asyncio.get_running_loop().time()
        self._sent = False
        self.interrupted = True
        self._pool.on_error()
        self._failing_since = self._failing_since or now
        self._disconnect()
        failure = error if isinstance(error, ConnectorError) else self._pool.failure(error)
        log.warning("%s", failure)
        await asyncio.sleep(next(self._backoff))
        if now - self._failing_since > RETRY_SECONDS:
            raise failure from error

    async def _unblock(self, task: asyncio.Task[Any]) -> None:
        pause = 0.0
        while not task.done():
            try:
                if await self._pool.call(b"CLIENT", b"UNBLOCK", self._client_id):
                    return
            except ConnectorError:
                return  # The command ends at its own timeout.
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, 0.001), 0.05)
