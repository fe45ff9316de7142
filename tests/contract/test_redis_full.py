"""Tests with a Redis whose memory is limited: what is refused, what still works, and how much is kept in reserve."""

import re

import pytest

from syrinx_stages.connector.base import Cancelled, Capacity, Gone, QueueFull, StorageFull, StreamEntry
from syrinx_stages.connector.redis.scripts import STREAM_BYTES
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import STREAM_CREATED, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, PlaybackProgress
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.contract.stages import WORKERS, Stage

CODES, AUDIO, PLAYBACK = StreamKind.CODES, StreamKind.AUDIO, StreamKind.PLAYBACK
REFERENCE = bytes(30 * 48_000)
MIB = 1 << 20


@pytest.fixture
def small(private_world):
    """A world whose Redis has the limit that a test sets."""
    return private_world


async def limit(world, maxmemory):
    await world.raw.config_set("maxmemory", maxmemory)


async def used(world):
    return (await world.raw.info("memory"))["used_memory"]


async def fill(world):
    """Makes the Redis of a world full."""
    await limit(world, 1)


def entry(kind, frames, content, request_id="one"):
    return StreamEntry(request_id, kind, Position(frames), content)


async def running(world):
    """A gateway, and a talker that has claimed `one` and written its first frame."""
    gateway, stage = world.connector(), world.writer()
    consumer = stage.consumer(Stage.TALKER, "t")
    ticket, claim = await world.submit_claimed(gateway, consumer)
    assert await stage.append([entry(CODES, 1, Codes(b"x")), entry(AUDIO, 1, Audio(bytes(9)))]) == [None, None]
    return gateway, stage, consumer, ticket, claim


async def test_an_entry_is_refused_as_a_whole_and_can_be_written_once_there_is_room(small):
    _, stage, *_ = await running(small)
    batch = [entry(CODES, 2, Codes(b"x2")), entry(CODES, 3, Codes(b"x3"))]
    await fill(small)
    with pytest.raises(StorageFull, match=r"127.0.0.1:\d+ has no memory left .*maxmemory"):
        await stage.append(batch)
    assert await stage.last_position("one", CODES) == Position(1)
    await limit(small, 0)
    assert await stage.append(batch) == [None, None]


async def test_the_check_for_room_writes_nothing(small):
    stage = small.connector()
    await stage.check_room()
    await fill(small)
    with pytest.raises(StorageFull, match="no memory left"):
        await stage.check_room()
    await limit(small, 0)
    await stage.check_room()
    assert await small.names() == set()


async def test_a_release_frees_memory_and_cancels(small):
    gateway, stage, _, ticket, _ = await running(small)
    reader = stage.reader()
    reader.subscribe("one", CODES, STREAM_CREATED)
    assert [event.position.frames for event in await reader.read()] == [1]
    await fill(small)
    await gateway.release(ticket)
    assert await reader.read() == [Cancelled("one")]
    assert await small.left() == set()
    await limit(small, 0)
    assert isinstance((await stage.append([entry(CODES, 2, Codes(b"x"))]))[0], Gone)


async def test_a_playback_report_frees_the_audio_and_reaches_the_talker(small):
    gateway, stage, *_ = await running(small)
    await stage.append([entry(AUDIO, frames, Audio(bytes(9))) for frames in range(2, 5)])
    reader = stage.reader()
    reader.subscribe("one", PLAYBACK, STREAM_START)
    assert [event.position for event in await reader.read()] == [STREAM_CREATED]
    await fill(small)
    await gateway.report_playback({"one": 3})
    assert [(event.position.frames, event.entry) for event in await reader.read()] == [(3, PlaybackProgress())]
    assert [event.position.frames for event in await stage.history("one", AUDIO)] == [4]


async def test_queued_requests_are_served_and_finished_while_redis_is_full(small):
    gateway = small.connector()
    for request_id in ("one", "two", "three"):
        await small.submit(gateway, request_id)
    await fill(small)
    for group in WORKERS:
        consumer = small.replica(group, "a")
        claims = [*await consumer.claim(3)]
        assert [claim.request.id for claim in claims] == ["one", "two", "three"]
        assert all(claim.fence.epoch for claim in claims)
        assert list(await consumer.refresh([claim.entry_id for claim in claims])) == []
        await consumer.hand_over([claims[2].entry_id])
        assert [claim.request.id for claim in await small.replica(group, "b").take_over(9)] == ["three"]
        for claim in claims:
            await consumer.finish(claim.entry_id)
    assert await small.raw.xlen(small.keys.requests) == 0


