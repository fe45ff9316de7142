"""Tests of the change feeds: readers miss nothing, also when the feed alone does not have the entries."""

import asyncio
import time

import pytest
from redis import Redis as Client

from syrinx_stages.connector import redis_change_feed, redis_reader
from syrinx_stages.connector.base import ConnectorError, StreamEntry, Superseded
from syrinx_stages.contract.keys import STREAM_CREATED, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, PlaybackProgress, encode

CODES, AUDIO = StreamKind.CODES, StreamKind.AUDIO
LARGE = bytes(redis_change_feed.MAX_INLINE_BYTES)


def codes(frames, request_id="one"):
    return StreamEntry(request_id, CODES, Position(frames), Codes(b"x%d" % frames))


async def read(reader, count):
    events = []
    while len(events) < count:
        new = await reader.read()
        assert new, "the reader was closed"
        events += new
    assert len(events) == count
    return events


async def frames_of(reader, count):
    return [(event.request_id, event.position.frames) for event in await read(reader, count)]


@pytest.fixture
async def tailing(world):
    """A writer, and a reader of `one` and `two` that already tails the change feed."""
    writer, reader = world.writer(), world.connector().reader()
    for request_id in ("one", "two"):
        await world.submit(writer, request_id)
        reader.subscribe(request_id, CODES, STREAM_CREATED)
    await writer.append([codes(1, "one"), codes(1, "two")])
    assert sorted(await frames_of(reader, 2)) == [("one", 1), ("two", 1)]
    return writer, reader


