"""The address of a Redis primary that sentinels name, and change when they promote a replica."""

import asyncio
import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from syrinx_stages.connector.redis_connection import LOST, Address, Connection, P, ReplyError, Unavailable

log = logging.getLogger(__name__)

SENTINEL_PORT = 26379
SENTINEL_SECONDS = 1.0
"""Timeout of a sentinel's reply, and interval at which the primary is asked for."""
REPLICA_SECONDS = 0.2
"""Time in which a replica that is being promoted must say whether it is the primary."""
STRAGGLER_SECONDS = 0.1
"""How long to wait for the other sentinels once one has replied."""
FAILOVER_SECONDS = 3.0
"""How long to wait for the end of a fail-over. One that takes longer may have failed."""
POLL_SECONDS = 0.05
DOWN_SECONDS = 0.2
"""Interval at which the primary is asked for while it does not reply in this time, to this process or a sentinel."""
SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}


class _View(NamedTuple):
    """What one sentinel knows."""

    primary: tuple[str, int]
    epoch: int
    """Number of the fail-over that made it the primary."""
    failing_over: bool
    """The sentinel is about to promote a replica, and may have done so."""
    down: bool
    """The sentinel does not reach the primary, and may replace it soon."""


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
            self._server = partial(_server, f"{scheme}://{user}{at}", password, ca_file)
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
        self._answering = self._sentinels
        """Those that replied the last time. Only `_watch` asks all of them."""
        self._asking = asyncio.Lock()
        self._asked_at = -math.inf
        """Event-loop time of the last question."""
        self._known: _View | None = None
        """The answer; None if no sentinel replied."""
        self._failing_over_since: float | None = None

    async def connect(self, protocol: Callable[[], P]) -> P:
        # Many connections are opened at once: they share a question.
        now = asyncio.get_running_loop().time()
        self._set_primary((await self._view_since(now - POLL_SECONDS)).primary)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        transport, connected = await self._open(protocol)
        self._connections.add(transport)
        return connected

    async def verify(self, connection: Connection) -> None:
        """Raises `Unavailable` unless the server is a primary: a sentinel may not know of a fail-over yet."""
        if not await _is_primary(connection):
            raise Unavailable(f"{self._host}:{self._port} is not the primary")

    async def confirm_primary(self) -> None:
        """Raises `Unavailable` if a sentinel names another primary; waits for the end of a fail-over.

        If no sentinel answers, or a fail-over takes longer than `FAILOVER_SECONDS`, the server is used as it is.
        """
        while True:
            former, now = self._primary, asyncio.get_running_loop().time()
            try:
                view = await self._view_since(now)
            except OSError:
                return
            self._set_primary(view.primary)
            if former not in (None, view.primary):
                raise Unavailable(f"{view.primary[0]}:{view.primary[1]} is now the primary")
            self._failing_over_since = (self._failing_over_since or now) if view.failing_over else None
            if self._failing_over_since is None or now - self._failing_over_since > FAILOVER_SECONDS:
                return
            await asyncio.sleep(POLL_SECONDS)

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
        """Asks all sentinels once a second, and more often while the primary seems to be down."""
        down = False
        while True:
            await asyncio.sleep(DOWN_SECONDS)
            if not down:
                await self._while_primary_replies(SENTINEL_SECONDS - DOWN_SECONDS)
            self._answering = self._sentinels
            with contextlib.suppress(OSError):
                view = await self._view_since(asyncio.get_running_loop().time())
                self._set_primary(view.primary)
                down = view.down

    async def _while_primary_replies(self, seconds: float) -> None:
        """Waits, but at most until the primary does not reply: the connections to one that is paused stay open."""
        assert self._primary is not None
        with contextlib.suppress(ReplyError, *LOST):
            async with asyncio.timeout(seconds):
                async with asyncio.timeout(DOWN_SECONDS):
                    connection = await Connection.open(self._server(*self._primary))
                with contextlib.closing(connection):
                    while True:
                        await connection.call((b"PING",), DOWN_SECONDS)
                        await asyncio.sleep(DOWN_SECONDS)

    async def _view_since(self, time: float) -> _View:
        """Returns the newest view of the sentinels from after `time`. Raises `ConnectionError` if none replies."""
        async with self._asking:
            if self._asked_at < time:
                now = asyncio.get_running_loop().time()
                self._known = await self._ask()
                self._asked_at = now
        if self._known is None:
            raise ConnectionError(f"no sentinel names a primary for {self._service}")
        return self._known

    async def _ask(self) -> _View | None:
        """Returns the newest view of the sentinels that reply; None if none does."""
        tasks = {sentinel: asyncio.create_task(self._view(sentinel)) for sentinel in self._answering}
        try:
            for reply in asyncio.as_completed(tasks.values()):
                if await reply is not None:
                    await asyncio.wait(tasks.values(), timeout=STRAGGLER_SECONDS)
                    break
            views = {sentinel: view for sentinel, task in tasks.items() if task.done() and (view := task.result())}
        finally:
            for task in tasks.values():
                task.cancel()
        self._answering = list(views) or self._sentinels
        if not views:
            return None
        newest = max(views.values(), key=lambda view: view.epoch)
        return newest._replace(
            failing_over=any(view.failing_over for view in views.values()),
            down=any(view.down for view in views.values()),
        )

    async def _view(self, sentinel: Address) -> _View | None:
        """Returns what a sentinel knows; None if it does not reply or knows no such primary."""
        try:
            async with asyncio.timeout(SENTINEL_SECONDS):
                connection = await Connection.open(sentinel)
            with contextlib.closing(connection):
                state = await connection.call((b"SENTINEL", b"MASTER", self._service), SENTINEL_SECONDS)
                command = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service)
                host, port = await connection.call(command, SENTINEL_SECONDS)
                fields = _fields(state)
                # A sentinel that fails over names the new primary as soon as it knows that the replica is promoted, and
                # before its own state has it: only until then the primary is in doubt.
                in_doubt = b"failover_in_progress" in fields[b"flags"] and (fields[b"ip"], fields[b"port"]) == (
                    host,
                    port,
                )
                promoted = await self._promoted(connection) if in_doubt else None
        except (ReplyError, *LOST):
            return None
        epoch, down = int(fields[b"config-epoch"]), b"s_down" in fields[b"flags"]
        if promoted is not None:
            return _View(promoted, epoch + 1, failing_over=False, down=down)
        return _View((host.decode(), int(port)), epoch, in_doubt, down)

    async def _promoted(self, sentinel: Connection) -> tuple[str, int] | None:
        """Returns the replica that this sentinel has just made the primary, if any.

        The sentinel itself asks it only once a second.
        """
        for state in await sentinel.call((b"SENTINEL", b"REPLICAS", self._service), SENTINEL_SECONDS):
            replica = _fields(state)
            if b"promoted" in replica[b"flags"].split(b","):
                host, port = replica[b"ip"].decode(), int(replica[b"port"])
                with contextlib.suppress(ReplyError, *LOST):
                    async with asyncio.timeout(REPLICA_SECONDS):
                        connection = await Connection.open(self._server(host, port))
                        with contextlib.closing(connection):
                            return (host, port) if await _is_primary(connection) else None
        return None


def _server(before: str, password: str, ca_file: str | None, host: str, port: int) -> Address:
    """Returns the address of a server; `before` is its URL up to the host."""
    return Address(f"{before}[{host}]:{port}" if ":" in host else f"{before}{host}:{port}", password, ca_file)


async def _is_primary(connection: Connection) -> bool:
    return b"role:master" in await connection.call((b"INFO", b"replication"), SENTINEL_SECONDS)


def _fields(state: Sequence[bytes]) -> dict[bytes, bytes]:
    """Returns the fields of a server in a sentinel's reply."""
    return dict(zip(state[::2], state[1::2], strict=True))
