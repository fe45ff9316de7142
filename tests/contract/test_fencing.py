"""Owner epochs: an owner that was cut off cannot write once another replica has the request."""

import pytest

from syrinx_stages.connector.base import MAX_DELIVERIES, Append, Superseded
from syrinx_stages.contract.keys import Group, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes

KINDS = {Group.TALKERS: StreamKind.CODES, Group.CODECS: StreamKind.AUDIO}
ENTRIES = {StreamKind.CODES: Codes, StreamKind.AUDIO: Audio}
GROUPS = pytest.mark.parametrize("group", Group)


def frames(claim, *numbers, writer=b""):
    kind = KINDS[claim.fence.group]
    return [
        Append(claim.request.id, kind, Position(number), ENTRIES[kind](writer), fence=claim.fence) for number in numbers
    ]


async def taken_over(world, group):
    """Returns the connectors and claims of an owner that has written frame 1 and of its successor."""
    gateway, late, current = (world.connector() for _ in range(3))
    _, first = await world.submit_claimed(gateway, late.consumer(group, "late"))
    assert await late.append(frames(first, 1)) == [None]
    await world.age(group, "late", first, 61)
    (second,) = await current.consumer(group, "current").take_over(1)
    return late, first, current, second


async def written(connector, claim):
    entries = await connector.history(claim.request.id, KINDS[claim.fence.group])
    return [(entry.position.frames, entry.entry) for entry in entries if entry.position.frames]


@GROUPS
async def test_the_backlog_of_a_late_owner_is_refused_after_a_takeover(world, group):
    """The successor has written up to frame 4 when the backlog 2 to 9 arrives: 5 to 9 are of another trajectory."""
    late, first, current, second = await taken_over(world, group)
    assert await current.append(frames(second, 2, 3, 4, writer=b"current")) == [None] * 3
    outcomes = await late.append(frames(first, *range(2, 10), writer=b"late"))
    assert [type(outcome) for outcome in outcomes] == [Superseded] * 8
    made = ENTRIES[KINDS[group]]
    assert await written(current, second) == [(1, made(b"")), *((number, made(b"current")) for number in (2, 3, 4))]


@GROUPS
async def test_a_late_owner_cannot_write_before_its_successor_does(world, group):
    """Otherwise the current owner would be refused, and nobody would own the request until its lease expires."""
    late, first, current, second = await taken_over(world, group)
    assert [type(outcome) for outcome in await late.append(frames(first, 2))] == [Superseded]
    assert await current.append(frames(second, 2)) == [None]


async def test_after_a_refused_entry_the_rest_of_its_stream_is_refused(world):
    gateway, owner = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, owner.consumer(Group.TALKERS, "a"))
    (other,) = await owner.consumer(Group.CODECS, "b").claim(1)
    assert await owner.append(frames(claim, 3)) == [None]
    batch = [*frames(claim, 2), *frames(other, 1), *frames(claim, 4)]
    assert [type(outcome) for outcome in await owner.append(batch)] == [Superseded, type(None), Superseded]
    assert [number for number, _ in await written(owner, claim)] == [3]


@GROUPS
async def test_every_claim_gets_the_next_epoch(world, group):
    gateway, owner, other = world.connector(), world.replica(group, "a"), world.replica(group, "b")
    _, claim = await world.submit_claimed(gateway, owner)
    epochs = [claim.fence.epoch]
    for giver, taker in ((owner, other), (other, owner)):
        await giver.hand_over([claim.entry_id])
        (claim,) = await taker.take_over(1)
        epochs.append(claim.fence.epoch)
    (claim,) = await owner.reclaim(claim)
    assert [*epochs, claim.fence.epoch] == [1, 2, 3, 4]
    (restarted,) = await world.replica(group, "a").take_over(1)
    assert restarted.fence == (group, 5)


async def test_only_the_owner_can_reclaim(world):
    gateway, owner, other = world.connector(), world.connector(), world.replica(Group.TALKERS, "b")
    consumer = owner.consumer(Group.TALKERS, "a")
    _, claim = await world.submit_claimed(gateway, consumer)
    (again,) = await consumer.reclaim(claim)
    assert again.redelivered
    assert [type(outcome) for outcome in await owner.append(frames(claim, 1))] == [Superseded]
    assert await owner.append(frames(again, 1)) == [None]
    await world.age(Group.TALKERS, "a", claim, 61)
    (taken,) = await other.take_over(1)
    assert list(await consumer.reclaim(again)) == []
    assert await owner.append(frames(taken, 2)) == [None], "the epoch of the new owner is still valid"


async def test_deliveries_are_counted_since_the_last_progress(world):
    gateway, writer = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, writer.consumer(Group.TALKERS, "1"))
    for frame in range(1, 3 * MAX_DELIVERIES):
        assert await writer.append(frames(claim, frame)) == [None]
        await world.age(Group.TALKERS, str(frame), claim, 61)
        (claim,) = await writer.consumer(Group.TALKERS, str(frame + 1)).take_over(1)
        assert claim.deliveries == 1


async def test_a_request_that_is_released_leaves_no_epoch(world):
    gateway, owner = world.connector(), world.replica(Group.TALKERS, "a")
    ticket, _ = await world.submit_claimed(gateway, owner)
    assert world.keys.owners("one") in await world.names()
    await gateway.release(ticket)
    assert world.keys.owners("one") not in await world.names()


async def test_the_epochs_expire_with_the_streams(world):
    gateway, owner = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, owner.consumer(Group.TALKERS, "a"))
    assert await owner.append(frames(claim, 1)) == [None]
    await gateway.report_playback({"one": 1})
    streams = [await world.raw.ttl(world.keys.stream("one", kind)) for kind in StreamKind]
    assert 0 < await world.raw.ttl(world.keys.owners("one")) <= max(streams)
