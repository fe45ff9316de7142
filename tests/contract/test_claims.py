"""Tests of claims: each group claims a request once, renews the lease, and takes over expired ones."""

import asyncio

import pytest

from support.writing import chained
from syrinx_stages.connector.base import CLAIM_SECONDS, MAX_DELIVERIES
from syrinx_stages.connector.redis.consumer import CHECK_SECONDS, MIN_CHECKED
from syrinx_stages.connector.redis.scripts import GONE_SECONDS, TOUCH_SECONDS
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason
from syrinx_stages.contract.stages import WORKERS, Stage

TALKERS, CODECS = Stage.TALKER, Stage.CODEC


def end(claim, kind=StreamKind.CODES, frames=1):
    return chained(claim, kind, (Position(frames, END_SEQUENCE), End(EndReason.STOP)), finish=True)[0]


async def test_each_group_claims_every_request_once(world):
    gateway = world.connector()
    sent = {f"r{index}" for index in range(30)}
    replicas = {group: [world.replica(group, f"{group}{index}") for index in range(3)] for group in WORKERS}

    async def serve(consumer):
        got = []
        while claims := await consumer.claim(4):
            assert len(claims) <= 4
            got += [claim.request.id for claim in claims]
        return got

    tasks = {group: [asyncio.create_task(serve(consumer)) for consumer in replicas[group]] for group in WORKERS}
    for request_id in sorted(sent):
        await world.submit(gateway, request_id)
    for group in WORKERS:
        got = [request_id for part in await asyncio.gather(*tasks[group]) for request_id in part]
        assert sorted(got) == sorted(sent)


async def test_a_claim_carries_the_whole_request_oldest_first(world):
    gateway, talker = world.connector(), world.replica(TALKERS, "t")
    requests = [world.request(f"r{index}", seed=index, voice="anna") for index in range(3)]
    for request in requests:
        await gateway.submit(request, world.admission)
    claims = await talker.claim(2)
    assert [claim.request for claim in claims] == requests[:2]
    assert [claim.deliveries for claim in claims] == [1, 1]
    assert [claim.request for claim in await talker.claim(2)] == requests[2:]


@pytest.mark.virtual
async def test_a_claim_waits_for_a_second_at_most(world):
    loop, talker = asyncio.get_running_loop(), world.replica(TALKERS, "t")
    assert list(await talker.claim(1)) == []
    started = loop.time()
    assert list(await talker.claim(1)) == []
    assert loop.time() - started == pytest.approx(CLAIM_SECONDS)


@pytest.mark.virtual
async def test_an_interrupt_ends_a_waiting_claim_at_once(world):
    loop, consumer = asyncio.get_running_loop(), world.replica(TALKERS, "t")
    for pause in range(20):
        started = loop.time()
        waiting = asyncio.create_task(consumer.claim(1))
        await asyncio.sleep(pause / 100)
        consumer.interrupt()
        assert list(await waiting) == []
        assert loop.time() - started < CLAIM_SECONDS / 2


async def test_refreshing_renews_a_lease(world):
    gateway, owner, other = world.connector(), world.replica(TALKERS, "a"), world.replica(TALKERS, "b")
    _, claim = await world.submit_claimed(gateway, owner)
    for _ in range(3):
        await world.age(TALKERS, "a", 40)
        assert list(await other.take_over(9)) == []
        assert list(await owner.refresh([claim.entry_id])) == []


async def test_an_expired_lease_is_taken_over_for_good(world):
    gateway, owner, other = world.connector(), world.replica(TALKERS, "a"), world.replica(TALKERS, "b")
    _, claim = await world.submit_claimed(gateway, owner)
    await world.age(TALKERS, "a", 61)
    (taken,) = await other.take_over(9)
    assert (taken.request, taken.entry_id, taken.deliveries) == (claim.request, claim.entry_id, 2)
    assert list(await owner.refresh([claim.entry_id])) == [claim.entry_id], "a zombie must not steal it back"
    assert list(await other.refresh([claim.entry_id])) == []


async def test_a_takeover_that_a_fail_over_lost_is_not_repeated(world):
    """Redis shows the claim of the former owner again, whose lease has expired."""
    gateway, owner, other = world.connector(), world.replica(TALKERS, "a"), world.replica(TALKERS, "b")
    _, claim = await world.submit_claimed(gateway, owner)
    await world.age(TALKERS, "a", 61)
    await other.take_over(9)
    await world.raw.xclaim(world.keys.requests, TALKERS, "a", 0, [claim.entry_id], justid=True)
    await world.age(TALKERS, "a", 61)
    assert list(await other.take_over(9)) == []
    assert list(await other.refresh([claim.entry_id])) == [], "it goes on"


