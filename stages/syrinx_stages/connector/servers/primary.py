"""The address of a Redis primary that changes: observers, sentinels or nodes of a Cluster, name the newest one."""

import asyncio
import contextlib
import logging
import math
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from syrinx_stages.connector.redis.connection import LOST, Address, Connection, P, ReplyError, Unavailable

log = logging.getLogger(__name__)

OBSERVER_SECONDS = 1.0
"""Timeout of an observer's reply, and interval at which the primary is asked for."""
STRAGGLER_SECONDS = 0.1
"""How long to wait for the other observers once one has replied."""
FAILOVER_SECONDS = 3.0
"""How long to wait for the end of a fail-over. One that takes longer may have failed."""
POLL_SECONDS = 0.05
DOWN_SECONDS = 0.2
"""Interval at which the primary is asked for while it does not reply in this time, to this process or an observer."""
MAX_SERVERS = 32
"""How many addresses of servers are kept: with TLS each has its certificates."""


class View(NamedTuple):
    """What one observer knows."""

    primary: tuple[str, int]
    epoch: int
    """Number of the fail-over that made it the primary."""
    failing_over: bool
    """A replica is about to be promoted, and may have been."""
    down: bool
    """The observer does not reach the primary, and another one may replace it soon."""
    node: str = ""
    """The identity of the primary, if observers may name it by different addresses."""
    observers: Sequence[tuple[str, int]] = ()
    """Servers to ask from now on, if there are others than those of the URL."""

    @property
    def identity(self) -> str | tuple[str, int]:
        return self.node or self.primary


class PrimaryAddress(Address):
    """Every connection is to the primary of that moment.

    Once an observer names another one, connections to the former primary are closed within `OBSERVER_SECONDS`.
    """

    def __init__(
        self, base: str, database: str, observers: Sequence[Address], password: str, ca_file: str | None
    ) -> None:
        """Takes the URL of a server up to its host, what follows its port, and the observers. Raises ValueError."""
        super().__init__(f"{base}primary{database}", password, ca_file)
        self._server = lru_cache(MAX_SERVERS)(partial(_server, base, password, ca_file))
        """Returns the address of a server by host and port."""
        self._named = self._observers = list(observers)
        """The observers of the URL, and those to ask."""
        self._answering = self._observers
        """Those that replied the last time. Only `_watch` asks all of them."""
        self._primary: str | tuple[str, int] | None = None
        """The identity of the primary."""
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._watching: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._asked_at = -math.inf
        """Event-loop time of the last question."""
        self._known: View | None = None
        """The answer; None if no observer replied."""
        self._failing_over_since: float | None = None

    async def connect(self, protocol: Callable[[], P]) -> P:
        # Many connections are opened at once: they share a question.
        now = asyncio.get_running_loop().time()
        self._set_primary(await self._view_since(now - POLL_SECONDS))
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        transport, connected = await self._open(protocol)
        self._connections.add(transport)
        return connected

    async def confirm_primary(self) -> None:
        """Raises `Unavailable` if an observer names another primary; waits for the end of a fail-over.

        If no observer answers, or a fail-over takes longer than `FAILOVER_SECONDS`, the server is used as it is.
        """
        while True:
            former, now = self._primary, asyncio.get_running_loop().time()
            try:
                view = await self._view_since(now)
            except (ReplyError, *LOST):
                return
            self._set_primary(view)
            if former not in (None, view.identity):
                raise Unavailable(f"{view.primary[0]}:{view.primary[1]} is now the primary")
            self._failing_over_since = (self._failing_over_since or now) if view.failing_over else None
            if self._failing_over_since is None or now - self._failing_over_since > FAILOVER_SECONDS:
                return
            await asyncio.sleep(POLL_SECONDS)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    @abstractmethod
    async def _view(self, observer: Address) -> View | None:
        """Returns what an observer knows; None if it does not reply or knows no primary."""

    @abstractmethod
    def _unknown(self) -> Exception:
        """Returns the error to raise if no observer names a primary."""

    def _set_primary(self, view: View) -> None:
        if self._primary not in (None, view.identity):
            log.warning("the Redis primary is now %s:%d", *view.primary)
            for transport in list(self._connections):
                transport.abort()
            self._connections.clear()
        self._primary, (self._host, self._port) = view.identity, view.primary

    async def _watch(self) -> None:
        """Asks all observers once a second, and more often while the primary seems to be down."""
        down = False
        while True:
            await asyncio.sleep(DOWN_SECONDS)
            if not down:
                await self._while_primary_replies(OBSERVER_SECONDS - DOWN_SECONDS)
            self._answering = self._observers
            with contextlib.suppress(ReplyError, *LOST):
                view = await self._view_since(asyncio.get_running_loop().time())
                self._set_primary(view)
                down = view.down

    async def _while_primary_replies(self, seconds: float) -> None:
        """Waits, but at most until the primary does not reply: the connections to one that is paused stay open."""
        with contextlib.suppress(ReplyError, *LOST):
            async with asyncio.timeout(seconds):
                async with asyncio.timeout(DOWN_SECONDS):
                    connection = await Connection.open(self._server(self._host, self._port))
                with contextlib.closing(connection):
                    while True:
                        await connection.call((b"PING",), DOWN_SECONDS)
                        await asyncio.sleep(DOWN_SECONDS)

    async def _view_since(self, time: float) -> View:
        """Returns the newest view of the observers from after `time`. Raises `_unknown()` if there is none."""
        async with self._asking:
            if self._asked_at < time:
                now = asyncio.get_running_loop().time()
                self._known = await self._ask()
                self._asked_at = now
        if self._known is None:
            raise self._unknown()
        return self._known

    async def _ask(self) -> View | None:
        """Returns the newest view of the observers that reply; None if none does."""
        tasks = {observer: asyncio.create_task(self._view(observer)) for observer in self._answering}
        try:
            for reply in asyncio.as_completed(tasks.values()):
                if await reply is not None:
                    await asyncio.wait(tasks.values(), timeout=STRAGGLER_SECONDS)
                    break
            views = {observer: view for observer, task in tasks.items() if task.done() and (view := task.result())}
        finally:
            for task in tasks.values():
                task.cancel()
        if not views:
            self._answering = self._observers = self._named
            return None
        newest = max(views.values(), key=lambda view: view.epoch)
        self._answering = list(views)
        self._observers = [self._server(*each) for each in newest.observers] or self._named
        return newest._replace(
            failing_over=any(view.failing_over for view in views.values()),
            down=any(view.down for view in views.values()),
        )


def _server(base: str, password: str, ca_file: str | None, host: str, port: int) -> Address:
    """Returns the address of a server; `base` is its URL up to the host."""
    return Address(f"{base}[{host}]:{port}" if ":" in host else f"{base}{host}:{port}", password, ca_file)
