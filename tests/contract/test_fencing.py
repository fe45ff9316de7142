"""Owner epochs: an owner that was cut off cannot write once another replica has the request.

The random walks of `test_trace.py` have what else owners, fail-overs and late writes can do to one another.
"""

import pytest
from msgspec.structs import replace

from support.writing import chained
from syrinx_stages.connector.base import MAX_DELIVERIES, Behind, Superseded
from syrinx_stages.contract.keys import Group, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes

KINDS = {Group.TALKERS: StreamKind.CODES, Group.CODECS: StreamKind.AUDIO}
ENTRIES = {StreamKind.CODES: Codes, StreamKind.AUDIO: Audio}
GROUPS = pytest.mark.parametrize("group", Group)


def frames(claim, *numbers, writer=b"", after=None):
    """Returns frames after the position of the claim, or after that frame."""
    kind = KINDS[claim.fence.group]
    first, *rest = chained(claim, kind, *((Position(number), ENTRIES[kind](writer)) for number in numbers))
    return [first if after is None else replace(first, after=Position(after)), *rest]


async def taken_over(world, group):
    """Returns the connectors and claims of an owner that has written frame 1 and of its successor."""
    gateway, late, current = (world.connector() for _ in range(3))
    _, first = await world.submit_claimed(gateway, late.consumer(group, "late"))
    assert await late.append(frames(first, 1)) == [None]
    await world.age(group, "late", 61)
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


# What a fail-over can lose: the end of a stream, and claims. ---------------------------------------------------------


async def lose(world, claim, *numbers):
    """Makes Redis forget the last frames of a request's output, as a replica that had not received them."""
    kind = KINDS[claim.fence.group]
    key = world.keys.stream(claim.request.id, kind)
    kept = [entry for entry in await world.raw.xrange(key) if int(entry[0].split(b"-")[0]) not in numbers]
    await world.raw.delete(key)
    for entry_id, fields in kept:
        await world.raw.xadd(key, fields, id=entry_id)
    await world.raw.expire(key, 60)
    await world.raw.delete(world.keys.writers)


@GROUPS
async def test_an_entry_after_a_lost_one_is_not_written(world, group):
    gateway, owner = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, owner.consumer(group, "a"))
    entries = frames(claim, *range(1, 7))
    assert await owner.append(entries[:4]) == [None] * 4
    await lose(world, claim, 3, 4)
    outcomes = await owner.append(entries[4:])
    assert [(type(outcome), outcome.at) for outcome in outcomes] == [(Behind, Position(2))] * 2
    assert await owner.append(entries[2:]) == [None] * 4
    assert [number for number, _ in await written(owner, claim)] == [1, 2, 3, 4, 5, 6]


@GROUPS
async def test_the_owner_of_the_newest_token_gets_a_lost_claim_back(world, group):
    gateway, owner = world.connector(), world.replica(group, "a")
    _, claim = await world.submit_claimed(gateway, owner)
    await world.raw.xack(world.keys.requests, group, claim.entry_id)
    assert list(await owner.refresh([claim.entry_id])) == []
    (pending,) = await world.raw.xpending_range(world.keys.requests, group, "-", "+", 9)
    assert pending["consumer"] == b"a"
    await world.raw.xclaim(world.keys.requests, group, "earlier", 0, [claim.entry_id], justid=True)
    assert list(await owner.refresh([claim.entry_id])) == []
    (pending,) = await world.raw.xpending_range(world.keys.requests, group, "-", "+", 9)
    assert pending["consumer"] == b"a"


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
    assert restarted.fence.epoch == 5


async def test_deliveries_are_counted_since_the_last_progress(world):
    gateway, writer = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, writer.consumer(Group.TALKERS, "1"))
    for frame in range(1, 3 * MAX_DELIVERIES):
        assert await writer.append(frames(claim, frame)) == [None]
        await world.age(Group.TALKERS, str(frame), 61)
        (claim,) = await writer.consumer(Group.TALKERS, str(frame + 1)).take_over(1)
        assert claim.deliveries == 1


async def test_the_epochs_expire_with_the_streams(world):
    gateway, owner = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, owner.consumer(Group.TALKERS, "a"))
    assert await owner.append(frames(claim, 1)) == [None]
    await gateway.report_playback({"one": 1})
    streams = [await world.raw.ttl(world.keys.stream("one", kind)) for kind in StreamKind]
    assert 0 < await world.raw.ttl(world.keys.owners("one")) <= max(streams)


@GROUPS
async def test_a_request_that_is_delivered_again_stays_with_its_owner(world, group):
    """A fail-over that has lost a delivery gives the request to any consumer that asks for new ones."""
    gateway, owner, late = world.connector(), world.replica(group, "a"), world.replica(group, "b")
    _, claim = await world.submit_claimed(gateway, owner)
    await world.raw.xack(world.keys.requests, group, claim.entry_id)
    await world.raw.xgroup_destroy(world.keys.requests, group)
    assert list(await late.claim(1)) == []
    assert list(await owner.refresh([claim.entry_id])) == []
    (pending,) = await world.raw.xpending_range(world.keys.requests, group, "-", "+", 9)
    assert pending["consumer"] == b"a"
