"""Readers follow the news: what they must not miss where the news alone would not do."""

import asyncio
import time

import pytest
from redis import Redis as Client

from syrinx_stages.connector import redis_change_feed, redis_reader
from syrinx_stages.connector.base import Append, ConnectorError, StreamEntry, Superseded
from syrinx_stages.contract.keys import STREAM_CREATED, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, PlaybackProgress, encode

CODES, AUDIO = StreamKind.CODES, StreamKind.AUDIO
LARGE = bytes(redis_change_feed.MAX_INLINE_BYTES)


def codes(frames, request_id="one"):
    return Append(request_id, CODES, Position(frames), Codes(b"x%d" % frames))


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
async def followed(redis_world):
    """A writer and a reader of `one` and `two` that has begun to follow the news."""
    writer, reader = redis_world.connector(), redis_world.connector().reader()
    for request_id in ("one", "two"):
        await redis_world.submit(writer, request_id)
        reader.subscribe(request_id, CODES, STREAM_CREATED)
    await writer.append([codes(1, "one"), codes(1, "two")])
    assert sorted(await frames_of(reader, 2)) == [("one", 1), ("two", 1)]
    return writer, reader


async def test_what_is_too_large_for_the_news_arrives_all_the_same(redis_world, followed):
    writer, reader = followed
    reader.subscribe("one", AUDIO, STREAM_CREATED)
    pcm = [bytes([part]) * (redis_change_feed.MAX_INLINE_BYTES // 2) for part in range(4)]
    await writer.append([Append("one", AUDIO, Position(frames + 1), Audio(pcm[frames])) for frames in range(4)])
    assert [event.entry for event in await read(reader, 4)] == [Audio(part) for part in pcm]
    (_, fields), *_ = await redis_world.raw.xrevrange(redis_world.keys.change_feed(AUDIO), count=1)
    assert len(fields[b"l"]) < 100, "large entries lie in Redis once"


async def test_small_and_large_entries_keep_their_order(followed):
    writer, reader = followed
    for frames in range(2, 40):
        entry = Codes(LARGE if frames % 3 else b"small")
        await writer.append([Append("one", CODES, Position(frames), entry)])
    assert await frames_of(reader, 38) == [("one", frames) for frames in range(2, 40)]


async def test_what_was_refused_is_not_in_the_news(followed):
    writer, reader = followed
    outcomes = await writer.append([codes(2), codes(1, "two"), codes(3)])
    assert [type(outcome) for outcome in outcomes] == [type(None), Superseded, type(None)]
    assert await frames_of(reader, 2) == [("one", 2), ("one", 3)]
    await writer.append([codes(1, "two")])
    await writer.append([codes(2, "two")])
    assert await frames_of(reader, 1) == [("two", 2)]


async def test_what_was_written_before_an_error_is_in_the_news(redis_world, followed):
    writer, reader = followed
    await redis_world.raw.set(redis_world.keys.stream("odd", CODES), "no stream", ex=60)
    with pytest.raises(ConnectorError, match="WRONGTYPE"):
        await writer.append([codes(2), codes(1, "odd"), codes(2, "two")])
    assert await frames_of(reader, 1) == [("one", 2)]


async def test_a_reader_that_was_cut_off_while_news_were_let_go_misses_nothing(redis_world, followed):
    writer, reader = followed
    reading = asyncio.create_task(frames_of(reader, 4))
    await redis_world.raw.client_kill_filter(_type="normal", skipme=True)
    await writer.append([codes(2), codes(2, "two")])
    await redis_world.raw.xtrim(redis_world.keys.change_feed(CODES), maxlen=0, approximate=False)
    await writer.append([codes(3), codes(3, "two")])
    assert sorted(await reading) == [("one", 2), ("one", 3), ("two", 2), ("two", 3)]


async def test_a_redis_that_comes_back_with_a_clock_that_is_behind_is_heard(redis_world, followed):
    writer, reader = followed
    news = redis_world.keys.change_feed(CODES)
    await redis_world.raw.xadd(
        news, {"d": redis_change_feed.pack([], 0)[0]}, id=f"{(int(time.time()) + 3600) * 1000}-0"
    )
    await writer.append([codes(2)])
    assert await frames_of(reader, 1) == [("one", 2)]
    await redis_world.raw.delete(news)
    await redis_world.raw.client_kill_filter(_type="normal", skipme=True)
    await writer.append([codes(3)])
    assert await frames_of(reader, 1) == [("one", 3)]
    # Seen by a look or by the news; the next ones are for the news alone.
    await writer.append([codes(4)])
    assert await frames_of(reader, 1) == [("one", 4)]


async def test_a_process_that_stood_still_misses_nothing(redis_world, redis_url, followed, monkeypatch):
    writer, reader = followed
    await writer.append([codes(2)])
    assert await frames_of(reader, 1) == [("one", 2)]
    monkeypatch.setattr(redis_change_feed, "FEED_RETENTION_SECONDS", 1.1)
    # Nothing of this process runs, and what another one wrote meanwhile is no longer in the news.
    with Client.from_url(redis_url) as client:
        time.sleep(0.2)  # noqa: ASYNC251
        client.xadd(redis_world.keys.stream("one", CODES), {"d": encode(Codes(b"x3"))}, id="3-0")
    await writer.append([codes(4)])
    assert await frames_of(reader, 2) == [("one", 3), ("one", 4)]


async def test_news_that_cannot_be_read_are_a_reason_to_look(redis_world, followed):
    writer, reader = followed
    await redis_world.raw.xadd(redis_world.keys.change_feed(CODES), {"d": b"\xc1"})
    await redis_world.raw.xadd(redis_world.keys.stream("one", CODES), {"d": b"\x81"}, id="2-0")
    await redis_world.raw.xadd(redis_world.keys.change_feed(CODES), {"d": b"\xc1"})
    (event,) = await read(reader, 1)
    assert isinstance(event, StreamEntry) and event.entry.message.endswith("must be alike")
    await writer.append([codes(3)])
    assert await frames_of(reader, 1) == [("one", 3)]


async def test_a_reader_that_fails_says_so(followed, monkeypatch):
    writer, reader = followed
    monkeypatch.setattr(redis_reader, "unpack", lambda fields: 1 / 0)
    await writer.append([codes(2)])
    with pytest.raises(ZeroDivisionError):
        await reader.read()


async def test_news_are_let_go_after_seconds(redis_world):
    writer, key = redis_world.connector(), redis_world.keys.change_feed(CODES)
    await redis_world.submit(writer)
    old = (int(time.time()) - 60) * 1000
    for index in range(500):
        await redis_world.raw.xadd(key, {"d": b"x" * 100}, id=f"{old}-{index}")
    await writer.append([codes(1)])
    assert await redis_world.raw.xlen(key) < 150, "whole blocks are let go"
    assert 0 < await redis_world.raw.ttl(key) <= 120


async def test_what_clients_have_been_handed_is_told_for_all_of_them_at_once(redis_world):
    gateway, reader = redis_world.connector(), redis_world.connector().reader()
    for request_id in ("one", "two", "gone"):
        ticket = await redis_world.submit(gateway, request_id)
        reader.subscribe(request_id, StreamKind.PLAYBACK, STREAM_START)
    assert sorted(await frames_of(reader, 3)) == [("gone", 0), ("one", 0), ("two", 0)]
    await gateway.report_playback({"one": 4, "two": 8})
    assert await frames_of(reader, 2) == [("one", 4), ("two", 8)]
    await gateway.release(ticket)
    await gateway.report_playback({"one": 4, "two": 12, "gone": 4, "never": 1})
    assert [event for event in await read(reader, 2) if isinstance(event, StreamEntry)] == [
        StreamEntry("two", StreamKind.PLAYBACK, Position(12), PlaybackProgress())
    ]
