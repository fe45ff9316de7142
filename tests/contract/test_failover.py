"""Tests of a Redis that loses what was written last: writers and gateways restore it."""

import asyncio
import contextlib
import signal

import pytest
from msgspec.structs import replace
from prometheus_client import Histogram

from soak.servers import Layout, Servers
from support.failover import replicated
from support.writing import Owner, chained
from syrinx_stages.connector import replication
from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, Group, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, EndReason
from syrinx_stages.gateway.fanout import PlaybackReporter
from syrinx_stages.runtime.journal import Journal
from syrinx_stages.runtime.publisher import Publisher

pytestmark = pytest.mark.night

KINDS = {Group.TALKERS: StreamKind.CODES, Group.CODECS: StreamKind.AUDIO}
GROUPS = pytest.mark.parametrize("group", Group)


@pytest.fixture
async def pair(world_of):
    async with replicated() as pair:
        pair.world = world_of(pair.primary.url_with_password)
        yield pair
        if pair.primary.process.poll() is not None:
            await pair.world.raw.aclose()
            pair.world.raw = pair.raw
        await pair.world.close()


class Stage:
    """A stage of one group without an engine."""

    def __init__(self, connector: RedisConnector, group: Group) -> None:
        self.group, self.kind = group, KINDS[group]
        self.journal, self.written, self.refused = Journal(self.kind), [], []
        self.consumer = connector.consumer(group, "stage", self.journal.ended)
        seconds = Histogram("seconds", "", registry=None)
        self.publisher = Publisher(
            connector, self.journal, lambda append: self.written.append(append.position), self._refused, seconds
        )

    def _refused(self, append, outcome):
        self.refused.append((append.position, outcome))

    def put(self, claim, *numbers, end=False):
        for number in numbers:
            entry = (Codes if self.kind is StreamKind.CODES else Audio)(b"%04d" % number)
            self._put(claim, Position(number), entry)
        if end:
            frames = self.journal.last_position(claim).frames
            self._put(claim, Position(frames, END_SEQUENCE), End(EndReason.STOP), finish=True)

    def _put(self, claim, position, entry, finish=False):
        (append,) = chained(claim, self.kind, (position, entry), finish=finish)
        self.publisher.put([replace(append, after=self.journal.last_position(claim))])


@contextlib.asynccontextmanager
async def running(connector, group):
    stage = Stage(connector, group)
    task = asyncio.create_task(stage.publisher.run())
    yield stage
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def frames(connector, kind, request_id="one"):
    entries = await connector.history(request_id, kind)
    return [entry.position.frames for entry in entries if isinstance(entry.entry, Codes | Audio)]


@GROUPS
async def test_the_lost_end_of_a_stream_is_written_again_before_the_next_entry(pair, until, group):
    gateway, connector = pair.world.connector(), pair.world.connector()
    async with running(connector, group) as stage:
        _, claim = await pair.world.submit_claimed(gateway, stage.consumer)
        stage.put(claim, 1, 2, 3)
        await until(lambda: written(stage, 3))
        await pair.detach()
        stage.put(claim, 4, 5, 6, 7)
        await until(lambda: written(stage, 7))
        assert await pair.raw.xlen(pair.world.keys.stream("one", stage.kind)) == 4
        pair.promote(pair.world.connectors)
        stage.put(claim, 8, 9)
        await until(lambda: written(stage, 9))
        assert await frames(connector, stage.kind) == list(range(1, 10))
        assert [position.frames for position in stage.written] == list(range(1, 10)), "each is reported once"
        assert not stage.refused


@GROUPS
async def test_an_idle_stream_is_restored_when_the_connection_is(pair, until, group):
    gateway, connector = pair.world.connector(), pair.world.connector()
    async with running(connector, group) as stage:
        _, claim = await pair.world.submit_claimed(gateway, stage.consumer)
        stage.put(claim, 1)
        await until(lambda: written(stage, 1))
        await pair.detach()
        stage.put(claim, 2, 3, 4)
        await until(lambda: written(stage, 4))
        pair.promote(pair.world.connectors)
        assert list(await stage.consumer.refresh([claim.entry_id])) == []
        await until(lambda: reached(connector, stage.kind, Position(4)))
        assert await frames(connector, stage.kind) == [1, 2, 3, 4]


@GROUPS
async def test_a_lost_end_is_written_again_and_finishes_the_claim(pair, until, group):
    gateway, connector = pair.world.connector(), pair.world.connector()
    async with running(connector, group) as stage:
        _, claim = await pair.world.submit_claimed(gateway, stage.consumer)
        stage.put(claim, 1, 2)
        await until(lambda: written(stage, 2))
        await pair.detach()
        stage.put(claim, 3, end=True)
        await until(lambda: written(stage, 3, END_SEQUENCE))
        stage.journal.forget("one")
        pair.promote(pair.world.connectors)
        await stage.consumer.take_over(0)
        await until(lambda: reached(connector, stage.kind, Position(3, END_SEQUENCE)))
        assert (await pair.raw.xpending(pair.world.keys.requests, group))["pending"] == 0
        assert await frames(connector, stage.kind) == [1, 2, 3]


