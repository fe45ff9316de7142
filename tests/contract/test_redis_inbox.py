"""Tests of the inboxes: readers miss nothing, also when the inbox alone does not have the entries."""

import asyncio
import time

import pytest

from support.streams import read
from syrinx_stages.connector.base import ConnectorError, StreamEntry, Superseded
from syrinx_stages.connector.redis import inbox as redis_inbox
from syrinx_stages.connector.redis.scripts import INBOX_RETENTION_SECONDS, INBOX_TTL_SECONDS, MAX_INLINE_BYTES
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, EndReason, PlaybackProgress, encode

CODES, AUDIO = StreamKind.CODES, StreamKind.AUDIO
LARGE = bytes(MAX_INLINE_BYTES)


def codes(frames, request_id="one"):
    return StreamEntry(request_id, CODES, Position(frames), Codes(b"x%d" % frames))


async def frames_of(reader, count):
    return [(event.request_id, event.position.frames) for event in await read(reader, count)]


@pytest.fixture
async def tailing(world):
    """A writer, and a reader of `one` and `two` that has its inbox."""
    writer, reader = world.writer(), world.connector().reader()
    for request_id in ("one", "two"):
        await world.submit(writer, request_id)
        reader.subscribe(request_id, CODES, STREAM_CREATED)
    await writer.append([codes(1, "one"), codes(1, "two")])
    assert sorted(await frames_of(reader, 2)) == [("one", 1), ("two", 1)]
    return writer, reader


async def contents(world, reader):
    """The streams, the positions and the messages of the entries in an inbox."""
    return [entry for _, fields in await world.raw.xrange(reader._inbox) for entry in redis_inbox.unpack(fields[b"d"])]


async def test_an_inbox_gets_only_what_its_reader_reads(world, tailing):
    writer, reader = tailing
    other = world.connector().reader()
    other.subscribe("two", CODES, Position(1))
    other.subscribe("two", AUDIO, STREAM_CREATED)
    await writer.append([StreamEntry("two", AUDIO, Position(1), Audio(b"pcm"))])
    await frames_of(other, 1)
    await writer.append([codes(2), codes(3), codes(2, "two")])
    assert sorted(await frames_of(reader, 3)) == [("one", 2), ("one", 3), ("two", 2)]
    assert await frames_of(other, 1) == [("two", 2)]
    assert (await contents(world, other))[-1] == (b"two:codes", b"2-0", encode(codes(2).entry))
    assert {name for name, *_ in await contents(world, other)} <= {b"two:codes", b"two:audio"}
    assert b"two:audio" not in {name for name, *_ in await contents(world, reader)}


async def test_entries_too_large_for_the_inbox_are_read_from_their_stream(world, tailing):
    writer, reader = tailing
    reader.subscribe("one", AUDIO, STREAM_CREATED)
    pcm = [bytes([part]) * MAX_INLINE_BYTES for part in range(4)]
    await writer.append([StreamEntry("one", AUDIO, Position(frames + 1), Audio(pcm[frames])) for frames in range(4)])
    assert [event.entry for event in await read(reader, 4)] == [Audio(part) for part in pcm]
    await writer.append([StreamEntry("one", AUDIO, Position(5), Audio(pcm[0]))])
    assert [event.entry for event in await read(reader, 1)] == [Audio(pcm[0])]
    assert (await contents(world, reader))[-1] == (b"one:audio", b"5-0", b""), "large entries are stored in Redis once"


@pytest.mark.parametrize("former_lives", [True, False])
async def test_a_reader_that_follows_another_misses_nothing(world, tailing, former_lives):
    """It subscribes while a writer writes; the former one may still read."""
    writer, former = tailing
    following = world.connector().reader()
    if not former_lives:
        await former.close()
    for frames in range(2, 40):
        appending = asyncio.create_task(writer.append([codes(frames)]))
        if frames == 20:
            following.subscribe("one", CODES, Position(5))
        await appending
    assert await frames_of(following, 34) == [("one", frames) for frames in range(6, 40)]
    readers = (await world.raw.hget(world.keys.owners("one"), "codes:readers")).decode().split()
    assert readers == [following._inbox, former._inbox][: 1 + former_lives]
    if former_lives:
        assert await frames_of(former, 38) == [("one", frames) for frames in range(2, 40)]


async def test_reading_a_request_that_is_gone_leaves_nothing_behind(world, tailing):
    writer, reader = tailing
    await world.submit(writer, "gone")
    await world.expire("gone")
    reader.subscribe("gone", CODES, STREAM_START)
    reader.subscribe("one", CODES, STREAM_CREATED)
    await frames_of(reader, 1)
    assert not any("gone" in name for name in await world.names())


async def test_a_closed_reader_leaves_no_inbox(world, tailing):
    writer, reader = tailing
    assert await world.raw.exists(reader._inbox)
    await reader.close()
    await writer.append([codes(2)])
    assert not await world.raw.exists(reader._inbox)


@pytest.mark.virtual
async def test_an_inbox_lives_while_it_is_read_and_is_created_again(world, tailing):
    writer, reader = tailing
    await asyncio.sleep(1.5 * INBOX_TTL_SECONDS)
    assert 0 < await world.raw.ttl(reader._inbox) <= INBOX_TTL_SECONDS
    await world.raw.delete(reader._inbox)
    await writer.append([codes(2)])
    assert await frames_of(reader, 1) == [("one", 2)]
    await writer.append([codes(3)])
    assert await frames_of(reader, 1) == [("one", 3)]


