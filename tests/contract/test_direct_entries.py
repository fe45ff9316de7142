"""Direct entries: those that Redis writes unchecked, because it has their writer's last batch on record."""

import asyncio

import pytest
from msgspec.structs import replace

from support.writing import chained
from syrinx_stages.connector.base import Behind, Gone, StreamEntry, Superseded
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.pool import CommandPool
from syrinx_stages.connector.redis.streams import FORGOTTEN_SECONDS
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason
from syrinx_stages.contract.stages import Stage

CODES = StreamKind.CODES


@pytest.fixture
def sent(monkeypatch):
    """The numbers of direct and checked entries of each append."""
    sent, run = [], CommandPool.run

    def counted(pool, script, keys, arguments, **options):
        if script is scripts.APPEND:
            direct = arguments[4]
            sent.append((direct, (len(keys) - 2 - direct) // 2))
        return run(pool, script, keys, arguments, **options)

    monkeypatch.setattr(CommandPool, "run", counted)
    return sent


def frame(claim, number, end=False):
    """Returns a frame after the one before it, or the end at that frame."""
    if end:
        (append,) = chained(claim, CODES, (Position(number, END_SEQUENCE), End(EndReason.STOP)), finish=True)
        return replace(append, after=Position(number))
    (append,) = chained(claim, CODES, (Position(number), Codes(b"%d" % number)))
    return append if number == 1 else replace(append, after=Position(number - 1))


async def begun(world, request_id="one"):
    """Returns a talker that has written the first frame of a request, its claim and the gateway."""
    gateway, owner = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, owner.consumer(Stage.TALKER, "owner"), request_id)
    assert await owner.append([frame(claim, 1)]) == [None]
    return gateway, owner, claim


async def written(connector):
    return [entry.position.frames for entry in await connector.history("one", CODES)][1:]


async def test_only_the_first_and_the_last_entry_of_a_stream_are_checked(world, sent):
    _, owner, claim = await begun(world)
    assert await owner.append([frame(claim, 2), frame(claim, 3)]) == [None, None]
    assert await owner.append([frame(claim, 4), frame(claim, 4, end=True)]) == [None, None]
    assert sent == [(0, 1), (2, 0), (1, 1)]
    assert await written(owner) == [1, 2, 3, 4, 4]


async def reading(world):
    """Returns a reader that has its inbox among the readers of the codes, after what they have."""
    reader = world.connector().reader()
    reader.subscribe("one", CODES, STREAM_START)
    while not await reader.read():
        pass
    return reader


async def next_of(reader):
    return [event.position.frames for event in await reader.read()]


async def test_a_further_reader_gets_what_follows_direct_entries(world, sent):
    _, owner, claim = await begun(world)
    await owner.append([frame(claim, 2)])
    readers = []
    for number in (3, 5):
        readers.append(await reading(world))
        assert await owner.append([frame(claim, number)]) == [None]
        assert [await next_of(reader) for reader in readers] == [[number]] * len(readers)
        assert await owner.append([frame(claim, number + 1)]) == [None]
        assert [await next_of(reader) for reader in readers] == [[number + 1]] * len(readers)
    refused_first = [(1, 0), (0, 1), (1, 0)]
    assert sent == [(0, 1), (1, 0), *refused_first, *refused_first]


async def test_a_further_reader_leaves_the_entries_of_other_writers_direct(world, sent):
    gateway, *_ = await begun(world)
    other = world.connector()
    _, second = await world.submit_claimed(gateway, other.consumer(Stage.TALKER, "other"), "two")
    await other.append([frame(second, 1)])
    await reading(world)
    del sent[:]
    assert await other.append([frame(second, 2)]) == [None]
    assert sent == [(1, 0)]


async def test_what_follows_an_entry_that_was_written_twice_reaches_the_reader(world):
    _, owner, claim = await begun(world)
    reader = await reading(world)
    for number in (2, 2, 3, 4):
        assert await owner.append([frame(claim, number)]) == [None]
    got = []
    while len(got) < 3:
        got += await next_of(reader)
    assert got == [2, 3, 4]


async def test_a_direct_entry_that_redis_already_has_is_written(world, sent):
    """An earlier command with it, whose reply was lost, has arrived meanwhile."""
    _, owner, claim = await begun(world)
    await owner.append([frame(claim, 2)])
    key = world.keys.stream("one", CODES)
    await world.raw.xadd(key, {"d": b""}, id=str(Position(3)))
    assert await owner.append([frame(claim, 3)]) == [None]
    assert sent[-2:] == [(1, 0), (0, 1)]


async def test_an_entry_that_does_not_follow_the_last_one_is_not_direct(world):
    _, owner, claim = await begun(world)
    await owner.append([frame(claim, 2)])
    [refusal] = await owner.append([frame(claim, 4)])
    assert isinstance(refusal, Behind) and refusal.at == Position(2)


async def test_a_reader_gets_what_is_written_beside_an_entry_that_is_not(world, sent):
    """Direct entries for one reader share its inbox entry, as long as all of them are written."""
    gateway, owner, first = await begun(world)
    ticket, second = await world.submit_claimed(gateway, owner.consumer(Stage.TALKER, "second"), "two")
    reader = await reading(world)
    reader.subscribe("two", CODES, STREAM_START)
    while not await reader.read():
        pass
    assert await owner.append([frame(first, 2), frame(second, 1)]) == [None, None]
    assert await owner.append([frame(first, 3), frame(second, 2)]) == [None, None]
    await gateway.release(ticket)
    outcomes = await owner.append([frame(first, 4), frame(second, 3)])
    assert sent[-1] == (2, 0) and [type(each) for each in outcomes] == [type(None), Gone]
    got = []
    while ("one", 4) not in got:
        entries = [event for event in await reader.read() if isinstance(event, StreamEntry)]
        got += [(entry.request_id, entry.position.frames) for entry in entries]
    assert sorted(got) == [("one", 2), ("one", 3), ("one", 4), ("two", 1), ("two", 2)]


@pytest.mark.parametrize("same_gateway", [True, False])
async def test_the_owner_of_a_request_that_is_submitted_again_is_refused(world, same_gateway):
    gateway, owner, claim = await begun(world)
    await world.expire("one")
    if same_gateway:
        await world.submit(gateway)
    else:
        await world.connector().submit(world.request(), world.admission, gateway="another one")
    assert [type(each) for each in await owner.append([frame(claim, 2)])] == [Superseded]


@pytest.mark.virtual
async def test_a_request_that_was_withdrawn_too_late_is_not_forgotten(world):
    """It goes on, and may be submitted again long after that."""
    gateway, owner = world.connector(), world.connector()
    ticket, claim = await world.submit_claimed(gateway, owner.consumer(Stage.TALKER, "owner"))
    assert await owner.append([frame(claim, 1)]) == [None]
    assert not await gateway.withdraw(ticket)
    await asyncio.sleep(FORGOTTEN_SECONDS + 1)
    await world.expire("one")
    await world.submit(gateway)
    assert [type(each) for each in await owner.append([frame(claim, 2)])] == [Superseded]


async def test_the_owner_of_a_request_that_was_released_before_is_refused(world):
    gateway, owner = world.connector(), world.connector()
    ticket, claim = await world.submit_claimed(gateway, owner.consumer(Stage.TALKER, "owner"))
    assert await owner.append([frame(claim, 1)]) == [None]
    await gateway.release(ticket)
    await world.submit(gateway)
    assert [type(each) for each in await owner.append([frame(claim, 2)])] == [Superseded]


async def test_a_batch_that_was_sent_twice_is_not_recorded(world, sent):
    """The first one may arrive late, after a takeover whose deletion of the records it would undo."""
    _, owner, claim = await begun(world)
    owner._pool._scripts.connection._transport.abort()
    assert await owner.append([frame(claim, 2)]) == [None]
    assert await owner.append([frame(claim, 3)]) == [None]
    assert sent == [(0, 1), (1, 0), (0, 1), (1, 0)], "frame 2 was sent again, as a checked entry"
    assert await written(owner) == [1, 2, 3]


async def test_entries_that_are_sent_beside_others_are_checked(world, sent):
    _, owner, claim = await begun(world)
    consumer = world.connectors[1].consumer(Stage.TALKER, "owner-2")
    await world.submit(world.connectors[0], "two")
    (other,) = await consumer.claim(1)
    assert await asyncio.gather(owner.append([frame(claim, 2)]), owner.append([frame(other, 1)])) == [[None], [None]]
    assert await asyncio.gather(owner.append([frame(claim, 3)]), owner.append([frame(other, 2)])) == [[None], [None]]
    assert sent == [(0, 1), (1, 0), (0, 1), (1, 0), (0, 1)]


async def test_an_entry_is_checked_every_ten_seconds_and_extends_the_life_of_its_keys(world, sent):
    _, owner, claim = await begun(world)
    stream, last = world.keys.stream("one", CODES), owner._writer._last
    await world.raw.expire(stream, 7)
    await owner.append([frame(claim, 2)])
    assert await world.raw.ttl(stream) <= 7
    ((key, entry),) = last.items()
    last[key] = entry._replace(checked_at=entry.checked_at - scripts.TOUCH_SECONDS)
    await owner.append([frame(claim, 3)])
    assert await world.raw.ttl(stream) > 100
    assert sent == [(0, 1), (1, 0), (0, 1)]
