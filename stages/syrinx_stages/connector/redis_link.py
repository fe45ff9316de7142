"""Connections to Redis: where it is, and commands that answer at once.

The connections are redis-py's, used directly: replies come as RESP2 lists from every version of server and library.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError
from syrinx_stages.connector.redis_scripts import Script

Command = Sequence[bytes | str | int]

COMMAND_SECONDS = 5.0
"""A command that is not answered for this long has failed; blocking reads wait for far less."""
CONNECT_SECONDS = 3.0
MAX_CONNECTIONS = 8
"""Of the pool for commands. Redis works on one at a time anyway."""

LOST = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, ClusterDownError, TimeoutError, OSError)
"""What a new connection may cure: a restart, a failover, a network that dropped packets."""
REFUSED = (AuthenticationError, AuthorizationError)
"""What it does not; redis-py counts these among the above."""


class Address:
    """Where a Redis is, and how to talk to it. Raises `ValueError` if the URL is not one; never shows its password.

    A rediss:// server must show a certificate for its host name, of one of the machine's certificate authorities or,
    if `ca_file` (PEM) is given, of one of those in it.
    """

    def __init__(self, url: str, ca_file: str | None = None) -> None:
        try:
            arguments: dict[str, Any] = dict(parse_url(url))
        except ValueError:
            raise ValueError(
                "the Redis URL is not valid: redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix://PATH"
            ) from None
        self._kind: Callable[..., AbstractConnection] = arguments.pop("connection_class", Connection)
        if self._kind is not UnixDomainSocketConnection:
            arguments["socket_keepalive"] = True
        if self._kind is SSLConnection:
            # Not the default of every version of redis-py.
            arguments.setdefault("ssl_check_hostname", True)
            arguments |= {"ssl_ca_certs": ca_file} if ca_file is not None else {}
        # Deadlines are ours, one around a whole command: redis-py's cost a task each.
        self._arguments = arguments | {
            "protocol": 2,
            "decode_responses": False,
            "socket_timeout": None,
            "socket_connect_timeout": CONNECT_SECONDS,
        }
        host = arguments.get("path") or f"{arguments.get('host', 'localhost')}:{arguments.get('port', 6379)}"
        self.name = f"Redis at {host}"

    def connection(self) -> AbstractConnection:
        """A new connection, not connected yet."""
        return self._kind(**self._arguments)

    def failure(self, error: BaseException) -> ConnectorError:
        """The error to raise for one of redis-py's."""
        if isinstance(error, REFUSED):
            return ConnectorError(f"{self.name} refused the user or password: {error}; is REDIS_PASSWORD right?")
        if isinstance(error, LOST):
            return ConnectorError(f"{self.name} cannot be reached: {error or type(error).__name__}")
        return ConnectorError(f"{self.name} answered: {error}")


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
        self._idle: list[AbstractConnection] = []
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
        except NoScriptError:
            return await self._retried(lambda again: (b"EVAL", script.source, *attempt(again)[2:]))

    async def ping(self) -> None:
        """Raises `ConnectorError` if Redis does not answer now."""
        try:
            await self._once((b"PING",))
        except (RedisError, *LOST) as error:
            raise self.address.failure(error) from error

    async def close(self) -> None:
        """Frees the connections; a command after this raises `ConnectorError`."""
        self._closed = True
        await self._drop_idle()

    async def _retried(self, attempt: Callable[[bool], Command]) -> Any:
        deadline = asyncio.get_running_loop().time() + self.retry_seconds
        waits = pauses()
        again = False
        while True:
            try:
                return await self._once(attempt(again))
            except NoScriptError:
                raise
            except (RedisError, *LOST) as error:
                pause = next(waits)
                late = asyncio.get_running_loop().time() + pause > deadline
                if late or isinstance(error, REFUSED) or not isinstance(error, LOST):
                    raise self.address.failure(error) from error
            self.errors += 1
            again = True
            await self._drop_idle()
            await asyncio.sleep(pause)

    async def _once(self, command: Command) -> Any:
        async with self._slots:
            if self._closed:
                raise ConnectorError("the connector is closed")
            connection = self._idle.pop() if self._idle else self.address.connection()
            try:
                return await exchange(connection, command, COMMAND_SECONDS)
            finally:
                await self._put_back(connection)

    async def _put_back(self, connection: AbstractConnection) -> None:
        if self._closed:
            await connection.disconnect(nowait=True)
        elif connection.is_connected:
            self._idle.append(connection)

    async def _drop_idle(self) -> None:
        """One lost connection seldom comes alone."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)


async def exchange(connection: AbstractConnection, command: Command, seconds: float) -> Any:
    """One command and its reply within `seconds`; whatever goes wrong but an error reply closes the connection."""
    try:
        async with asyncio.timeout(seconds):
            await connection.send_command(*command, check_health=False)
            return await connection.read_response()
    except ResponseError:
        raise
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