async def test_a_submission_is_refused_with_its_own_code(small):
    gateway = small.connector()
    await small.submit(gateway)
    await fill(small)
    with pytest.raises(QueueFull, match=r"Redis .*memory") as refused:
        await small.submit(gateway, "two")
    assert refused.value.code == "redis_full" and refused.value.retry_after >= 1
    assert await small.raw.xlen(small.keys.requests) == 1


async def test_capacity_is_reported_while_redis_is_full(small):
    gateway = small.connector()
    talker, codec = small.replica(Stage.TALKER, "t"), small.replica(Stage.CODEC, "c")
    for request_id in ("one", "two"):
        await small.submit(gateway, request_id)
    await fill(small)
    for reported_before in (False, True):
        assert await codec.report(Capacity(free=3, requests_per_second=1.0)) is None
        assert await talker.report(Capacity(free=0, requests_per_second=0.5)) == 3, reported_before
    assert (await gateway.queue()).expected_seconds == 6
    assert small.keys.capacity not in await small.without_expiry()


async def submit_until_refused(world, gateway):
    """Submits requests with references until one is refused. Returns the tickets of the others, and the refusal."""
    tickets = []
    for number in range(10_000):
        request = world.request(f"queued-{number}", has_reference=True)
        try:
            tickets.append(await gateway.submit(request, GatewaySettings(max_queue=100_000), REFERENCE))
        except QueueFull as refusal:
            return tickets, refusal
    raise AssertionError("nothing was refused")


async def test_queued_references_leave_room_for_the_streams_of_all_requests(small):
    gateway, stage, *_ = await running(small)
    await limit(small, await used(small) + 16 * MIB)
    tickets, refusal = await submit_until_refused(small, gateway)
    admitted = len(tickets)
    assert refusal.code == "redis_full"
    assert re.search(r"no room for a further request in its 1\d MiB of memory", str(refusal))
    assert (admitted + 1) * (len(REFERENCE) + STREAM_BYTES) < 16 * MIB + len(REFERENCE), (
        "no more than there is room for"
    )
    assert (admitted + 3) * (len(REFERENCE) + STREAM_BYTES) > 16 * MIB, "the room is used"

    # Every admitted request may then grow to its bound: all codes, and the audio of the lead limit.
    ids = ["one", *(f"queued-{number}" for number in range(admitted))]
    for first in range(2, FAMILY.max_frames + 1, 64):
        batch = range(first, min(first + 64, FAMILY.max_frames + 1))
        codes = [entry(CODES, frames, Codes(bytes(32)), request) for request in ids for frames in batch]
        assert set(await stage.append(codes)) == {None}
    for frames in range(4, 113, 4):
        audio = [entry(AUDIO, frames, Audio(bytes(4 * FAMILY.frame_bytes)), request) for request in ids]
        assert set(await stage.append(audio)) == {None}


async def test_room_is_free_again_when_requests_are_released(small):
    gateway, *_ = await running(small)
    await limit(small, await used(small) + 16 * MIB)
    tickets, _ = await submit_until_refused(small, gateway)
    await gateway.release(tickets[0])
    request = small.request("next", has_reference=True)
    await gateway.submit(request, GatewaySettings(max_queue=100_000), REFERENCE)


async def test_without_the_right_to_run_info_only_the_memory_limit_itself_refuses(small):
    await small.raw.execute_command("ACL", "SETUSER", "data", "on", ">secret", "~*", "+@all", "-info")
    restricted = type(small)(f"redis://data:secret@127.0.0.1:{small.server.port}")
    gateway = restricted.connector()
    await limit(small, await used(small) + 16 * MIB)
    tickets, refusal = await submit_until_refused(restricted, gateway)
    assert len(tickets) * len(REFERENCE) > 12 * MIB
    assert refusal.code == "redis_full"
    await restricted.close()
