"""Tests of the Redis connector only: expiry, connections, restarts, undecodable bytes, secrets."""

import asyncio
import gc
import os
import threading
import traceback

import pytest

from support.streams import read
from support.writing import Owner, chained
from syrinx_stages.connector.base import (
    RETRY_SECONDS,
    STREAM_TTL_SECONDS,
    Cancelled,
    ConnectorError,
    Gone,
    StreamEntry,
)
from syrinx_stages.connector.redis.scripts import QUEUE_TTL_SECONDS
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, STREAM_START, Keys, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason, StreamCreated, Text
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.contract.stages import WORKERS, Stage

CODES, AUDIO = StreamKind.CODES, StreamKind.AUDIO


def codes(frames, request_id="one"):
    return StreamEntry(request_id, CODES, Position(frames), Codes(b"x%d" % frames))


async def kill_connections(client, tenths):
    """Kills every connection except the client's own in the middle of other work."""
    await turns(5 * tenths)
    await client.client_kill_filter(_type="normal", skipme=True)


async def test_all_keys_of_a_request_expire(world):
    gateway = world.writer()
    admission = GatewaySettings(max_queue=9, max_queue_seconds=30)
    await gateway.submit(world.request(has_reference=True, streams_text=True), admission, b"sound")
    own = [world.keys.stream("one", kind) for kind in StreamKind]
    own += [world.keys.reference("one"), world.keys.owners("one")]
    assert await world.names() == {world.keys.requests, world.keys.waiting, world.keys.capacity, *own}
    for key in own:
        assert 120 < await world.raw.ttl(key) <= STREAM_TTL_SECONDS + 30
        await world.raw.expire(key, 7)
    await gateway.append([codes(1)])
    assert [await world.raw.ttl(key) > 100 for key in own] == [True, False, False, False, False, True]
    await gateway.report_playback({"one": 1})
    assert all([await world.raw.ttl(key) > 100 for key in own])
    for key in own:
        await world.raw.expire(key, 7)
    reader = gateway.reader()
    reader.subscribe("one", AUDIO, Position(1))
    text = StreamEntry("one", StreamKind.TEXT, Position(3), Text("two"))
    assert await gateway.append_text("one", STREAM_CREATED, [text]) is None
    assert all([await world.raw.ttl(key) > 100 for key in own])


async def test_an_undecodable_entry_ends_its_stream_with_an_error(world, caplog):
    writer = world.connector()
    await world.submit(writer, "bad")
    await world.submit(writer, "good")
    await world.raw.xadd(world.keys.stream("bad", CODES), {"d": b"\xc1 secret"}, id="1-0")
    reader = writer.reader()
    reader.subscribe("bad", CODES, STREAM_CREATED)
    (event,) = await reader.read()
    assert event.position == Position(1) and isinstance(event.entry, End)
    assert event.entry.reason is EndReason.ERROR and "cannot be decoded" in event.entry.message
    assert (await writer.history("bad", CODES))[1] == event
    assert "secret" not in caplog.text
    reader.subscribe("good", CODES, STREAM_START)
    assert [event.request_id for event in await read(reader, 1)] == ["good"]


@pytest.mark.parametrize("group", WORKERS)
async def test_an_undecodable_request_is_dropped_once(world, group, caplog):
    gateway = world.connector()
    consumer = gateway.consumer(group, "x")
    await world.submit(gateway, "first")
    await world.raw.xadd(world.keys.requests, {"d": b"\xc1 secret"})
    await world.submit(gateway, "second")
    assert [claim.request.id for claim in await consumer.claim(9)] == ["first", "second"]
    assert "secret" not in caplog.text and "cannot be decoded" in caplog.text
    assert (await world.raw.xpending(world.keys.requests, group))["pending"] == 2
    assert await world.raw.xlen(world.keys.requests) == 2, "no stage of this generation can decode it"


async def test_an_entry_deleted_by_others_leaves_the_pending_list(world):
    """Redis 6.2 replies nil for such an entry; Redis 7 removes it by itself."""
    gateway = world.connector()
    _, claim = await world.submit_claimed(gateway, gateway.consumer(Stage.TALKER, "a"))
    await world.age(Stage.TALKER, "a", 61)
    await world.raw.xdel(world.keys.requests, claim.entry_id)
    assert list(await world.connector().consumer(Stage.TALKER, "b").take_over(9)) == []
    assert (await world.raw.xpending(world.keys.requests, Stage.TALKER))["pending"] == 0


async def test_leaving_deletes_the_consumer_unless_it_has_claims(world, until):
    gateway = world.connector()
    owner, idle = gateway.consumer(Stage.TALKER, "owner"), gateway.consumer(Stage.TALKER, "idle")
    await world.submit_claimed(gateway, owner)
    claiming = asyncio.create_task(idle.claim(1))
    await until(lambda: waits(idle))
    await idle.close()
    await owner.close()
    assert list(await claiming) == []
    consumers = await world.raw.xinfo_consumers(world.keys.requests, Stage.TALKER)
    assert [consumer["name"] for consumer in consumers] == [b"owner"]


