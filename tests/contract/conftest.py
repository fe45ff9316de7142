"""Fixtures of the connector tests."""

import asyncio
import contextlib
import functools
import inspect
import time
import uuid
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support import streams
from support.memory_redis import tcp
from support.memory_redis.in_loop import RedisInLoop
from support.redis_cluster import server_url
from support.waiting import DEADLINE
from support.writing import Owner
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import Keys, StreamKind
from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.contract.stages import WORKERS

HERE = Path(__file__).parent
AGREED = {"test_claims", "test_direct_entries", "test_reading", "test_streams"}
"""Their tests run on the Redis in memory, too: it must do the same, because the simulation runs on it."""
VIRTUAL_DEADLINE = 3600.0
LEASE = 60.0
"""Long, because tests age claims instead of waiting."""


def pytest_collection_modifyitems(items):
    """Gives every test a deadline, in virtual time one that costs nothing."""
    for item in items:
        if item.path.parent == HERE and inspect.iscoroutinefunction(item.obj):
            item.obj = with_deadline(item.obj, VIRTUAL_DEADLINE if is_virtual(item) else DEADLINE)


def is_virtual(item):
    return item.get_closest_marker("virtual") is not None


def with_deadline(test, seconds):
    @functools.wraps(test)
    async def limited(*arguments, **fixtures):
        async with asyncio.timeout(seconds):
            await test(*arguments, **fixtures)

    return limited


class World:
    """The streams of a pipeline, and any number of replicas of its stages."""

    admission = GatewaySettings(max_queue=10_000, max_queue_seconds=60)

    def __init__(self, url, keys=None):
        self.url = url
        self.keys = keys or Keys(pipeline=f"test-{uuid.uuid4().hex}", generation="1")
        self.raw = Redis.from_url(server_url(url, self.keys.prefix), protocol=2)
        self.connectors = []
        self.errors = 0
        """Commands of all connectors that failed and were retried."""

    def connector(self, settled=True):
        """`settled`: as if it had been connected for the time of a lease, so that it may take over claims."""
        connector = RedisConnector(self.url, self.keys, lease_seconds=LEASE, on_error=self._count_error)
        connector._pool._lost = not settled
        self.connectors.append(connector)
        return connector

    def writer(self):
        """Returns a connector that writes as the owner of any request."""
        return Owner(self.connector())

    def _count_error(self):
        self.errors += 1

    def replica(self, group, name):
        """Returns a consumer with its own connector, as in a separate process."""
        return self.connector().consumer(group, name)

    @staticmethod
    def request(request_id="one", **fields):
        return SpeechRequest(id=request_id, accepted_at=0.0, text="hello", task_type=TaskType.CUSTOM_VOICE, **fields)

    async def submit(self, gateway, request_id="one"):
        return await gateway.submit(self.request(request_id), self.admission)

    async def submit_claimed(self, gateway, consumer, request_id="one"):
        """Submits a request and claims it."""
        ticket = await self.submit(gateway, request_id)
        (claim,) = await consumer.claim(1)
        return ticket, claim

    async def age(self, group, owner, seconds):
        """Makes a consumer look as if it had not renewed its lease for `seconds`."""
        await self.raw.zadd(self.keys.leases(group), {owner: 1000 * (time.time() - seconds)})

    async def expire(self, request_id):
        """Makes the streams of a request expire."""
        for kind in StreamKind:
            await self.raw.delete(self.keys.stream(request_id, kind))
        await self.raw.delete(self.keys.reference(request_id), self.keys.owners(request_id))

    async def names(self):
        return {key.decode() async for key in self.raw.scan_iter(match=self.keys.prefix + "*", count=1000)}

    async def left(self):
        """Returns what exists besides what requests share: queue, leases, writers, cancellations, capacity, inboxes."""
        assert await self.raw.xlen(self.keys.requests) == 0
        for group in WORKERS:
            assert (await self.raw.xpending(self.keys.requests, group))["pending"] == 0
        shared = {self.keys.requests, self.keys.control, self.keys.capacity}
        shared |= {self.keys.writers, self.keys.waiting, *map(self.keys.leases, WORKERS)}
        return {name for name in await self.names() - shared if not name.startswith(self.keys.inbox(""))}

    async def without_expiry(self):
        """Returns the keys without a time to live."""
        return {name for name in await self.names() if await self.raw.ttl(name) == -1}

    async def close(self, keep=False):
        """Closes all connectors, and deletes all keys."""
        for connector in self.connectors:
            await connector.close()
        if keep:
            await self.raw.aclose()
            return
        assert not await self.without_expiry()
        if names := await self.names():
            await self.raw.delete(*names)
        await self.raw.aclose()


def pytest_generate_tests(metafunc):
    """A test in virtual time has a Redis in memory in its event loop; some others have each of two servers."""
    if "world_url" not in metafunc.fixturenames:
        return
    agreed = metafunc.module.__name__.rpartition(".")[2] in AGREED
    servers = ["virtual"] if is_virtual(metafunc.definition) else ["redis", "memory"] if agreed else ["redis"]
    metafunc.parametrize("world_url", servers, indirect=True, scope="session")


@pytest.fixture(scope="session")
def world_url(request):
    """The URL of a real Redis, or of the one in memory that the simulation runs on; none in virtual time."""
    if request.param == "redis":
        yield streams.redis_url()
    elif request.param == "memory":
        with tcp.serve() as url:
            yield url
    else:
        yield None


@pytest.fixture
async def world(world_url):
    async with contextlib.AsyncExitStack() as stack:
        if (url := world_url) is None:
            url = (await stack.enter_async_context(RedisInLoop())).url
        world = World(url)
        yield world
        await world.close()


@pytest.fixture
def world_of():
    """The class of a world over a given Redis, which the test closes."""
    return World


@pytest.fixture
async def private_world():
    """A world with a real Redis of its own, which a test may stop or configure."""
    with RedisServer() as server:
        world = World(server.url_with_password)
        world.server = server
        yield world
        await world.close(keep=True)


@pytest.fixture
def until():
    """A function that waits for a condition, at most until the deadline of the test."""

    async def wait(condition):
        while not await condition():
            await asyncio.sleep(0.005)

    return wait
