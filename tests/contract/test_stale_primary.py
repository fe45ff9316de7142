"""Tests of a primary that serves on after another server has replaced it: what only it knows will be lost."""

import asyncio
import signal

import pytest

from support.failover import replicated
from support.sentinel import sentinel, sentinel_url
from support.writing import chained
from syrinx_stages.connector.base import Superseded
from syrinx_stages.connector.redis import replication
from syrinx_stages.connector.redis.connection import Address, Connection, Unavailable
from syrinx_stages.connector.servers import primary as redis_primary
from syrinx_stages.connector.servers.address import redis_address
from syrinx_stages.contract.keys import Position, StreamKind
from syrinx_stages.contract.messages import Codes
from syrinx_stages.contract.stages import WORKERS, Stage

pytestmark = pytest.mark.night

GROUPS = pytest.mark.parametrize("group", WORKERS)


@pytest.fixture
async def pair(world_of, monkeypatch):
    """A primary and its replica, with a sentinel that is only asked when there is a reason."""
    monkeypatch.setattr(redis_primary, "OBSERVER_SECONDS", 60.0)
    async with replicated() as pair, sentinel(pair.primary.port) as pair.sentinel:
        pair.world = world_of(pair.primary.url_with_password)
        pair.world.url = sentinel_url(pair.sentinel, password=pair.primary.password)
        yield pair
        await pair.world.close()


@pytest.mark.parametrize("in_doubt", [False, True], ids=["the sentinel knows", "the fail-over has not ended"])
async def test_a_request_that_a_stale_primary_took_is_submitted_to_its_successor(pair, until, in_doubt):
    gateway, queue = pair.world.connector(), pair.world.keys.requests
    await gateway.queue()
    await pair.detach()
    if in_doubt:
        pair.sentinel.failing_over = True
    else:
        pair.sentinel.promote(pair.replica.port)
    submitting = asyncio.create_task(pair.world.submit(gateway))
    if in_doubt:
        asked = pair.sentinel.asked
        await until(lambda: reached(pair.sentinel, asked + 6))
        assert await pair.of_primary.xlen(queue) == 1
        assert not submitting.done()
        pair.sentinel.promote(pair.replica.port)
    ticket = await submitting
    ((entry_id, _),) = await pair.raw.xrange(queue)
    assert entry_id.decode() == ticket.entry_id


@GROUPS
async def test_a_claim_from_a_stale_primary_is_dropped_and_the_request_claimed_from_its_successor(pair, group):
    gateway, consumer = pair.world.connector(), pair.world.connector().consumer(group, "a")
    await pair.world.submit_claimed(gateway, consumer, "before")
    await pair.world.submit(gateway)
    await pair.detach()
    pair.sentinel.promote(pair.replica.port)
    assert list(await consumer.claim(1)) == []
    owners = pair.world.keys.owners("one")
    assert (await pair.of_primary.hget(owners, group)).startswith(b"1:"), "it was accepted where nobody will know it"
    (claim,) = await consumer.claim(1)
    assert await pair.raw.hget(owners, group) == claim.fence.token.encode()


async def test_a_primary_without_a_replica_serves_on(pair):
    """It is confirmed by the sentinel, and only the first request waits for the replica."""
    gateway, consumer = pair.world.connector(), pair.world.connector().consumer(Stage.TALKER, "a")
    await pair.world.submit(gateway, "before")
    await pair.detach()
    waited, asked = await waits(pair), pair.sentinel.asked
    for number in range(20):
        await pair.world.submit(gateway, f"{number}")
    assert await waits(pair) <= waited + 1
    assert pair.sentinel.asked >= asked + 20
    assert len(await consumer.claim(30)) == 21


async def test_requests_that_are_submitted_together_wait_together(pair, monkeypatch):
    """A command that waits holds up the connection."""
    gateway = pair.world.connector()
    await pair.world.submit(gateway, "before")
    waited = await waits(pair)
    await asyncio.gather(*(pair.world.submit(gateway, f"{number}") for number in range(20)))
    assert await waits(pair) - waited < 10
    await pair.detach()
    monkeypatch.setattr(replication, "LAGGING_SECONDS", 60.0)
    waited = await waits(pair)
    await asyncio.gather(*(pair.world.submit(gateway, f"late-{number}") for number in range(20)))
    assert await waits(pair) <= waited + 1


async def test_a_primary_serves_on_without_a_reachable_sentinel(pair, world_of, monkeypatch):
    gateway = pair.world.connector()
    await pair.world.submit(gateway, "before")
    await pair.detach()
    monkeypatch.setattr(gateway._pool.address, "_answering", [Address("redis://127.0.0.1:1")])
    monkeypatch.setattr(gateway._pool.address, "_observers", [Address("redis://127.0.0.1:1")])
    await pair.world.submit(gateway)
    assert (await gateway.queue()).length == 2


