"""A primary with a replica, whose promotion loses what the primary wrote last."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

from redis.asyncio import Redis

from syrinx_stages.connector.redis.connection import Address
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer


class Pair:
    """A primary and its replica, with a client of each."""

    def __init__(self, primary: RedisServer, replica: RedisServer) -> None:
        self.primary, self.replica = primary, replica
        self.of_primary = Redis.from_url(primary.url_with_password, protocol=2)
        self.raw = Redis.from_url(replica.url_with_password, protocol=2)
        """A client of the replica."""

    async def start(self) -> None:
        """Returns when the replica is in sync."""
        await self.raw.config_set("masterauth", self.primary.password)
        await self.raw.execute_command("REPLICAOF", "127.0.0.1", self.primary.port)
        while (await self.raw.info("replication"))["master_link_status"] != "up":
            await asyncio.sleep(0.01)

    async def detach(self) -> None:
        """The replica receives nothing from now on."""
        await self.of_primary.wait(1, 5000)
        await self.raw.execute_command("REPLICAOF", "NO", "ONE")

    def promote(self, connectors: Iterable[RedisConnector]) -> None:
        """The primary dies, and the connectors find the replica."""
        self.primary.process.kill()
        self.primary.process.wait()
        for connector in connectors:
            connector._pool.address = Address(self.replica.url_with_password)


@contextlib.asynccontextmanager
async def replicated() -> AsyncIterator[Pair]:
    """Runs a primary and its replica."""
    with RedisServer() as primary, RedisServer(password=primary.password) as replica:
        pair = Pair(primary, replica)
        await pair.start()
        yield pair
        await pair.of_primary.aclose()
        await pair.raw.aclose()
