"""Tests of the connection pool: no caller, however it ends, keeps a connection from the next one."""

import asyncio
import warnings
from itertools import islice

import pytest

from syrinx_stages.connector import redis_scripts as scripts
from syrinx_stages.connector.base import Append, Fence
from syrinx_stages.connector.redis_connection import Address
from syrinx_stages.connector.redis_pool import MAX_CONNECTIONS, CommandPool, backoff
from syrinx_stages.contract.keys import STREAM_CREATED, Group, Position, StreamKind
from syrinx_stages.contract.messages import Codes

FENCE = Fence(Group.TALKERS, "1:0:0-1:0-1:")


@pytest.fixture
async def pool(redis_url):
    """A pool whose connections are all open and free."""
    pool = CommandPool(Address(redis_url), lambda: None)
    await asyncio.gather(*(pool.call("PING") for _ in range(MAX_CONNECTIONS)))
    yield pool
    await pool.close()


async def connections(pool):
    return set(await asyncio.gather(*(pool.call("CLIENT", "ID") for _ in range(MAX_CONNECTIONS))))


def test_a_reconnection_is_attempted_four_times_a_second():
    assert max(islice(backoff(), 100)) <= 0.25


async def test_a_call_cancelled_before_its_first_step_frees_its_connection(world):
    connector = world.connector()
    await asyncio.gather(*(connector.queue(Group.TALKERS) for _ in range(MAX_CONNECTIONS)))
    for _ in range(2 * MAX_CONNECTIONS):
        entry = Append("gone", StreamKind.CODES, Position(1), Codes(b"x"), FENCE, STREAM_CREATED)
        connector.append([entry]).cancel()
    async with asyncio.timeout(2):
        await asyncio.gather(*(connector.queue(Group.TALKERS) for _ in range(MAX_CONNECTIONS)))


async def test_a_call_that_nobody_awaits_frees_its_connection(pool, world):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2 * MAX_CONNECTIONS):
            pool.run(scripts.QUEUE, [world.keys.requests], [Group.TALKERS])
        async with asyncio.timeout(2):
            await asyncio.gather(*(pool.call("PING") for _ in range(MAX_CONNECTIONS)))


async def test_a_cancelled_call_keeps_its_connection_open(pool):
    before = await connections(pool)
    assert len(before) == MAX_CONNECTIONS
    calls = [asyncio.create_task(pool.call("PING")) for _ in range(MAX_CONNECTIONS)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    # A connection whose reply comes first may serve several of the next calls.
    assert await connections(pool) <= before


async def test_a_connection_that_is_opened_for_a_cancelled_call_frees_its_place(redis_url):
    pool = CommandPool(Address(redis_url), lambda: None)
    for _ in range(2 * MAX_CONNECTIONS):
        call = asyncio.create_task(pool.call("PING"))
        await asyncio.sleep(0)
        call.cancel()
    async with asyncio.timeout(2):
        await asyncio.gather(*(pool.call("PING") for _ in range(MAX_CONNECTIONS)))
    await pool.close()
