"""Tests of the streams of a request: writing, refused entries, release, admission."""

import asyncio

import pytest

from support.writing import Owner, chained
from syrinx_stages.connector.base import (
    Append,
    Behind,
    ConnectorError,
    Fence,
    Gone,
    QueueFull,
    RequestExists,
    StreamEntry,
    Superseded,
)
from syrinx_stages.contract.keys import (
    END_SEQUENCE,
    REFERENCE_POSITION,
    STREAM_CREATED,
    STREAM_START,
    Position,
    StreamKind,
)
from syrinx_stages.contract.messages import (
    Audio,
    Codes,
    End,
    EndReason,
    PlaybackProgress,
    Reference,
    StreamCreated,
    Text,
)
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.contract.stages import Stage

CODES, AUDIO, PLAYBACK = StreamKind.CODES, StreamKind.AUDIO, StreamKind.PLAYBACK


def codes(frames, text=b"", request_id="one", sequence=0):
    return StreamEntry(request_id, CODES, Position(frames, sequence), Codes(text))


def audio(frames, request_id="one"):
    return StreamEntry(request_id, AUDIO, Position(frames), Audio(b"pcm%d" % frames))


def end(frames, kind=CODES):
    return StreamEntry("one", kind, Position(frames, END_SEQUENCE), End(EndReason.STOP))


async def positions(connector, kind, request_id="one"):
    return [entry.position for entry in await connector.history(request_id, kind)]


async def test_entries_are_read_in_order(world):
    writer, reader = world.writer(), world.connector()
    await world.submit(writer)
    assert await writer.append([codes(1, b"a"), codes(2, b"b"), codes(2, b"c", sequence=1), end(2)]) == [None] * 4
    entries = [entry.entry for entry in await reader.history("one", CODES)]
    assert entries == [StreamCreated(), Codes(b"a"), Codes(b"b"), Codes(b"c"), End(EndReason.STOP)]
    assert await reader.last_position("one", CODES) == Position(2, END_SEQUENCE)


async def test_each_entry_has_its_own_outcome(world):
    connector, late = world.writer(), world.writer()
    await world.submit(connector, "one")
    await world.submit(connector, "two")
    await connector.append([codes(1, request_id="two")])
    outcomes = await late.append([codes(1), codes(1, request_id="two"), codes(1, request_id="never"), audio(1)])
    assert [type(outcome) for outcome in outcomes] == [type(None), Superseded, Gone, type(None)]


async def test_a_released_request_cannot_be_written_again(world):
    gateway, talker = world.connector(), world.writer()
    ticket = await world.submit(gateway)
    await talker.append([codes(1)])
    await gateway.release(ticket)
    (outcome,) = await talker.append([codes(2)])
    assert isinstance(outcome, Gone)
    await talker.report_playback({"one": 3})
    for kind in StreamKind:
        assert list(await talker.history("one", kind)) == []
        assert await talker.last_position("one", kind) is None


async def test_the_reference_exists_as_long_as_the_request(world):
    gateway, talker = world.connector(), world.connector()
    sound = bytes(range(256)) * 100
    ticket = await gateway.submit(world.request(has_reference=True), world.admission, sound)
    assert await talker.reference("one") == sound
    await gateway.release(ticket)
    assert await talker.reference("one") is None
    assert await talker.reference("never") is None


async def test_a_request_id_in_use_is_refused(world):
    gateway = world.connector()
    await world.submit(gateway)
    with pytest.raises(ConnectorError, match="one is in use"):
        await world.submit(gateway)
    assert (await gateway.queue()).length == 1


async def test_a_playback_report_trims_audio_but_not_its_end(world):
    gateway, codec = world.connector(), world.writer()
    await world.submit(gateway)
    await codec.append([audio(2), audio(4), audio(8), end(8, kind=AUDIO)])
    await gateway.report_playback({"one": 4})
    assert await positions(codec, AUDIO) == [Position(8), Position(8, END_SEQUENCE)]
    await gateway.report_playback({"one": 8})
    assert await positions(codec, AUDIO) == [Position(8, END_SEQUENCE)]
    assert await codec.last_position("one", AUDIO) == Position(8, END_SEQUENCE)


async def test_a_playback_report_deletes_the_codes_of_segments_that_were_delivered(world):
    """But not the voice that they were spoken with, which a later codec needs."""
    gateway, talker = world.connector(), world.writer()
    await world.submit(gateway)
    reference = StreamEntry("one", CODES, REFERENCE_POSITION, Reference(b"voice"))
    await talker.append([reference, *map(codes, (2, 5, 6, 9))])
    await gateway.report_playback({"one": 5}, {}, {"one": 0})
    assert len(await positions(talker, CODES)) == 6
    await gateway.report_playback({"one": 6}, {}, {"one": 5})
    assert await positions(talker, CODES) == [STREAM_CREATED, REFERENCE_POSITION, Position(6), Position(9)]
    await gateway.report_playback({"one": 7}, {}, {"one": 5})
    assert await talker.append([codes(10)]) == [None]
    assert await talker.last_position("one", CODES) == Position(10)
    assert await talker.append([codes(4)]) != [None]


async def test_codes_stay_if_those_that_followed_them_are_lost(world):
    """The next owner goes on from the last ones, whatever their client has got of those that were lost."""
    gateway, talker = world.connector(), world.writer()
    await world.submit(gateway)
    await talker.append([*map(codes, (2, 4))])
    for spoken in (4, 7):
        await gateway.report_playback({"one": spoken + 1}, {}, {"one": spoken})
        assert await positions(talker, CODES) == [STREAM_CREATED, Position(2), Position(4)]