async def test_a_write_whose_reply_was_lost_counts_as_written(private_world):
    """Every connection is killed repeatedly; still, each entry is written once and reported as written."""
    client = private_world.raw
    writer, reader = private_world.writer(), private_world.connector().reader()
    await private_world.submit(writer)
    reader.subscribe("one", CODES, STREAM_CREATED)

    reading = asyncio.create_task(read(reader, 100))
    for frames in range(1, 101):
        writing = asyncio.ensure_future(writer.append([codes(frames)]))
        await kill_connections(client, frames % 8)
        assert await writing == [None]
    assert [event.position.frames for event in await reading] == list(range(1, 101))
    assert private_world.errors > 0


@pytest.mark.parametrize("use", ["submit", "claim", "take over", "refresh"])
async def test_the_queue_of_a_pipeline_in_use_does_not_expire(world, use):
    gateway = world.connector()
    consumer = world.replica(Stage.TALKER, "a")
    ticket = await world.submit(gateway)
    await consumer.claim(1)
    newcomer = world.replica(Stage.TALKER, "b")
    await world.raw.expire(world.keys.requests, 5)
    if use == "submit":
        await world.submit(gateway, "two")
    elif use == "claim":
        await world.submit(gateway, "two")
        await world.raw.expire(world.keys.requests, 5)
        await newcomer.claim(1)
    elif use == "take over":
        await consumer.take_over(1)
    else:
        assert await consumer.refresh([ticket.entry_id]) == []
    assert await world.raw.ttl(world.keys.requests) > QUEUE_TTL_SECONDS - 60


async def test_continues_with_a_restarted_empty_redis(private_world):
    """Requests in flight are lost; the same objects serve new ones."""
    world, first = private_world, private_world.server
    gateway, stages = world.connector(), world.writer()
    reader, consumer = stages.reader(), stages.consumer(Stage.TALKER, "t")
    await world.submit_claimed(gateway, consumer)
    reader.subscribe("one", CODES, STREAM_CREATED)
    reading, claiming = asyncio.create_task(read(reader, 1)), asyncio.create_task(claim_one(consumer))
    await stages.append([codes(1)])
    assert [event.position.frames for event in await reading] == [1]
    reading = asyncio.create_task(read(reader, 1))
    first.stop()
    gateway._pool.retry_seconds = 0.0
    with pytest.raises(ConnectorError, match=r"127.0.0.1:\d+ cannot be reached"):
        await gateway.queue()
    gateway._pool.retry_seconds = RETRY_SECONDS
    with RedisServer(port=first.port, password=first.password):
        assert isinstance((await stages.append([codes(2)]))[0], Gone)
        await world.submit(gateway, "two")
        reader.subscribe("two", CODES, STREAM_START)
        assert (await claiming).request.id == "two"
        assert [event.request_id for event in await reading] == ["two"]
        assert world.errors >= 2
        await world.raw.connection_pool.disconnect()
        await world.close()
        world.connectors.clear()