async def test_a_process_takes_over_once_it_has_been_connected_for_the_time_of_a_lease(world):
    """Until then it does not know whether owners could reach Redis to renew their leases."""
    gateway, owner, started = world.connector(), world.replica(TALKERS, "a"), world.connector(settled=False)
    _, claim = await world.submit_claimed(gateway, owner)
    await world.age(TALKERS, "a", 61)
    assert list(await started.consumer(TALKERS, "b").take_over(1)) == []
    assert list(await owner.refresh([claim.entry_id])) == []


async def test_only_one_of_many_replicas_takes_over(world):
    gateway, owner = world.connector(), world.replica(TALKERS, "a")
    await world.submit_claimed(gateway, owner)
    await world.age(TALKERS, "a", 61)
    others = [world.replica(TALKERS, f"b{index}") for index in range(4)]
    taken = await asyncio.gather(*(other.take_over(9) for other in others))
    assert sorted(len(claims) for claims in taken) == [0, 0, 0, 1]


async def test_take_over_returns_at_most_count_requests(world):
    gateway, owner, other = world.connector(), world.replica(TALKERS, "a"), world.replica(TALKERS, "b")
    for index in range(5):
        await world.submit(gateway, f"r{index}")
    assert len(await owner.claim(5)) == 5
    await world.age(TALKERS, "a", 61)
    assert len(await other.take_over(3)) == 3
    assert len(await other.take_over(3)) == 2


async def test_concurrent_scans_count_one_delivery(world):
    _, claim = await world.submit_claimed(world.connector(), world.replica(TALKERS, "a"))
    await world.age(TALKERS, "a", 61)
    restarted = world.replica(TALKERS, "a")
    results = await asyncio.gather(restarted.claim(1), restarted.take_over(5), restarted.take_over(5))
    assert [(found.entry_id, found.deliveries) for claims in results for found in claims] == [(claim.entry_id, 2)]


async def test_deliveries_are_counted_up_to_the_limit_and_beyond(world):
    gateway = world.connector()
    _, claim = await world.submit_claimed(gateway, world.replica(TALKERS, "0"))
    for life in range(1, MAX_DELIVERIES + 1):
        await world.age(TALKERS, str(life - 1), 61)
        (claim,) = await world.replica(TALKERS, str(life)).take_over(1)
        assert claim.deliveries == life + 1


async def test_deliveries_are_counted_since_the_last_progress(world):
    gateway, writer = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, writer.consumer(TALKERS, "1"))
    for frame in range(1, 3 * MAX_DELIVERIES):
        assert await writer.append(chained(claim, StreamKind.CODES, (Position(frame), Codes(b"")))) == [None]
        await world.age(TALKERS, str(frame), 61)
        (claim,) = await writer.consumer(TALKERS, str(frame + 1)).take_over(1)
        assert claim.deliveries == 1


async def test_a_restarted_replica_finds_its_own_claims_at_once(world):
    gateway = world.connector()
    _, claim = await world.submit_claimed(gateway, world.replica(TALKERS, "stable"))
    (again,) = await world.replica(TALKERS, "stable").take_over(9)
    assert (again.entry_id, again.deliveries) == (claim.entry_id, 2)


async def test_a_forgotten_claim_is_delivered_again_after_its_lease_expires(world):
    gateway, owner = world.connector(), world.replica(TALKERS, "a")
    _, claim = await world.submit_claimed(gateway, owner)
    owner.forget(claim.request.id)
    await owner.refresh([])
    assert list(await owner.take_over(9)) == [], "it was delivered just now"
    await world.raw.xclaim(world.keys.requests, TALKERS, "a", 0, [claim.entry_id], idle=61_000, justid=True)
    owner._released_at -= CHECK_SECONDS
    await owner.refresh([])
    (again,) = await world.replica(TALKERS, "b").take_over(9)
    assert (again.entry_id, again.deliveries) == (claim.entry_id, 2)


async def test_a_delivery_to_a_process_that_has_been_replaced_is_handed_over(world):
    """Redis may serve the blocking read of a process whose machine has crashed after its successor has started."""
    gateway, owner = world.connector(), world.replica(TALKERS, "a")
    await owner.take_over(1)
    await world.submit(gateway)
    await world.raw.xreadgroup(TALKERS, "a", {world.keys.requests: ">"})
    await owner.refresh([])
    (pending,) = await world.raw.xpending_range(world.keys.requests, TALKERS, "-", "+", 1)
    await world.raw.xclaim(world.keys.requests, TALKERS, "a", 0, [pending["message_id"]], idle=61_000, justid=True)
    owner._released_at -= CHECK_SECONDS
    await owner.refresh([])
    (claim,) = await world.replica(TALKERS, "b").take_over(1)
    assert claim.request.id == "one"


