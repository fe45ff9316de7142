"""Commands that answer at once, over a small pool of connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
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
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._closed = False

    async def call(self, *command: bytes | str | int) -> Any:
        """Runs a command that may safely run twice."""
        return await self._retried(lambda again: command)

    async def run(self, script: Script, keys: Command, arguments: Command) -> Any:
        """Runs a script; it is told if an attempt before may have been carried out."""

        def attempt(again: bool) -> Command:
            return (b"EVALSHA", script.digest, len(keys), *keys, b"1" if again else b"0", *arguments)

        try:
            return await self._retried(attempt)
        except NoScript:
            return await self._retried(lambda again: (b"EVAL", script.source, *attempt(again)[2:]))

    async def ping(self) -> None:
        """Raises `ConnectorError` if Redis does not answer now."""
        try:
            await self._once((b"PING",))
        except (ReplyError, *LOST) as error:
            raise self.address.failure(error) from error

    async def close(self) -> None:
        """Frees the connections; a command after this raises `ConnectorError`."""
        self._closed = True
        self._drop_idle()

    async def _retried(self, attempt: Callable[[bool], Command]) -> Any:
        deadline = asyncio.get_running_loop().time() + self.retry_seconds
        waits = pauses()
        again = False
        while True:
            try:
                return await self._once(attempt(again))
            except NoScript:
                raise
            except (ReplyError, *LOST) as error:
                pause = next(waits)
                late = asyncio.get_running_loop().time() + pause > deadline
                if late or not isinstance(error, LOST):
                    raise self.address.failure(error) from error
            self.errors += 1
            again = True
            self._drop_idle()
            await asyncio.sleep(pause)

    async def _once(self, command: Command) -> Any:
        async with self._slots:
            if self._closed:
                raise ConnectorError("the connector is closed")
            connection = self._idle.pop() if self._idle else await Connection.open(self.address)
            try:
                return await connection.call(command, COMMAND_SECONDS)
            finally:
                self._put_back(connection)

    def _put_back(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
        elif connection.is_open:
            self._idle.append(connection)

    def _drop_idle(self) -> None:
        """One lost connection seldom comes alone."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