async def test_playback_reports_never_decrease_and_old_ones_are_dropped(world):
    gateway, talker = world.connector(), world.connector()
    await world.submit(gateway)
    for frames in (0, 3, 7, 7, 5):
        await gateway.report_playback({"one": frames})
    reported = await talker.history("one", PLAYBACK)
    assert [each.position.frames for each in reported[-2:]] == [3, 7] and reported[-1].entry == PlaybackProgress()
    for frames in range(8, 500):
        await gateway.report_playback({"one": frames})
    assert len(await talker.history("one", PLAYBACK)) < 250, "whole blocks are trimmed"


async def test_release_is_idempotent(world):
    gateway = world.connector()
    ticket = await world.submit(gateway)
    await gateway.release(ticket)
    await gateway.release(ticket)
    assert await world.left() == set()


async def test_a_finished_and_released_request_leaves_nothing(world):
    gateway, stages = world.connector(), world.connector()
    talker, codec = stages.consumer(Stage.TALKER, "t"), stages.consumer(Stage.CODEC, "c")
    ticket = await gateway.submit(world.request(has_reference=True), world.admission, b"sound")
    (claim,) = await talker.claim(1)
    (other,) = await codec.claim(1)
    stop = (Position(1, END_SEQUENCE), End(EndReason.STOP))
    frame = chained(claim, CODES, (Position(1), Codes(b"")), stop, finish=True)
    assert await stages.append(frame) == [None, None]
    assert await stages.append(chained(other, AUDIO, (Position(1), Audio(b"pcm")), stop, finish=True)) == [None, None]
    await gateway.report_playback({"one": 1})
    await gateway.release(ticket)
    assert await world.left() == set()


async def test_only_output_streams_are_written_under_a_claim():
    with pytest.raises(ValueError, match=r"kind: .*played"):
        Append("one", PLAYBACK, STREAM_START, PlaybackProgress(), Fence(Stage.TALKER, "1:0:0-1:0-1:"), STREAM_START)


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_admission_is_limited_by_count(world, limit):
    gateway = world.connector()
    admission = GatewaySettings(max_queue=limit, max_queue_seconds=60)
    for index in range(limit):
        await gateway.submit(world.request(f"r{index}"), admission)
    with pytest.raises(QueueFull) as refused:
        await gateway.submit(world.request("late"), admission)
    assert 1 <= refused.value.retry_after <= 30
    assert f"{limit} requests wait for a talker, and maxQueue is {limit}; retry in" in str(refused.value)
    assert (await gateway.queue()).length == limit
    assert await gateway.last_position("late", CODES) is None


@pytest.mark.virtual
async def test_admission_is_limited_by_age(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await world.submit(gateway)
    await asyncio.sleep(3)
    limits = GatewaySettings(max_queue=100, max_queue_seconds=2)
    with pytest.raises(QueueFull, match=r"a request has waited 3.00 s .* longer than maxQueueSeconds \(2 s\)"):
        await gateway.submit(world.request("late"), limits)
    assert len(await talker.claim(1)) == 1
    await gateway.submit(world.request("next"), limits)


async def test_an_empty_queue_has_no_age(world):
    state = await world.connector().queue()
    assert (state.length, state.oldest_seconds) == (0, 0.0)


async def test_a_closed_connector_raises(world):
    connector = world.connector()
    await connector.queue()
    await connector.close()
    await connector.close()
    with pytest.raises(ConnectorError, match="closed"):
        await connector.queue()
    with pytest.raises(ConnectorError, match="closed"):
        await Owner(connector).append([codes(1)])


async def test_text_is_written_once_and_in_order(world):
    gateway = world.connector()
    ticket = await gateway.submit(world.request(streams_text=True), world.admission)
    first, second = (StreamEntry("one", StreamKind.TEXT, Position(at), Text("abc")) for at in (3, 6))
    assert await gateway.append_text("one", STREAM_CREATED, [first]) is None
    assert await gateway.append_text("one", STREAM_CREATED, [first]) is None, "it was written before"
    behind = await gateway.append_text("one", Position(5), [second])
    assert isinstance(behind, Behind) and behind.at == Position(3)
    assert isinstance(await gateway.append_text("one", Position(6), []), Behind), "only the position is checked"
    assert await gateway.append_text("one", Position(3), [second]) is None
    assert await positions(gateway, StreamKind.TEXT) == [STREAM_CREATED, Position(3), Position(6)]
    await gateway.release(ticket)
    assert isinstance(await gateway.append_text("one", Position(6), [second]), Gone)


async def test_only_the_last_gateway_of_a_request_may_release_it(world):
    first, second = world.connector(), world.connector()
    request = world.request(streams_text=True)
    ticket = await first.submit(request, world.admission, gateway="first")
    with pytest.raises(RequestExists):
        await second.submit(request, world.admission, gateway="second")
    assert await second.attach("other", "second") is None
    found = await second.attach("one", "second")
    assert found is not None
    attached, stored = found
    assert (stored, attached.entry_id) == (request, ticket.entry_id)
    await first.release(ticket)
    assert await first.last_position("one", CODES) == STREAM_CREATED, "another gateway has it"
    await second.release(attached)
    assert await first.last_position("one", CODES) is None
    assert await second.attach("one", "third") is None


async def test_a_request_without_a_token_cannot_be_attached(world):
    gateway = world.connector()
    await world.submit(gateway)
    assert await gateway.attach("one", "a") is None


async def test_delivered_audio_may_be_kept(world):
    gateway, codec = world.connector(), world.writer()
    await world.submit(gateway)
    await codec.append([audio(frames) for frames in range(1, 7)])
    await gateway.report_playback({"one": 5}, {"one": 2})
    assert await positions(gateway, AUDIO) == [Position(4), Position(5), Position(6)]
    await gateway.report_playback({"one": 6})
    assert await positions(gateway, AUDIO) == []
