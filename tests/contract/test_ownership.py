"""Whether and when a replica claims and reports, with a Redis that is cut off and comes back."""

import asyncio
import contextlib

import pytest
from msgspec import structs
from prometheus_client import Counter

from support.tls import front
from syrinx_stages.connector.base import REFRESH_SECONDS, Capacity
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.requests.ownership import REPORT_SECONDS, Ownership

KEYS = Keys(pipeline="owners", generation="1")


def owner_of(consumer, rows, *, lost=print, admissible=1, measure=lambda: Capacity(1, 0.0)):
    """Returns the ownership of a consumer with some rows."""
    takeovers = Counter("takeovers", "", registry=None)
    return Ownership(consumer, rows, lambda claim: None, lost, lambda: admissible, measure, takeovers)


@contextlib.asynccontextmanager
async def running(*loops):
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def counted(consumer, name, of):
    """Records what `of` returns for the argument and the result of each call of a method of a consumer."""
    recorded, method = [], getattr(consumer, name)

    async def call(argument):
        result = await method(argument)
        recorded.append(of(argument, result))
        return result

    setattr(consumer, name, call)
    return recorded


@pytest.mark.parametrize("full", [True, False], ids=["no free row", "free rows"])
async def test_consumes_again_as_soon_as_redis_is_back(world_of, until, full):
    lost = []
    with RedisServer() as server:
        async with contextlib.AsyncExitStack() as cut:
            port = await cut.enter_async_context(front(server.port))
            gateway = RedisConnector(server.url_with_password, KEYS)
            replica = RedisConnector(f"redis://:{server.password}@127.0.0.1:{port}/0", KEYS)
            replica._pool.retry_seconds = 0.0
            owner = owner_of(replica.consumer(Stage.TALKER, "a"), 1 if full else 2, lost=lost.append)

            async def consumes():
                return owner.is_consuming and owner.claims

            async def does_not_consume():
                return not owner.is_consuming

            assert not owner.is_consuming
            await gateway.submit(world_of.request(), world_of.admission)
            async with running(owner.claim_loop(), owner.lease_loop()):
                await until(consumes)
                await cut.aclose()
                await until(does_not_consume)
                async with front(server.port, own=port):
                    await until(consumes)
                    assert not lost
            await owner.close(hand_over=False)
            await replica.close()
            await gateway.close()


async def test_claims_more_at_once_while_requests_wait(world, until):
    """The first claim is of one request, so that replicas share a burst; round trips must not limit the rate."""
    connector = world.connector()
    consumer = connector.consumer(Stage.TALKER, "a")
    sizes = counted(consumer, "claim", lambda count, claims: len(claims))
    owner = owner_of(consumer, 9, admissible=5)
    for number in range(9):
        await world.submit(connector, f"r{number}")

    async def all_claimed():
        return len(owner.claims) == 9

    async with running(owner.claim_loop()):
        await until(all_claimed)
    assert sizes == [1, 2, 4, 2]


@pytest.mark.virtual
@pytest.mark.parametrize("again", [True, False])
async def test_only_the_claim_that_was_checked_is_lost(world, again):
    """While the reply is under way the request may have been dropped, and claimed again."""
    connector, lost = world.connector(), []
    consumer, other = connector.consumer(Stage.TALKER, "a"), world.replica(Stage.TALKER, "b")
    owner = owner_of(consumer, 1, lost=lost.append)
    await world.submit(connector, "r")
    async with running(owner.claim_loop()):
        await asyncio.sleep(1)
    await world.age(Stage.TALKER, "a", 60)
    assert await other.take_over(1)
    refresh = consumer.refresh

    async def refresh_late(entry_ids):
        found = await refresh(entry_ids)
        if again:
            owner.claims["r"] = structs.replace(owner.claims["r"])
        return found

    consumer.refresh = refresh_late
    async with running(owner.lease_loop()):
        await asyncio.sleep(0.1)
    assert (list(owner.claims), lost) == ((["r"], []) if again else ([], ["r"]))


@pytest.mark.virtual
async def test_a_replica_that_leaves_hands_over_and_one_that_dies_is_replaced_as_a_whole(world):
    """What is handed over waits for no lease. A dead replica's requests are taken over as far as there are rows."""
    connector = world.connector()
    owners = {name: owner_of(connector.consumer(Stage.TALKER, name), 3, admissible=3) for name in "abc"}
    for number in range(3):
        await world.submit(connector, f"r{number}")
    async with running(owners["a"].claim_loop()):
        await asyncio.sleep(1)
    assert len(owners["a"].claims) == 3
    await owners["a"].close(hand_over=True)
    async with running(owners["b"].lease_loop()):
        await asyncio.sleep(0.01)
    assert len(owners["b"].claims) == 3
    await world.age(Stage.TALKER, "b", 60)
    async with running(owners["c"].lease_loop()):
        await asyncio.sleep(0.01)
    assert len(owners["c"].claims) == 3


