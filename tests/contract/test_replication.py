"""A submission or a claim returns when a replica knows it, or when none seems to get it soon."""

import asyncio

import pytest

from support.memory_redis.in_loop import RedisInLoop
from syrinx_stages.connector.redis.replication import LAGGING_SECONDS, WAIT_MS
from syrinx_stages.contract.stages import Stage

pytestmark = pytest.mark.virtual


@pytest.fixture
async def replicated(world_of):
    """A Redis with a replica, and a world with it."""
    async with RedisInLoop() as server:
        server.redis.replicas = 1
        world = world_of(server.url)
        yield server.redis, world
        await world.close()


async def claim_and_time(world, request_id):
    """Submits and claims a request. Returns how long both took."""
    connector, started = world.connectors[0], asyncio.get_running_loop().time()
    await world.submit(connector, request_id)
    [claim] = await connector._consumers[0].claim(1)
    assert claim.request.id == request_id
    return asyncio.get_running_loop().time() - started


async def test_a_claim_waits_once_for_a_replica_that_lags(replicated, caplog):
    redis, world = replicated
    world.connector().consumer(Stage.TALKER, "a")
    assert await claim_and_time(world, "in sync") < WAIT_MS / 1000
    await asyncio.sleep(0.01)
    redis.replicas_lag = True
    assert await claim_and_time(world, "one") == pytest.approx(WAIT_MS / 1000)
    assert await claim_and_time(world, "two") < WAIT_MS / 1000, "not again at once"
    assert caplog.text.count("no replica has acknowledged") == 1
    redis.replicas_lag = False
    await asyncio.sleep(LAGGING_SECONDS + 1)
    assert await claim_and_time(world, "three") < WAIT_MS / 1000