@GROUPS
@pytest.mark.parametrize("kept", [True, False], ids=["the end is kept", "the journal is lost"])
async def test_a_claim_is_taken_back_unless_its_end_will_be_written_again(pair, until, group, kept):
    gateway, connector = pair.world.connector(), pair.world.connector()
    async with running(connector, group) as stage:
        _, claim = await pair.world.submit_claimed(gateway, stage.consumer)
        await pair.detach()
        stage.put(claim, 1, 2, end=True)
        await until(lambda: written(stage, 2, END_SEQUENCE))
    if not kept:
        stage.journal.discard(*stage.journal.last_written())
    pair.promote(pair.world.connectors)
    # A new consumer looks for its own claims first, as one does whose connection was lost.
    taken = await connector.consumer(group, "stage", stage.journal.ended).take_over(9)
    assert [each.entry_id for each in taken] == [claim.entry_id] * (not kept)


@GROUPS
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "in progress"])
async def test_a_lost_claim_is_not_delivered_to_its_owner_again(pair, until, group, ended):
    gateway, connector = pair.world.connector(), pair.world.connector()
    async with running(connector, group) as stage:
        await pair.world.submit(gateway)
        await pair.detach()
        (claim,) = await stage.consumer.claim(1)
        stage.put(claim, 1, 2, end=ended)
        await until(lambda: written(stage, 2, END_SEQUENCE if ended else 0))
        pair.promote(pair.world.connectors)
        # The first call may notice only that the connection is lost.
        assert [*await stage.consumer.claim(1), *await stage.consumer.claim(1)] == []
        if not ended:
            stage.put(claim, 3, end=True)
        await until(lambda: reached(connector, stage.kind, Position(2 if ended else 3, END_SEQUENCE)))
        assert not stage.refused


@GROUPS
async def test_a_lost_claim_does_not_lose_the_stream(pair, until, group):
    """The promoted replica does not know the claim. Its owner writes on and gets the claim back."""
    gateway, connector, other = (pair.world.connector() for _ in range(3))
    async with running(connector, group) as stage:
        await pair.world.submit(gateway)
        await pair.detach()
        (claim,) = await stage.consumer.claim(1)
        stage.put(claim, 1, 2)
        await until(lambda: written(stage, 2))
        pair.promote(pair.world.connectors)
        assert list(await stage.consumer.refresh([claim.entry_id])) == []
        assert list(await other.consumer(group, "other").take_over(9)) == []
        stage.put(claim, 3)
        await until(lambda: written(stage, 3))
        assert await frames(connector, stage.kind) == [1, 2, 3]
        (pending,) = await pair.raw.xpending_range(pair.world.keys.requests, group, "-", "+", 9)
        assert pending["consumer"] == b"stage"


async def test_a_lost_playback_report_is_sent_again(pair, until):
    gateway = pair.world.connector()
    await pair.world.submit(gateway)
    reporter = PlaybackReporter(gateway)
    reporting = asyncio.create_task(reporter.run())
    await pair.detach()
    reporter.report("one", 5)
    reporter.report("over", 5)
    reporter.forget("over")
    await until(lambda: reached(gateway, StreamKind.PLAYBACK, Position(5)))
    pair.promote(pair.world.connectors)
    assert (await gateway.queue()).length == 1
    await until(lambda: reached(gateway, StreamKind.PLAYBACK, Position(5)))
    reporting.cancel()


async def test_the_queue_has_the_length_of_what_is_left_of_it(pair):
    gateway, talker = pair.world.connector(), pair.world.replica(Group.TALKERS, "stage")
    tickets = [await pair.world.submit(gateway, f"r{number}") for number in range(6)]
    await talker.claim(1)
    await gateway.withdraw(tickets[3])
    await pair.detach()
    await talker.claim(2)
    await gateway.withdraw(tickets[4])
    await pair.world.submit(gateway, "lost")
    assert (await gateway.queue()).length == 2
    pair.promote(pair.world.connectors)
    assert (await gateway.queue()).length == 4
    await pair.world.submit(gateway, "next")
    assert (await gateway.queue()).length == 5


async def test_owners_have_the_time_of_a_lease_to_refresh_their_claims_after_an_outage(pair):
    gateway, owner, other = (pair.world.connector() for _ in range(3))
    consumer, late = owner.consumer(Group.TALKERS, "a"), other.consumer(Group.TALKERS, "b")
    _, claim = await pair.world.submit_claimed(gateway, consumer)
    await late.take_over(1)
    await pair.world.age(Group.TALKERS, "a", 61)
    await pair.detach()
    pair.promote(pair.world.connectors)
    assert list(await late.take_over(1)) == []
    assert list(await consumer.refresh([claim.entry_id])) == []


async def test_owners_have_that_time_also_after_the_start_of_another_process(pair):
    """It does not know for how long Redis has been reachable."""
    gateway, owner, started = pair.world.connector(), pair.world.connector(), pair.world.connector(settled=False)
    consumer, late = owner.consumer(Group.TALKERS, "a"), started.consumer(Group.TALKERS, "b")
    _, claim = await pair.world.submit_claimed(gateway, consumer)
    await pair.world.age(Group.TALKERS, "a", 61)
    assert list(await late.take_over(1)) == []
    assert list(await consumer.refresh([claim.entry_id])) == []