@pytest.mark.virtual
async def test_the_room_of_a_request_that_ended_is_reported_at_once(world):
    """Its client may send the next one at once, which must not be refused because of the last report."""
    connector = world.connector()
    consumer = connector.consumer(Stage.TALKER, "a")
    reported = counted(consumer, "report", lambda capacity, reply: capacity.free)
    owner = owner_of(consumer, 1, measure=lambda: Capacity(owner.free, 0.1))
    await world.submit(connector, "r")
    async with running(owner.claim_loop()):
        await asyncio.sleep(1)
        async with running(owner.report_loop()):
            await asyncio.sleep(REPORT_SECONDS / 2)
            assert reported == [0]
            await owner.finish("r")
            await asyncio.sleep(REPORT_SECONDS / 10)
            assert reported == [0, 1]


async def test_a_consumer_that_never_read_leaves_though_redis_is_away():
    connector = RedisConnector("redis://127.0.0.1:1/0", KEYS)
    consumer = connector.consumer(Stage.TALKER, "a")
    await consumer.close()
    await connector.close()


@pytest.mark.virtual
async def test_only_a_replica_with_a_free_row_asks_often_whether_the_codecs_have_room(world):
    codecs = world.replica(Stage.CODEC, "c")
    replicas = {rows: world.replica(Stage.TALKER, f"t{rows}") for rows in (0, 1)}
    reports = {rows: counted(replica, "report", lambda *_: None) for rows, replica in replicas.items()}
    owners = [owner_of(replica, rows, measure=lambda: Capacity(0, 1.0)) for rows, replica in replicas.items()]
    await codecs.report(Capacity(free=0, requests_per_second=1.0))
    async with running(*(owner.report_loop() for owner in owners)):
        await asyncio.sleep(1)
    assert len(reports[0]) < 6 < 15 < len(reports[1])


def standby_of(world, group, name, room):
    """Returns the ownership of a standby that could serve so many requests."""
    consumer = world.connector().consumer(group, "standby", standby_of=name)
    return owner_of(consumer, room, admissible=room, measure=lambda: Capacity(room, 1.0))


def loops(owner):
    return running(owner.claim_loop(), owner.lease_loop(), owner.report_loop())


@pytest.mark.virtual
async def test_a_standby_claims_only_while_its_replica_has_no_lease(world):
    connector, replica = world.connector(), world.replica(Stage.TALKER, "a")
    await replica.report(Capacity(9, 1.0))
    owner = standby_of(world, Stage.TALKER, "a", 9)
    async with loops(owner):
        await world.submit(connector, "r0")
        await asyncio.sleep(10)
        assert (list(owner.claims), owner.is_consuming) == ([], True)
        await world.age(Stage.TALKER, "a", 60)
        await asyncio.sleep(REFRESH_SECONDS + REPORT_SECONDS)
        assert list(owner.claims) == ["r0"]
        await replica.report(Capacity(9, 1.0))
        await asyncio.sleep(REFRESH_SECONDS + REPORT_SECONDS)
        await world.submit(connector, "r1")
        await asyncio.sleep(10)
        assert list(owner.claims) == ["r0"], "what it owns, it finishes"
    assert [claim.request.id for claim in await replica.claim(1)] == ["r1"]


@pytest.mark.virtual
async def test_a_standby_takes_over_whatever_stops_its_replica_from_renewing_and_also_from_others(world):
    connector = world.connector()
    replicas = {name: world.replica(Stage.TALKER, name) for name in ("a", "b")}
    for number, replica in enumerate(replicas.values()):
        await world.submit_claimed(connector, replica, f"r{number}")
        await replica.report(Capacity(9, 1.0))
    owner = standby_of(world, Stage.TALKER, "a", 9)
    async with loops(owner):
        await asyncio.sleep(10)
        assert not owner.claims
        for number, name in enumerate(("b", "a")):
            await world.age(Stage.TALKER, name, 60)
            await asyncio.sleep(REFRESH_SECONDS + REPORT_SECONDS)
            assert len(owner.claims) == number + 1


@pytest.mark.virtual
async def test_the_room_of_a_standby_counts_only_while_its_replica_has_no_lease(world):
    talker, codec = world.replica(Stage.TALKER, "t"), world.replica(Stage.CODEC, "a")
    await codec.report(Capacity(2, 1.0))
    async with loops(standby_of(world, Stage.CODEC, "a", 5)):
        await asyncio.sleep(1)
        await codec.report(Capacity(2, 1.0))
        assert await talker.report(Capacity(1, 1.0)) == 2
        await world.age(Stage.CODEC, "a", 60)
        await asyncio.sleep(10)
        assert await talker.report(Capacity(1, 1.0)) == 5


@pytest.mark.virtual
async def test_a_standby_that_has_just_connected_waits_for_the_time_of_a_lease(world):
    """After Redis was away no replica could renew its lease, so none that is known counts as dead."""
    connector, replica = world.connector(), world.replica(Stage.TALKER, "a")
    await replica.report(Capacity(9, 1.0))
    await world.age(Stage.TALKER, "a", 60)
    await world.submit(connector, "r0")
    consumer = world.connector(settled=False).consumer(Stage.TALKER, "standby", standby_of="a")
    owner = owner_of(consumer, 9, admissible=9)
    async with loops(owner):
        await asyncio.sleep(59)
        assert not owner.claims
        await asyncio.sleep(2)
        assert list(owner.claims) == ["r0"]