async def test_small_and_large_entries_keep_their_order(tailing):
    writer, reader = tailing
    for frames in range(2, 40):
        entry = Codes(LARGE if frames % 3 else b"small")
        await writer.append([StreamEntry("one", CODES, Position(frames), entry)])
    assert await frames_of(reader, 38) == [("one", frames) for frames in range(2, 40)]


async def test_refused_entries_are_not_in_the_inbox(world, tailing):
    writer, reader = tailing
    successor = world.writer()
    assert await successor.append([codes(2, "two")]) == [None]
    outcomes = await writer.append([codes(2), codes(3, "two"), codes(3)])
    assert [type(outcome) for outcome in outcomes] == [type(None), Superseded, type(None)]
    assert sorted(await frames_of(reader, 3)) == [("one", 2), ("one", 3), ("two", 2)]
    await writer.append([codes(3, "two")])
    await successor.append([codes(4, "two")])
    assert await frames_of(reader, 1) == [("two", 4)]


async def test_entries_written_before_an_error_are_in_the_inbox(world, tailing):
    writer, reader = tailing
    await world.submit(writer, "odd")
    await writer.append([codes(1, "odd")])
    await world.raw.set(world.keys.stream("odd", CODES), "no stream", ex=60)
    with pytest.raises(ConnectorError, match="WRONGTYPE"):
        await writer.append([codes(2), codes(2, "odd"), codes(2, "two")])
    first, *_ = await reader.read()
    assert (first.request_id, first.position) == ("one", Position(2))


async def test_a_disconnected_reader_misses_no_entry_that_left_the_inbox(world, tailing):
    writer, reader = tailing
    reading = asyncio.create_task(frames_of(reader, 4))
    await world.raw.client_kill_filter(_type="normal", skipme=True)
    await writer.append([codes(2), codes(2, "two")])
    await world.raw.xtrim(reader._inbox, maxlen=0, approximate=False)
    await writer.append([codes(3), codes(3, "two")])
    assert sorted(await reading) == [("one", 2), ("one", 3), ("two", 2), ("two", 3)]


async def test_a_reader_gets_an_end_that_comes_before_entries_that_were_lost(world, tailing):
    """The successor of a talker whose last codes a fail-over has lost may stop earlier."""
    writer, reader = tailing
    await writer.append([codes(2), codes(3)])
    assert await frames_of(reader, 2) == [("one", 2), ("one", 3)]
    key = world.keys.stream("one", CODES)
    kept = await world.raw.xrange(key, max="2-0")
    await world.raw.delete(key, world.keys.writers)
    for entry_id, fields in kept:
        await world.raw.xadd(key, fields, id=entry_id)
    await world.raw.expire(key, 60)
    await world.raw.client_kill_filter(_type="normal", skipme=True)
    last = StreamEntry("one", CODES, Position(2, END_SEQUENCE), End(EndReason.STOP))
    assert await world.writer().append([last]) == [None]
    assert await read(reader, 1) == [last], "once, and no entry again"


async def test_reads_an_inbox_recreated_by_a_server_whose_clock_is_behind(world, tailing):
    writer, reader = tailing
    await world.raw.xadd(reader._inbox, {"d": ""}, id=f"{(int(time.time()) + 3600) * 1000}-0")
    await writer.append([codes(2)])
    assert await frames_of(reader, 1) == [("one", 2)]
    await world.raw.delete(reader._inbox)
    await world.raw.client_kill_filter(_type="normal", skipme=True)
    await writer.append([codes(3)])
    assert await frames_of(reader, 1) == [("one", 3)]
    # The reader may have found that entry by reading the stream; the next one comes through the inbox.
    await writer.append([codes(4)])
    assert await frames_of(reader, 1) == [("one", 4)]


@pytest.mark.virtual
async def test_a_paused_process_misses_no_entry(world, tailing):
    writer, reader = tailing
    await writer.append([codes(2)])
    assert await frames_of(reader, 1) == [("one", 2)]
    # The inbox never had what another process wrote during the pause.
    await world.raw.xadd(world.keys.stream("one", CODES), {"d": encode(Codes(b"x3"))}, id="3-0")
    asyncio.get_running_loop().now += INBOX_RETENTION_SECONDS
    await writer.append([codes(4)])
    assert await frames_of(reader, 2) == [("one", 3), ("one", 4)]


async def test_an_undecodable_entry_ends_its_own_stream_only(world, tailing):
    writer, reader = tailing
    entries = (b"one:codes", b"\x81"), (b"two:codes", encode(Codes(b"x")))
    batch = b"".join(redis_inbox.pack(name, "2-0", message) for name, message in entries)
    await world.raw.xadd(reader._inbox, {"d": batch})
    bad, good = await read(reader, 2)
    assert bad.entry.message.endswith("must be alike") and good.entry == Codes(b"x")
    await writer.append([codes(3)])
    assert await frames_of(reader, 1) == [("one", 3)]


async def test_an_inbox_is_trimmed_after_seconds(world, tailing):
    writer, reader = tailing
    await world.raw.delete(reader._inbox)
    old = (int(time.time()) - 60) * 1000
    for index in range(500):
        await world.raw.xadd(reader._inbox, {"d": b"x" * 100}, id=f"{old}-{index}")
    await world.raw.expire(reader._inbox, 60)
    await writer.append([codes(2)])
    assert await world.raw.xlen(reader._inbox) < 150, "whole blocks are trimmed"


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
