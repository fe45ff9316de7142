"""Tests of the two connections for commands: no caller, however it ends, takes one from the next caller."""

import asyncio
import warnings

import pytest

from syrinx_stages.connector.base import Append, Fence
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.connection import Address
from syrinx_stages.connector.redis.pool import CommandPool
from syrinx_stages.contract.keys import STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Codes
from syrinx_stages.contract.stages import Stage

FENCE = Fence(Stage.TALKER, "1:0:0-1:0-1:")
CALLS = 20


@pytest.fixture
async def pool(world):
    """A pool with both connections open."""
    pool = CommandPool(Address(world.url), lambda: None)
    await both(pool)
    yield pool
    await pool.close()


def queue(pool):
    return pool.run(scripts.QUEUE, ["requests", "waiting", "capacity"], [])


async def both(pool):
    """Uses both connections, and returns them."""
    await asyncio.gather(queue(pool), pool.call("PING"))
    return [lane.connection for lane in pool._lanes]


async def test_many_calls_share_two_connections(pool):
    before = await both(pool)
    await asyncio.gather(*(call for _ in range(CALLS) for call in (pool.call("PING"), queue(pool))))
    assert await both(pool) == before


async def test_calls_that_are_made_together_open_one_connection(world):
    pool = CommandPool(Address(world.url), lambda: None)
    replies = await asyncio.gather(*(pool.call("CLIENT", "ID") for _ in range(CALLS)))
    assert len(set(replies)) == 1
    await pool.close()


async def test_a_cancelled_append_leaves_the_connection_to_others(world):
    connector = world.connector()
    await connector.queue()
    for _ in range(CALLS):
        entry = Append("gone", StreamKind.CODES, Position(1), Codes(b"x"), FENCE, STREAM_CREATED)
        connector.append([entry]).cancel()
    await connector.queue()


async def test_a_script_that_nobody_awaits_leaves_the_connection_to_others(pool):
    before = await both(pool)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(CALLS):
            queue(pool)
    assert await both(pool) == before


async def test_a_cancelled_call_keeps_its_connection_open(pool):
    before = await both(pool)
    calls = [asyncio.create_task(pool.call("PING")) for _ in range(CALLS)]
    calls += [
        asyncio.create_task(pool.run(scripts.QUEUE, ["requests", "waiting", "capacity"], [], replicated=True))
        for _ in range(CALLS)
    ]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    assert await both(pool) == before


async def test_a_connection_that_is_opened_for_a_cancelled_call_serves_the_next_one(world):
    pool = CommandPool(Address(world.url), lambda: None)
    for _ in range(CALLS):
        call = asyncio.create_task(pool.call("PING"))
        await asyncio.sleep(0)
        call.cancel()
    await both(pool)
    await pool.close()


async def test_a_lost_connection_is_opened_again_once_and_announced_once(pool):
    announced = []
    pool.on_reconnect.append(lambda: announced.append(pool.connected_seconds))
    before = await both(pool)
    before[0].close()
    assert pool.connected_seconds == 0
    after = await both(pool)
    assert not set(before) & set(after), "the other connection usually is lost, too"
    assert len(announced) == 1
