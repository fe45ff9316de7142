"""Tests of readers whose commands Redis refuses: one stream's error is its own, and no reader spins."""

import asyncio
import logging

import pytest

from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import STREAM_CREATED, STREAM_START, StreamKind
from syrinx_stages.contract.messages import End, EndReason, StreamCreated

CODES = StreamKind.CODES


@pytest.fixture
async def own(world_of):
    """A world with a Redis of its own."""
    with RedisServer() as server:
        world = world_of(server.url_with_password)
        yield world
        await world.close()


async def read(reader, count):
    events = []
    while len(events) < count:
        events += await reader.read()
    return {event.request_id: event for event in events}


def logged(caplog, level=logging.WARNING):
    return [record for record in caplog.records if record.levelno >= level and "connector" in record.name]


@pytest.mark.parametrize("others", [1, 40])
async def test_an_unreadable_stream_ends_and_the_others_go_on(world, caplog, others):
    gateway, reader = world.connector(), world.connector().reader()
    names = [f"good-{number}" for number in range(others)]
    for name in ("odd", *names):
        await world.submit(gateway, name)
    odd = world.keys.stream("odd", CODES)
    await world.raw.delete(odd)
    await world.raw.set(odd, "no stream", ex=60)
    for name in ("odd", *names):
        reader.subscribe(name, CODES, STREAM_START)
    events = await read(reader, 1 + others)
    assert {name: events[name].entry for name in names} == dict.fromkeys(names, StreamCreated())
    end = events["odd"].entry
    assert isinstance(end, End) and end.reason is EndReason.ERROR and "cannot be read" in end.message
    assert end.message.count("127.0.0.1") == 0, "the message is for the client"
    assert events["odd"].position > STREAM_START
    # It is not read again, whatever happens to the others.
    await gateway.submit(world.request("late"), world.admission)
    reader.subscribe("late", CODES, STREAM_START)
    assert [*await read(reader, 1)] == ["late"]
    [record] = logged(caplog)
    assert "WRONGTYPE" in record.getMessage() and "odd" in record.getMessage()


async def test_a_reader_that_is_refused_waits_longer_each_time_and_recovers(own, caplog):
    gateway, connector = own.connector(), own.connector()
    await own.submit(gateway)
    reader = connector.reader()
    reader.subscribe("one", CODES, STREAM_START)
    assert [event.entry for event in await reader.read()] == [StreamCreated()]
    password = own.raw.connection_pool.connection_kwargs["password"]
    await own.raw.config_set("requirepass", "another")
    await own.raw.client_kill_filter(_type="normal", skipme=True)
    reader.subscribe("one", CODES, STREAM_START)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0.7)
    assert [record.name for record in logged(caplog)].count("syrinx_stages.connector.redis_reader") <= 1
    assert len(logged(caplog)) < 20
    await own.raw.config_set("requirepass", password)
    assert [event.entry for event in await reading] == [StreamCreated()]


async def test_a_feed_that_may_not_be_read_does_not_make_its_reader_spin(own, caplog):
    await own.raw.execute_command("ACL", "SETUSER", "blind", "on", ">secret", "~*", "+@all", "-xread")
    port = own.raw.connection_pool.connection_kwargs["port"]
    blind = type(own)(f"redis://blind:secret@127.0.0.1:{port}")
    reader = blind.connector().reader()
    reader.subscribe("one", CODES, STREAM_CREATED)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0.7)
    assert 1 <= blind.errors < 20
    reading.cancel()
    await blind.close()
