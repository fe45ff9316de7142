"""The address of a Redis primary that sentinels name, and change when they promote a replica."""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable
from urllib.parse import urlsplit

from syrinx_stages.connector.redis_connection import LOST, Address, Connection, P, ReplyError, Unavailable

log = logging.getLogger(__name__)

SENTINEL_PORT = 26379
SENTINEL_SECONDS = 1.0
"""Timeout of a sentinel's reply, and interval at which the primary is asked for."""
SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}


def redis_address(url: str, password: str = "", ca_file: str | None = None) -> Address:
    """Returns the address of a URL: one of `Address`, or one with sentinels. Raises ValueError for an invalid URL."""
    kind = SentinelAddress if url.partition("://")[0] in SCHEMES else Address
    return kind(url, password, ca_file)


class SentinelAddress(Address):
    """A redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB URL, or rediss+sentinel:// with TLS to sentinels and servers.

    User and password are those of the servers; sentinels need none. Every connection is to the primary of that moment.
    Once a sentinel names another one, connections to the former primary are closed within `SENTINEL_SECONDS`.
    """

    def __init__(self, url: str, password: str = "", ca_file: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            user, at, hosts = parts.netloc.rpartition("@")
            self._service, *database = parts.path.strip("/").split("/")
            if not (self._service and hosts) or len(database) > 1:
                raise ValueError
            scheme = SCHEMES[parts.scheme]
            super().__init__(f"{scheme}://{user}{at}primary/{''.join(database)}", password, ca_file)
            self._sentinels = [
                Address(
                    f"{scheme}://{host}" if urlsplit(f"//{host}").port else f"{scheme}://{host}:{SENTINEL_PORT}",
                    "",
                    ca_file,
                )
                for host in hosts.split(",")
            ]
        except ValueError:
            raise ValueError(
                "the Redis URL is not valid: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or rediss+sentinel://…"
            ) from None
        self.name = f"Redis primary {self._service} of the sentinels at {hosts}"
        self._primary: tuple[str, int] | None = None
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._watching: asyncio.Task[None] | None = None

    async def connect(self, protocol: Callable[[], P]) -> P:
        self._set_primary(await self._ask())
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        transport, connected = await self._open(protocol)
        self._connections.add(transport)
        return connected

    async def verify(self, connection: Connection) -> None:
        """Raises `Unavailable` unless the server is a primary: a sentinel may not know of a fail-over yet."""
        info = await connection.call((b"INFO", b"replication"), SENTINEL_SECONDS)
        if b"role:master" not in info:
            raise Unavailable(f"{self._host}:{self._port} is not the primary")

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def _set_primary(self, primary: tuple[str, int]) -> None:
        if self._primary not in (None, primary):
            log.warning("the Redis primary is now %s:%d", *primary)
            for transport in list(self._connections):
                transport.abort()
            self._connections.clear()
        self._primary = (self._host, self._port) = primary

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SENTINEL_SECONDS)
            with contextlib.suppress(OSError):
                self._set_primary(await self._ask())

    async def _ask(self) -> tuple[str, int]:
        """Returns host and port of the primary from the first sentinel that names one. Raises `ConnectionError`."""
        for sentinel in list(self._sentinels):
            try:
                async with asyncio.timeout(SENTINEL_SECONDS):
                    connection = await Connection.open(sentinel)
                with contextlib.closing(connection):
                    command = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service)
                    named = await connection.call(command, SENTINEL_SECONDS)
            except (ReplyError, *LOST):
                named = None
            if named:
                return named[0].decode(), int(named[1])
            # The next call starts with a sentinel that may answer.
            self._sentinels.append(self._sentinels.pop(0))
        raise ConnectionError(f"no sentinel names a primary for {self._service}")
