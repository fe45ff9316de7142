"""Whether a replica reads its group, over a real Redis that is cut off and comes back."""

import asyncio
import contextlib

import pytest
from prometheus_client import Counter

from support.tls import front
from syrinx_stages.connector.base import Capacity
from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import Group, Keys
from syrinx_stages.runtime import ownership
from syrinx_stages.runtime.ownership import Ownership

KEYS = Keys(pipeline="owners", generation="1")


@pytest.mark.parametrize("full", [True, False], ids=["no free row", "free rows"])
async def test_consumes_again_as_soon_as_redis_is_back(world_of, until, monkeypatch, full):
    monkeypatch.setattr(ownership, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(ownership, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr("syrinx_stages.connector.redis_blocking.RETRY_SECONDS", 0.1)
    lost = []
    with RedisServer() as server:
        async with contextlib.AsyncExitStack() as cut:
            port = await cut.enter_async_context(front(server.port))
            gateway = RedisConnector(server.url_with_password, KEYS)
            replica = RedisConnector(f"redis://:{server.password}@127.0.0.1:{port}/0", KEYS)
            replica._pool.retry_seconds = 0.1
            owner = Ownership(
                replica.consumer(Group.TALKERS, "a"),
                1 if full else 2,
                lambda claim: None,
                lost.append,
                lambda: 1,
                lambda: Capacity(1, 0.0),
                Counter("takeovers", "", registry=None),
            )
            tasks = [asyncio.create_task(owner.claim_loop()), asyncio.create_task(owner.lease_loop())]

            async def consumes():
                return owner.is_consuming and owner.claims

            async def does_not_consume():
                return not owner.is_consuming

            assert not owner.is_consuming
            await gateway.submit(world_of.request(), world_of.admission)
            await until(consumes)
            await cut.aclose()
            await until(does_not_consume)
            async with front(server.port, own=port):
                await until(consumes)
                assert not lost
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await owner.close(hand_over=True)
                await replica.close()
            await gateway.close()


async def test_claims_more_at_once_while_requests_wait(world_of, until):
    """The first claim is of one request, so that replicas share a burst; round trips must not limit the rate."""
    sizes = []
    with RedisServer() as server:
        connector = RedisConnector(server.url_with_password, KEYS)
        consumer = connector.consumer(Group.TALKERS, "a")
        claim = consumer.claim

        async def counted(count):
            claims = await claim(count)
            sizes.append(len(claims))
            return claims

        consumer.claim = counted
        owner = Ownership(
            consumer,
            9,
            lambda claim: None,
            lambda request_id: None,
            lambda: 5,
            lambda: Capacity(1, 0.0),
            Counter("takeovers", "", registry=None),
        )
        for number in range(9):
            await connector.submit(world_of.request(f"r{number}"), world_of.admission)
        task = asyncio.create_task(owner.claim_loop())

        async def all_claimed():
            return len(owner.claims) == 9

        await until(all_claimed)
        owner.stop_claiming()
        await task
        await owner.close(hand_over=False)
        await connector.close()
    assert sizes == [1, 2, 4, 2]


async def test_the_room_of_a_request_that_ended_is_reported_at_once(world_of, until, monkeypatch):
    """Its client may send the next one at once, which must not be refused because of the last report."""
    monkeypatch.setattr(ownership, "REPORT_SECONDS", 60)
    monkeypatch.setattr(ownership, "REFRESH_SECONDS", 60)
    reported = []
    with RedisServer() as server:
        connector = RedisConnector(server.url_with_password, KEYS)
        consumer = connector.consumer(Group.TALKERS, "a")
        report = consumer.report

        async def recorded(capacity):
            reported.append(capacity.free)
            return await report(capacity)

        consumer.report = recorded
        owner = Ownership(
            consumer,
            1,
            lambda claim: None,
            lambda request_id: None,
            lambda: 1,
            lambda: Capacity(owner.free, 0.1),
            Counter("takeovers", "", registry=None),
        )

        async def is_full():
            return not owner.free

        async def is_reported():
            return reported and reported[-1] == owner.free

        await connector.submit(world_of.request("r"), world_of.admission)
        tasks = [asyncio.create_task(owner.claim_loop())]
        await until(is_full)
        tasks.append(asyncio.create_task(owner.report_loop()))
        await until(is_reported)
        await owner.finish("r")
        await until(is_reported)
        assert reported == [0, 1]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await owner.close(hand_over=False)
        await connector.close()


async def test_a_consumer_that_never_read_leaves_at_once_though_redis_is_away():
    connector = RedisConnector("redis://127.0.0.1:1/0", KEYS)
    consumer = connector.consumer(Group.TALKERS, "a")
    async with asyncio.timeout(0.5):
        await consumer.close()
        await connector.close()


async def test_only_a_replica_with_a_free_row_asks_often_whether_the_codecs_have_room(world, until, monkeypatch):
    monkeypatch.setattr(ownership, "REPORT_SECONDS", 0.01)
    monkeypatch.setattr(ownership, "REFRESH_SECONDS", 60)
    await world.replica(Group.CODECS, "c").report(Capacity(free=0, requests_per_second=1.0))
    reports = {0: 0, 1: 0}

    def reporting(rows):
        consumer = world.replica(Group.TALKERS, f"t{rows}")
        report = consumer.report

        async def counted(capacity):
            reports[rows] += 1
            return await report(capacity)

        consumer.report = counted
        takeovers = Counter("takeovers", "", registry=None)
        owner = Ownership(consumer, rows, print, print, lambda: 0, lambda: Capacity(0, 1.0), takeovers)
        return asyncio.create_task(owner.report_loop())

    tasks = [reporting(rows) for rows in reports]

    async def asked():
        return reports[1] > 5

    await until(asked)
    assert reports[0] == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