@pytest.mark.virtual
async def test_a_refresh_checks_a_few_of_many_claims_in_turn(world):
    gateway, owner = world.connector(), world.replica(TALKERS, "a")
    for number in range(3 * MIN_CHECKED):
        await world.submit(gateway, f"r{number}")
    held = [claim.entry_id for claim in await owner.claim(3 * MIN_CHECKED)]
    await asyncio.sleep(owner._lease_ms / 500 + 1)
    await owner.refresh(held)
    for entry_id in held:
        await world.raw.xack(world.keys.requests, TALKERS, entry_id)
        await world.raw.xdel(world.keys.requests, entry_id)
    lost = [set(await owner.refresh(held[:])) for _ in range(3)]
    assert [len(each) for each in lost] == [MIN_CHECKED, 2 * MIN_CHECKED, 3 * MIN_CHECKED]
    assert lost[-1] == set(held)


@pytest.mark.virtual
async def test_a_refresh_checks_no_claim_whose_output_was_just_checked(world):
    gateway, connector = world.connector(), world.connector()
    owner = connector.consumer(TALKERS, "a")
    _, written = await world.submit_claimed(gateway, owner, "written")
    _, idle = await world.submit_claimed(gateway, owner, "idle")
    held = [written.entry_id, idle.entry_id]
    await asyncio.sleep(owner._lease_ms / 500 + 1)
    assert await connector.append(chained(written, StreamKind.CODES, (Position(1), Codes(b"")))) == [None]
    await owner.refresh(held)
    assert [claim.request.id for claim in owner._to_check(held)] == ["idle"]
    await asyncio.sleep(TOUCH_SECONDS)
    assert {claim.request.id for claim in owner._to_check(held)} == {"written", "idle"}


async def test_a_consumer_that_is_long_gone_is_forgotten(world):
    gone, other = world.replica(TALKERS, "gone"), world.replica(TALKERS, "b")
    await world.submit_claimed(world.connector(), gone)
    await world.age(TALKERS, "gone", GONE_SECONDS + 1)
    assert len(await other.take_over(1)) == 1, "but not its claims"
    assert list(await other.take_over(1)) == []
    assert {each["name"] for each in await world.raw.xinfo_consumers(world.keys.requests, TALKERS)} == {b"b"}
    assert await world.raw.zrangebyscore(world.keys.leases(TALKERS), "-inf", "+inf") == [b"b"]


async def test_handover_is_immediate_and_not_counted(world):
    gateway, owner, other = world.connector(), world.replica(TALKERS, "a"), world.replica(TALKERS, "b")
    _, claim = await world.submit_claimed(gateway, owner)
    await owner.hand_over([claim.entry_id])
    (taken,) = await other.take_over(1)
    assert (taken.entry_id, taken.deliveries) == (claim.entry_id, 1)
    await owner.hand_over([claim.entry_id])
    assert list(await other.refresh([claim.entry_id])) == [], "only an owner can hand over"


async def test_a_request_finished_by_a_codec_first_is_not_claimed_by_a_talker(world):
    gateway, process = world.connector(), world.connector()
    await world.submit(gateway, "one")
    (claim,) = await process.consumer(CODECS, "c").claim(1)
    await process.append([end(claim, StreamKind.AUDIO)])
    await world.submit(gateway, "two")
    assert [claim.request.id for claim in await world.replica(TALKERS, "t").claim(9)] == ["two"]


async def test_release_ends_the_claims(world):
    gateway, talker, codec = world.connector(), world.replica(TALKERS, "t"), world.replica(CODECS, "c")
    ticket, claim = await world.submit_claimed(gateway, talker)
    await codec.claim(1)
    await gateway.release(ticket)
    for consumer in (talker, codec):
        assert list(await consumer.refresh([claim.entry_id])) == [claim.entry_id]
        assert list(await consumer.take_over(9)) == []
    assert await world.left() == set()