async def turns(count):
    """Lets other tasks run for some turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def waits(consumer):
    """Returns whether a consumer has sent its blocking read."""
    return consumer._blocking._sent


async def claim_one(consumer):
    while True:
        if claims := await consumer.claim(1):
            return claims[0]


async def test_a_deleted_queue_is_created_again(private_world, until):
    client = private_world.raw
    gateway, consumer = private_world.connector(), private_world.connector().consumer(Stage.CODEC, "c")
    _, claim = await private_world.submit_claimed(gateway, consumer)
    claiming = asyncio.create_task(claim_one(consumer))
    await until(lambda: waits(consumer))
    await client.flushall()
    assert list(await consumer.refresh([claim.entry_id])) == [claim.entry_id]
    assert list(await consumer.take_over(9)) == []
    await private_world.submit(gateway, "new")
    assert (await claiming).request.id == "new"


async def test_an_unreachable_redis_is_an_error_not_a_hang(world_of, until):
    with RedisServer() as server:
        world = world_of(server.url_with_password)
    connector = world.connector()
    connector._pool.retry_seconds = 0.0
    with pytest.raises(ConnectorError, match="cannot be reached"):
        await Owner(connector).append([codes(1)])
    reading = asyncio.create_task(connector.reader().read())
    errors = world.errors

    async def has_failed():
        return world.errors > errors

    await until(has_failed)
    await connector.close()
    assert list(await reading) == []
    await world.raw.aclose()


async def test_a_redis_that_refuses_writes_says_so_once(world_of, until, caplog):
    """As after a fail-over until a replica follows the new primary: seconds with four attempts each."""
    with RedisServer() as server:
        world = world_of(server.url_with_password)
        await world.raw.config_set("min-replicas-to-write", 1)
        connector = world.connector()
        reading = asyncio.create_task(connector.reader().read())

        async def was_refused_often():
            return world.errors > 5

        await until(was_refused_often)
        (warning,) = [record.message for record in caplog.records if "inbox" in record.name]
        assert "does not serve now" in warning and "NOREPLICAS" in warning
        await connector.close()
        assert list(await reading) == []
        await world.raw.aclose()


async def test_messages_show_no_secrets(private_world):
    server = private_world.server
    wrong = RedisConnector(f"redis://:not-the-secret@127.0.0.1:{server.port}/0", Keys("p", "g"))
    with pytest.raises(ConnectorError, match="REDIS_PASSWORD") as refused:
        await wrong.queue()
    assert "not-the-secret" not in "".join(traceback.format_exception(refused.value))
    await wrong.close()
    for url in ("http://:not-the-secret@host", "redis://:not-the-secret/x@host", "redis://host?db=not-the-secret"):
        with pytest.raises(ValueError, match="redis://HOST:PORT/DB") as invalid:
            RedisConnector(url, Keys("p", "g"))
        assert "not-the-secret" not in "".join(traceback.format_exception(invalid.value))


async def test_close_leaves_no_connection_task_thread_or_descriptor(private_world, until):
    world, server, client = private_world, private_world.server, private_world.raw
    await client.ping()

    async def connections():
        return len(await client.client_list())

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    # What former tests have left open is not closed in between.
    gc.collect()
    before = await connections(), len(asyncio.all_tasks()), threading.active_count(), descriptors()
    connector = RedisConnector(server.url_with_password, Keys("p", "g"))
    readers = [connector.reader() for _ in range(3)]
    consumers = [connector.consumer(group, "x") for group in WORKERS]
    waiting = [asyncio.create_task(reader.read()) for reader in readers]
    waiting += [asyncio.create_task(consumer.claim(1)) for consumer in consumers]
    await asyncio.gather(*(connector.submit(world.request(f"r{i}"), world.admission) for i in range(20)))
    readers[0].subscribe("r1", CODES, STREAM_START)
    waiting[1].cancel()

    async def all_open():
        return await connections() == before[0] + 2 + len(readers) + len(consumers)

    await until(all_open)
    await connector.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    del waiting

    async def nothing_left():
        return (await connections(), len(asyncio.all_tasks())) == before[:2] and descriptors() <= before[3]

    await until(nothing_left)
    assert threading.active_count() == before[2]


def lose_the_first_reply(connector):
    """The connector's next command is carried out, but its connection breaks before the reply. Returns all replies."""
    pool, replies = connector._pool, []
    send = pool._send

    async def lose(sent):
        if isinstance(reply := await sent, Exception):
            return reply
        replies.append(reply)
        return reply if len(replies) > 1 else ConnectionResetError("the reply was lost")

    pool._send = lambda *sending: asyncio.ensure_future(lose(send(*sending)))
    return replies


async def test_a_request_whose_reply_was_lost_is_queued_once(world):
    gateway, talker = world.connector(), world.connector().consumer(Stage.TALKER, "t")
    await world.submit_claimed(gateway, talker, "before")
    replies = lose_the_first_reply(gateway)
    ticket = await world.submit(gateway, "one")
    assert replies == [[b"queued", ticket.entry_id.encode()]] * 2
    assert [claim.entry_id for claim in await talker.claim(9)] == [ticket.entry_id]


async def test_a_cancellation_while_the_reader_was_cut_off_is_not_missed(private_world):
    client = private_world.raw
    gateway, reader = private_world.connector(), private_world.connector().reader()
    early, ticket = await private_world.submit(gateway, "early"), await private_world.submit(gateway, "one")
    await gateway.release(early)
    reader.subscribe("one", CODES, STREAM_START)
    assert [event.entry for event in await read(reader, 1)] == [StreamCreated()], "nothing from before its time"
    await client.client_kill_filter(_type="normal", skipme=True)
    await gateway.release(ticket)
    assert await read(reader, 1) == [Cancelled("one")]


async def test_a_last_entry_that_arrived_twice_still_finishes(private_world):
    """The reply to the first attempt is lost: the second one finds its own entry and gives up the claim."""
    client = private_world.raw
    process = private_world.connector()
    consumer = process.consumer(Stage.CODEC, "c")
    _, claim = await private_world.submit_claimed(private_world.connector(), consumer)
    last = chained(claim, AUDIO, (Position(3, END_SEQUENCE), End(EndReason.STOP)), finish=True)
    replies = lose_the_first_reply(process)
    assert await process.append(last) == [None]
    written = [(recorded, outcome) for recorded, _, outcome in replies]
    assert written == [(1, 0), (0, 0)], "written and recorded; written before, and not recorded"
    assert list(await consumer.refresh([claim.entry_id])) == [claim.entry_id]
    assert await client.xlen(private_world.keys.stream("one", AUDIO)) == 2