async def test_entries_too_large_for_the_feed_are_read_from_their_stream(world, tailing):
    writer, reader = tailing
    reader.subscribe("one", AUDIO, STREAM_CREATED)
    pcm = [bytes([part]) * (redis_change_feed.MAX_INLINE_BYTES // 2) for part in range(4)]
    await writer.append([StreamEntry("one", AUDIO, Position(frames + 1), Audio(pcm[frames])) for frames in range(4)])
    assert [event.entry for event in await read(reader, 4)] == [Audio(part) for part in pcm]
    (_, fields), *_ = await world.raw.xrevrange(world.keys.change_feed(AUDIO), count=1)
    assert len(fields[b"l"]) < 100, "large entries are stored in Redis once"


async def test_small_and_large_entries_keep_their_order(tailing):
    writer, reader = tailing
    for frames in range(2, 40):
        entry = Codes(LARGE if frames % 3 else b"small")
        await writer.append([StreamEntry("one", CODES, Position(frames), entry)])
    assert await frames_of(reader, 38) == [("one", frames) for frames in range(2, 40)]


async def test_refused_entries_are_not_in_the_feed(world, tailing):
    writer, reader = tailing
    successor = world.writer()
    assert await successor.append([codes(2, "two")]) == [None]
    outcomes = await writer.append([codes(2), codes(3, "two"), codes(3)])
    assert [type(outcome) for outcome in outcomes] == [type(None), Superseded, type(None)]
    assert sorted(await frames_of(reader, 3)) == [("one", 2), ("one", 3), ("two", 2)]
    await writer.append([codes(3, "two")])
    await successor.append([codes(4, "two")])
    assert await frames_of(reader, 1) == [("two", 4)]


async def test_entries_written_before_an_error_are_in_the_feed(world, tailing):
    writer, reader = tailing
    await world.submit(writer, "odd")
    await writer.append([codes(1, "odd")])
    await world.raw.set(world.keys.stream("odd", CODES), "no stream", ex=60)
    with pytest.raises(ConnectorError, match="WRONGTYPE"):
        await writer.append([codes(2), codes(2, "odd"), codes(2, "two")])
    assert await frames_of(reader, 1) == [("one", 2)]


async def test_a_disconnected_reader_misses_no_entry_that_left_the_feed(world, tailing):
    writer, reader = tailing
    reading = asyncio.create_task(frames_of(reader, 4))
    await world.raw.client_kill_filter(_type="normal", skipme=True)
    await writer.append([codes(2), codes(2, "two")])
    await world.raw.xtrim(world.keys.change_feed(CODES), maxlen=0, approximate=False)
    await writer.append([codes(3), codes(3, "two")])
    assert sorted(await reading) == [("one", 2), ("one", 3), ("two", 2), ("two", 3)]


async def test_reads_a_feed_recreated_by_a_server_whose_clock_is_behind(world, tailing):
    writer, reader = tailing
    feed = world.keys.change_feed(CODES)
    await world.raw.xadd(feed, {"d": redis_change_feed.pack([], 0)[0]}, id=f"{(int(time.time()) + 3600) * 1000}-0")
    await writer.append([codes(2)])
    assert await frames_of(reader, 1) == [("one", 2)]
    await world.raw.delete(feed)
    await world.raw.client_kill_filter(_type="normal", skipme=True)
    await writer.append([codes(3)])
    assert await frames_of(reader, 1) == [("one", 3)]
    # The reader may have found that entry by reading the stream; the next one comes through the feed.
    await writer.append([codes(4)])
    assert await frames_of(reader, 1) == [("one", 4)]


async def test_a_paused_process_misses_no_entry(world, redis_url, tailing, monkeypatch):
    writer, reader = tailing
    await writer.append([codes(2)])
    assert await frames_of(reader, 1) == [("one", 2)]
    monkeypatch.setattr(redis_change_feed, "FEED_RETENTION_SECONDS", 1.1)
    # This process is blocked, and the feed no longer has what another process writes meanwhile.
    with Client.from_url(redis_url, protocol=2) as client:
        time.sleep(0.2)  # noqa: ASYNC251
        client.xadd(world.keys.stream("one", CODES), {"d": encode(Codes(b"x3"))}, id="3-0")
    await writer.append([codes(4)])
    assert await frames_of(reader, 2) == [("one", 3), ("one", 4)]


async def test_an_undecodable_feed_entry_makes_the_reader_read_the_streams(world, tailing):
    writer, reader = tailing
    await world.raw.xadd(world.keys.change_feed(CODES), {"d": b"\xc1"})
    await world.raw.xadd(world.keys.stream("one", CODES), {"d": b"\x81"}, id="2-0")
    await world.raw.xadd(world.keys.change_feed(CODES), {"d": b"\xc1"})
    (event,) = await read(reader, 1)
    assert isinstance(event, StreamEntry) and event.entry.message.endswith("must be alike")
    await writer.append([codes(3)])
    assert await frames_of(reader, 1) == [("one", 3)]


async def test_an_unexpected_error_is_raised_by_read(tailing, monkeypatch):
    writer, reader = tailing
    monkeypatch.setattr(redis_reader, "unpack", lambda fields: 1 / 0)
    await writer.append([codes(2)])
    with pytest.raises(ZeroDivisionError):
        await reader.read()


async def test_the_feed_is_trimmed_after_seconds(world):
    writer, key = world.writer(), world.keys.change_feed(CODES)
    await world.submit(writer)
    old = (int(time.time()) - 60) * 1000
    for index in range(500):
        await world.raw.xadd(key, {"d": b"x" * 100}, id=f"{old}-{index}")
    await writer.append([codes(1)])
    assert await world.raw.xlen(key) < 150, "whole blocks are trimmed"
    assert 0 < await world.raw.ttl(key) <= 120


async def test_playback_of_many_requests_is_reported_in_one_call(world):
    gateway, reader = world.connector(), world.connector().reader()
    for request_id in ("one", "two", "gone"):
        ticket = await world.submit(gateway, request_id)
        reader.subscribe(request_id, StreamKind.PLAYBACK, STREAM_START)
    assert sorted(await frames_of(reader, 3)) == [("gone", 0), ("one", 0), ("two", 0)]
    await gateway.report_playback({"one": 4, "two": 8})
    assert await frames_of(reader, 2) == [("one", 4), ("two", 8)]
    await gateway.release(ticket)
    await gateway.report_playback({"one": 4, "two": 12, "gone": 4, "never": 1})
    assert [event for event in await read(reader, 2) if isinstance(event, StreamEntry)] == [
        StreamEntry("two", StreamKind.PLAYBACK, Position(12), PlaybackProgress())
    ]