@GROUPS
async def test_a_request_that_is_delivered_again_stays_with_its_owner(pair, group):
    """A fail-over that has lost a delivery gives the request to any consumer that asks for new ones."""
    gateway, owner, other = (pair.world.connector() for _ in range(3))
    consumer, late = owner.consumer(group, "a"), other.consumer(group, "b")
    _, claim = await pair.world.submit_claimed(gateway, consumer)
    await pair.detach()
    await pair.raw.xgroup_setid(pair.world.keys.requests, group, "0")
    pair.promote(pair.world.connectors)
    assert list(await late.claim(1)) == []
    assert list(await consumer.refresh([claim.entry_id])) == []
    pending = await pair.raw.xpending_range(pair.world.keys.requests, group, "-", "+", 10)
    assert [each["consumer"] for each in pending] == [b"a"]


@pytest.mark.parametrize("kind", [StreamKind.CODES, StreamKind.AUDIO])
async def test_a_reader_gets_an_end_that_comes_before_entries_that_were_lost(pair, kind):
    """The successor of a talker whose last codes were lost may stop earlier."""
    gateway, stages = pair.world.connector(), pair.world.connector()
    await pair.world.submit(gateway, "one")
    reader, entry = stages.reader(), Codes(b"x") if kind is StreamKind.CODES else Audio(b"x")
    reader.subscribe("one", kind, STREAM_CREATED)
    before, after = Owner(stages), Owner(stages)
    await before.append([StreamEntry("one", kind, Position(number), entry) for number in (1, 2)])
    await pair.detach()
    await before.append([StreamEntry("one", kind, Position(3), entry)])
    assert await positions(reader, 3) == [(1, 0), (2, 0), (3, 0)]
    pair.promote(pair.world.connectors)
    await after.append([StreamEntry("one", kind, Position(2, END_SEQUENCE), End(EndReason.STOP))])
    assert await positions(reader, 1) == [(2, END_SEQUENCE)], "once, and no entry again"
    await reader.close()


async def positions(reader, count):
    found = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += [event.position for event in await reader.read()]
    return found


@GROUPS
async def test_a_claim_returns_once_the_replica_knows_it(pair, group, monkeypatch):
    monkeypatch.setattr(replication, "WAIT_MS", 10_000)
    consumer = pair.world.connector().consumer(group, "a")
    await pair.world.submit(pair.world.connector())
    pair.replica.process.send_signal(signal.SIGSTOP)
    claiming = asyncio.create_task(consumer.claim(1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.shield(claiming)
    pair.replica.process.send_signal(signal.SIGCONT)
    (claim,) = await claiming
    assert await pair.raw.hget(pair.world.keys.owners("one"), group) == claim.fence.token.encode()


async def test_a_process_does_not_wait_again_for_a_replica_that_lags(pair, caplog):
    connector = pair.world.connector()
    consumer = connector.consumer(Group.TALKERS, "a")
    pair.replica.process.send_signal(signal.SIGSTOP)
    for request_id in ("one", "two", "three"):
        await pair.world.submit(connector, request_id)
    assert [claim.request.id for _ in range(3) for claim in await consumer.claim(1)] == ["one", "two", "three"]
    pair.replica.process.send_signal(signal.SIGCONT)
    assert caplog.text.count("no replica has acknowledged") == 1


async def written(stage, frames, sequence=0):
    return bool(stage.written) and stage.written[-1] == Position(frames, sequence)


async def reached(connector, kind, position):
    return await connector.last_position("one", kind) == position


@pytest.mark.parametrize("layout", [Layout.AOF, Layout.PAIR, Layout.SENTINEL])
async def test_streams_continue_after_the_primary_was_killed(world_of, until, tmp_path, layout):
    """A Redis with an append-only file restarts; sentinels promote the replica of a primary."""
    servers = Servers(layout, tmp_path)
    async with servers.running():
        url = servers.url(lambda port: port).replace("://", f"://:{servers.password}@", 1)
        world = world_of("redis://unused")
        world.url = url
        gateway, connector = world.connector(), world.connector()
        async with running(connector, Group.TALKERS) as stage:
            _, claim = await world.submit_claimed(gateway, stage.consumer)
            reader = gateway.reader()
            reader.subscribe("one", StreamKind.CODES, Position(0, 1))
            stage.put(claim, *range(1, 20))
            await until(lambda: written(stage, 19))
            server, _ = await servers.primary()
            server.process.kill()
            for number in range(20, 60):
                stage.put(claim, number)
            await until(lambda: written(stage, 59))
            assert await frames(connector, StreamKind.CODES) == list(range(1, 60))
            seen = []
            while len(seen) < 59:
                seen += [event.position.frames for event in await reader.read()]
            assert seen == list(range(1, 60))
            assert list(await stage.consumer.refresh([claim.entry_id])) == []
        for each in world.connectors:
            await each.close()
        await world.raw.aclose()
