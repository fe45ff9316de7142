"""The streams of a pipeline, in a Redis that all tests of a process share, or in one of a virtual event loop."""

import asyncio
import atexit
import os
import uuid
from functools import cache

from redis import Redis
from redis.exceptions import ResponseError

from support.memory_redis.in_loop import RedisInLoop
from support.virtual import VirtualLoop
from syrinx_stages.connector.base import LEASE_SECONDS, Event, Reader
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import Keys, Position, StreamKind
from syrinx_stages.contract.stages import WORKERS


@cache
def redis_url() -> str:
    """The value of `REDIS_URL`, else the URL of a private server that ends with this process."""
    if url := os.environ.get("REDIS_URL"):
        return url
    server = RedisServer()
    atexit.register(server.stop)
    return server.url_with_password


class Streams:
    """The streams of one pipeline, and the connectors to them.

    Without a `url`, they are in the Redis of this process, where the keys are left to expire. In a virtual event loop,
    they are in a Redis of their own.
    """

    def __init__(self, lease_seconds: float = LEASE_SECONDS, url: str | None = None) -> None:
        self.lease_seconds = lease_seconds
        self.keys = Keys(f"test-{uuid.uuid4().hex}", "1")
        is_virtual = url is None and isinstance(asyncio.get_running_loop(), VirtualLoop)
        self._redis = RedisInLoop() if is_virtual else None
        self._url = self._redis.url if self._redis else url or redis_url()
        self.raw = self._redis.client() if self._redis else Redis.from_url(self._url, protocol=2)
        self._connectors: list[RedisConnector] = []

    def connector(self, kind: type[RedisConnector] = RedisConnector) -> RedisConnector:
        """A connector of its own, as in a separate process."""
        self._connectors.append(kind(self._url, self.keys, lease_seconds=self.lease_seconds))
        return self._connectors[-1]

    @staticmethod
    async def kill(connector: RedisConnector) -> None:
        """Disconnects the connector's consumers as SIGKILL does: they hand nothing over and do not leave."""
        for consumer in connector._consumers:
            consumer._closed = True
            await consumer._blocking.close()

    def __len__(self) -> int:
        """The number of queued requests, and of the streams and references of all requests."""
        names = {key.decode() for key in self.raw.scan_iter(match=self.keys.prefix + "*", count=1000)}
        shared = {self.keys.requests, self.keys.control, self.keys.capacity}
        shared |= {self.keys.writers, self.keys.waiting, *map(self.keys.leases, WORKERS)}
        own = {name for name in names - shared if not name.startswith(self.keys.inbox(""))}
        return self.raw.xlen(self.keys.requests) + len(own)

    def last_position(self, request_id: str, kind: StreamKind) -> Position | None:
        """As the connector's, without waiting."""
        try:
            return Position.parse(self.raw.xinfo_stream(self.keys.stream(request_id, kind))["last-generated-id"])
        except ResponseError:
            return None

    async def close(self) -> None:
        """Closes the connectors that were opened so far."""
        connectors, self._connectors = self._connectors, []
        for connector in connectors:
            await connector.close()
        if self._redis:
            await self._redis.close()


async def read(reader: Reader, count: int) -> list[Event]:
    """Reads exactly `count` events."""
    events = list[Event]()
    while len(events) < count:
        new = await reader.read()
        assert new, "the reader was closed"
        events += new
    assert len(events) == count
    return events
