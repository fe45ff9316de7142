"""Tests of readers whose commands Redis refuses: one stream's error is its own, and no reader spins."""

import asyncio
import logging

import pytest

from syrinx_stages.contract.keys import STREAM_CREATED, STREAM_START, StreamKind
from syrinx_stages.contract.messages import End, EndReason, StreamCreated

CODES = StreamKind.CODES


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


async def test_a_reader_that_is_refused_recovers(private_world, until):
    gateway, connector = private_world.connector(), private_world.connector()
    await private_world.submit(gateway)
    reader = connector.reader()
    reader.subscribe("one", CODES, STREAM_START)
    assert [event.entry for event in await reader.read()] == [StreamCreated()]
    password = private_world.server.password
    await private_world.raw.config_set("requirepass", "another")
    await private_world.raw.client_kill_filter(_type="normal", skipme=True)
    reader.subscribe("one", CODES, STREAM_START)
    reading, errors = asyncio.create_task(reader.read()), private_world.errors

    async def is_refused():
        return private_world.errors > errors + 3

    await until(is_refused)
    await private_world.raw.config_set("requirepass", password)
    assert [event.entry for event in await reading] == [StreamCreated()]


@pytest.mark.virtual
async def test_a_reader_that_is_refused_waits_longer_each_time(world):
    """Its server refuses to read the feed, as for a user without the right to do so."""
    reader = world.connector().reader()
    await world.raw.set(reader._inbox, "no stream", ex=600)
    reader.subscribe("one", CODES, STREAM_CREATED)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(10)
    assert 10 <= world.errors < 100
    reading.cancel()