async def test_a_fail_over_that_does_not_end_delays_one_request_only(pair, monkeypatch):
    monkeypatch.setattr(redis_primary, "FAILOVER_SECONDS", 0.3)
    gateway = pair.world.connector()
    await pair.world.submit(gateway, "before")
    await pair.detach()
    pair.sentinel.failing_over = True
    before = asyncio.get_running_loop().time()
    await pair.world.submit(gateway)
    assert asyncio.get_running_loop().time() - before > 0.3
    asked = pair.sentinel.asked
    await pair.world.submit(gateway, "next")
    assert pair.sentinel.asked == asked + 3, "one question"


async def test_the_sentinel_with_the_newest_fail_over_is_believed(pair):
    async with sentinel(pair.primary.port) as late:
        pair.sentinel.promote(pair.replica.port)
        pair.world.url = sentinel_url(1, late, pair.sentinel, password=pair.primary.password)
        await pair.detach()
        await pair.world.submit(pair.world.connector())
        assert await pair.raw.xlen(pair.world.keys.requests) == 1


@pytest.mark.parametrize("promoted", [True, False])
async def test_a_promoted_replica_is_used_before_its_sentinel_has_seen_that_it_is_the_primary(pair, promoted):
    gateway = pair.world.connector()
    await pair.world.submit(gateway, "before")
    pair.sentinel.failing_over, pair.sentinel.promoting = True, pair.replica.port
    if promoted:
        await pair.detach()
    view = await gateway._pool.address._view_since(asyncio.get_running_loop().time())
    assert view.primary == ("127.0.0.1", (pair.replica if promoted else pair.primary).port)
    assert view.failing_over is not promoted


async def test_connections_are_closed_soon_after_the_fail_over_of_a_primary_that_is_down(pair, until, monkeypatch):
    address = redis_address(sentinel_url(pair.sentinel, password=pair.primary.password))
    monkeypatch.setattr(redis_primary, "OBSERVER_SECONDS", 0.5)
    connection = await Connection.open(address)
    pair.sentinel.down = True
    asked = pair.sentinel.asked
    await until(lambda: reached(pair.sentinel, asked + 6))
    # From now on it waits for long, unless it has learned that the primary is down.
    monkeypatch.setattr(redis_primary, "OBSERVER_SECONDS", 60.0)
    await until(lambda: reached(pair.sentinel, asked + 10))
    pair.sentinel.promote(pair.replica.port)
    await until(lambda: closed(connection))
    address.close()


async def test_a_primary_that_does_not_reply_is_asked_for_at_once(pair, until):
    address = redis_address(sentinel_url(pair.sentinel, password=pair.primary.password))
    connection = await Connection.open(address)
    await asyncio.sleep(3 * redis_primary.DOWN_SECONDS)
    assert pair.sentinel.asked == 2, "not again while it replies"
    pair.primary.process.send_signal(signal.SIGSTOP)
    await until(lambda: reached(pair.sentinel, 6))
    pair.sentinel.promote(pair.replica.port)
    await until(lambda: closed(connection))
    pair.primary.process.send_signal(signal.SIGCONT)
    address.close()


async def test_a_request_waits_for_a_primary_that_may_write(pair, until):
    gateway = pair.world.connector()
    await pair.world.submit(gateway, "before")
    await pair.detach()
    await pair.of_primary.config_set("min-replicas-to-write", 1)
    submitting = asyncio.create_task(pair.world.submit(gateway))
    await until(lambda: failed(pair.world, 2))
    assert not submitting.done()
    await pair.start()
    ticket = await submitting
    assert (await pair.raw.xrevrange(pair.world.keys.requests, count=1))[0][0].decode() == ticket.entry_id


async def test_a_script_that_a_replica_refuses_may_succeed_on_another_connection(pair):
    connection = await Connection.open(Address(pair.replica.url_with_password))
    with pytest.raises(Unavailable):
        await connection.call(("EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "key"), 5.0)
    connection.close()


@GROUPS
async def test_a_request_that_is_submitted_again_after_a_lost_reply_refuses_its_first_owner(pair, group, monkeypatch):
    """The Redis that took it comes back empty, before the gateway knows that it was queued."""
    gateway, late = pair.world.connector(), pair.world.connector()
    consumer, kind = late.consumer(group, "late"), StreamKind.CODES if group is Stage.TALKER else StreamKind.AUDIO
    execute, claims = gateway._pool._execute_replicated, []

    async def lose_everything_after_the_first(command):
        reply = await execute(command)
        if not claims:
            claims.extend(await consumer.claim(1))
            await pair.of_primary.flushall()
            raise ConnectionResetError("the reply was lost")
        return reply

    monkeypatch.setattr(gateway._pool, "_execute_replicated", lose_everything_after_the_first)
    await pair.world.submit(gateway)
    (outcome,) = await late.append(chained(claims[0], kind, (Position(1), Codes(b""))))
    assert isinstance(outcome, Superseded)


async def reached(sentinel, count):
    return sentinel.asked >= count


async def closed(connection):
    return not connection.is_open


async def failed(world, count):
    return world.errors >= count


async def waits(pair):
    return (await pair.of_primary.info("commandstats")).get("cmdstat_wait", {}).get("calls", 0)
