"""Tests of the reader: it returns every entry once, in order, and loses no wake-up."""

import asyncio

import pytest

from support.streams import read
from support.writing import chained
from syrinx_stages.connector.base import Cancelled, StreamEntry
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason, StreamCreated
from syrinx_stages.contract.stages import WORKERS, Stage

CODES = StreamKind.CODES


def codes(frames, request_id="one", text=b""):
    return StreamEntry(request_id, CODES, Position(frames), Codes(text))


async def test_reads_entries_after_a_position(world):
    writer, reader = world.writer(), world.connector().reader()
    await world.submit(writer)
    await writer.append([codes(1), codes(2), codes(3)])
    reader.subscribe("one", CODES, Position(1))
    assert [event.position for event in await read(reader, 2)] == [Position(2), Position(3)]
    reader.unsubscribe("one", CODES)
    reader.subscribe("one", CODES, STREAM_START)
    assert [event.position for event in await read(reader, 4)] == [
        STREAM_CREATED,
        Position(1),
        Position(2),
        Position(3),
    ]


async def test_a_waiting_read_returns_new_entries(world):
    writer, reader = world.writer(), world.connector().reader()
    await world.submit(writer)
    reader.subscribe("one", CODES, STREAM_CREATED)
    for frames in range(1, 50):
        reading = asyncio.create_task(read(reader, 1))
        await writer.append([codes(frames, text=b"x%d" % frames)])
        (event,) = await reading
        assert event == StreamEntry("one", CODES, Position(frames), Codes(b"x%d" % frames))


async def test_subscribing_always_wakes_a_waiting_read(world):
    """Without the wake-up a read would block for a second, and 200 reads would miss the deadline."""
    gateway, reader = world.connector(), world.connector().reader()
    for index in range(200):
        request_id = f"r{index}"
        await world.submit(gateway, request_id)
        reading = asyncio.create_task(read(reader, 1))
        for _ in range(5 * (index % 7)):
            await asyncio.sleep(0)
        reader.subscribe(request_id, CODES, STREAM_START)
        (event,) = await reading
        assert (event.request_id, event.entry) == (request_id, StreamCreated())
        reader.unsubscribe(request_id, CODES)


async def test_one_reader_reads_hundreds_of_streams(world):
    gateway, writer, reader = world.connector(), world.writer(), world.connector().reader()
    names = [f"r{index}" for index in range(300)]
    for start in range(0, 300, 100):
        await asyncio.gather(*(world.submit(gateway, name) for name in names[start : start + 100]))
    for name in names:
        reader.subscribe(name, CODES, STREAM_CREATED)
    reading = asyncio.create_task(read(reader, 900))
    for frames in (1, 2, 3):
        assert await writer.append([codes(frames, name) for name in names]) == [None] * 300
    seen = {name: [] for name in names}
    for event in await reading:
        seen[event.request_id].append(event.position.frames)
    assert all(frames == [1, 2, 3] for frames in seen.values())


async def test_only_subscribed_streams_are_read(world):
    writer, reader = world.writer(), world.connector().reader()
    for request_id in ("one", "two", "three"):
        await world.submit(writer, request_id)
    reader.subscribe("one", CODES, STREAM_CREATED)
    reader.subscribe("two", CODES, STREAM_CREATED)
    reader.subscribe("three", CODES, STREAM_CREATED)
    reader.unsubscribe("three", CODES)
    reader.unsubscribe("never", CODES)
    reading = asyncio.create_task(read(reader, 2))
    await asyncio.sleep(0)
    reader.unsubscribe("two", CODES)
    await writer.append([codes(1, "two"), codes(1, "three"), codes(1, "one")])
    await writer.append([codes(2, "one")])
    assert [(event.request_id, event.position.frames) for event in await reading] == [("one", 1), ("one", 2)]


async def test_subscribing_again_from_an_earlier_position_discards_pending_entries(world, until):
    writer, reader = world.writer(), world.connector().reader()
    await world.submit(writer)
    await writer.append([codes(1), codes(2)])
    reader.subscribe("one", CODES, Position(2))
    await writer.append([codes(3)])

    async def is_pending():
        return reader._events

    await until(is_pending)
    reader.subscribe("one", CODES, STREAM_START)
    assert [event.position.frames for event in await read(reader, 4)] == [0, 1, 2, 3]


async def test_a_cancellation_reaches_every_reader(world):
    gateway = world.connector()
    readers = [world.connector().reader() for _ in range(3)]
    ticket, other = await world.submit(gateway, "one"), await world.submit(gateway, "two")
    for reader in readers:
        reader.subscribe("one", CODES, STREAM_START)
        await read(reader, 1)
    reading = [asyncio.create_task(read(reader, 2)) for reader in readers]
    await gateway.release(ticket)
    await gateway.release(other)
    for task in reading:
        assert await task == [Cancelled("one"), Cancelled("two")]


async def test_release_after_the_end_cancels_nothing(world):
    gateway, process, reader = world.connector(), world.connector(), world.connector().reader()
    done, dropped = await world.submit(gateway, "one"), await world.submit(gateway, "two")
    reader.subscribe("two", CODES, STREAM_START)
    await read(reader, 1)
    codec = process.consumer(Stage.CODEC, "c")
    claim = next(claim for claim in await codec.claim(2) if claim.request.id == "one")
    last = (Position(1, END_SEQUENCE), End(EndReason.STOP))
    assert await process.append(chained(claim, StreamKind.AUDIO, last, finish=True)) == [None]
    reading = asyncio.create_task(read(reader, 1))
    await gateway.release(done)
    await gateway.release(dropped)
    assert await reading == [Cancelled("two")]


async def test_a_cancelled_read_neither_loses_nor_repeats_entries(world):
    writer, reader = world.writer(), world.connector().reader()
    await world.submit(writer)
    reader.subscribe("one", CODES, STREAM_CREATED)
    got = []
    for frames in range(1, 60):
        reading = asyncio.create_task(reader.read())
        writing = asyncio.ensure_future(writer.append([codes(frames)]))
        for _ in range(10 * (frames % 8)):
            await asyncio.sleep(0)
        reading.cancel()
        (events,) = await asyncio.gather(reading, return_exceptions=True)
        got += [] if isinstance(events, asyncio.CancelledError) else events
        await writing
    while len(got) < 59:
        got += await reader.read()
    assert [event.position.frames for event in got] == list(range(1, 60))


@pytest.mark.virtual
@pytest.mark.parametrize("pause", [0, 0.001, 0.5])
async def test_close_ends_a_waiting_read_at_once(world, pause):
    loop, reader = asyncio.get_running_loop(), world.connector().reader()
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(pause)
    started = loop.time()
    await reader.close()
    assert list(await reading) == []
    assert loop.time() == started
    assert list(await reader.read()) == []


@pytest.mark.virtual
async def test_closing_a_connector_closes_its_readers_and_consumers(world):
    connector = world.connector()
    waiting = [asyncio.create_task(connector.reader().read()) for _ in range(2)]
    waiting += [asyncio.create_task(connector.consumer(group, "x").claim(1)) for group in WORKERS]
    await asyncio.sleep(0.02)
    await connector.close()
    assert [list(result) for result in await asyncio.gather(*waiting)] == [[], [], [], []]