@pytest.mark.parametrize("group", WORKERS)
async def test_a_request_that_expired_in_the_queue_is_skipped(world, group):
    gateway = world.connector()
    await world.submit(gateway, "dead")
    await world.expire("dead")
    await world.submit(gateway, "alive")
    consumer = world.replica(group, "x")
    assert [claim.request.id for claim in await consumer.claim(1) or await consumer.claim(1)] == ["alive"]
    assert await world.raw.xlen(world.keys.requests) == 1


@pytest.mark.parametrize("group", WORKERS)
async def test_a_claimed_request_that_expired_leaves_the_queue_of_both_groups(world, group):
    gateway, owner = world.connector(), world.replica(group, "a")
    _, claim = await world.submit_claimed(gateway, owner, "one")
    await world.expire("one")
    assert list(await owner.refresh([claim.entry_id])) == [claim.entry_id]
    assert await world.left() == set()


async def test_an_expired_request_is_neither_taken_over_nor_kept(world):
    gateway, owner, other = world.connector(), world.replica(CODECS, "a"), world.replica(CODECS, "b")
    for request_id in ("one", "two"):
        await world.submit_claimed(gateway, owner, request_id)
    claims = await world.replica(CODECS, "a").take_over(9)
    await world.expire("one")
    await world.expire("two")
    assert list(await owner.refresh([claims[0].entry_id])) == [claims[0].entry_id]
    await world.age(CODECS, "a", 61)
    assert list(await other.take_over(9)) == []
    await world.replica(TALKERS, "t").claim(9)
    assert await world.left() == set()


async def test_an_interrupted_claim_loses_no_request(world):
    gateway, consumer = world.connector(), world.replica(TALKERS, "t")
    sent = [f"r{index}" for index in range(40)]
    got = []

    async def claim_all():
        while len(got) < len(sent):
            got.extend(claim.request.id for claim in await consumer.claim(3))

    claiming = asyncio.create_task(claim_all())
    for request_id in sent:
        submitting = asyncio.create_task(world.submit(gateway, request_id))
        await asyncio.sleep(0)
        consumer.interrupt()
        await submitting
    await claiming
    assert got == sent


async def test_a_cancelled_claim_loses_no_request(world):
    gateway, consumer = world.connector(), world.replica(TALKERS, "t")
    got = []
    for index in range(40):
        claiming = asyncio.create_task(consumer.claim(1))
        submitting = asyncio.create_task(world.submit(gateway, f"r{index}"))
        for _ in range(10 * (index % 8)):
            await asyncio.sleep(0)
        claiming.cancel()
        (claims,) = await asyncio.gather(claiming, return_exceptions=True)
        got += [] if isinstance(claims, asyncio.CancelledError) else claims
        await submitting
    while len(got) < 40:
        got += await consumer.claim(5)
    assert [claim.request.id for claim in got] == [f"r{index}" for index in range(40)]
    assert {claim.deliveries for claim in got} == {1}


async def test_close_ends_a_waiting_claim_and_hands_over_undelivered_requests(world, until):
    gateway, leaving = world.connector(), world.replica(TALKERS, "a")
    claiming = asyncio.create_task(leaving.claim(1))
    await until(lambda: waits(leaving))
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    await world.submit(gateway)
    await leaving.close()
    other = world.replica(TALKERS, "b")
    claims = await other.take_over(1) or await other.claim(1)
    assert [(claim.request.id, claim.deliveries) for claim in claims] == [("one", 1)]

    waiting = asyncio.create_task(other.claim(1))
    await asyncio.sleep(0)
    await other.close()
    assert list(await waiting) == []
    assert list(await other.claim(1)) == []


@pytest.mark.parametrize("group", WORKERS)
async def test_a_group_has_a_live_consumer_while_a_replica_scans_or_refreshes(world, group):
    gateway, other = world.connector(), [each for each in WORKERS if each is not group]
    assert not await gateway.has_live_consumer(group, 5)
    first, second = world.replica(group, "a"), world.replica(group, "b")
    _, claim = await world.submit_claimed(gateway, first)
    for sign_of_life in (first.take_over(1), second.take_over(1), first.refresh([claim.entry_id])):
        for name in ("a", "b"):
            await world.age(group, name, 6)
        assert not await gateway.has_live_consumer(group, 5)
        await sign_of_life
        assert await gateway.has_live_consumer(group, 5)
        assert not any([await gateway.has_live_consumer(each, 5) for each in other])


async def test_a_replica_that_left_is_not_a_live_consumer(world):
    gateway, leaving = world.connector(), world.replica(TALKERS, "a")
    await leaving.take_over(1)
    await leaving.close()
    assert not await gateway.has_live_consumer(TALKERS, 5)


async def waits(consumer):
    return consumer._blocking._sent
