"""Admission by expected wait: capacity reports, refusals, and withdrawal of what has waited.

In virtual time: a report counts for two seconds, and how fast requests arrive decides.
"""

import asyncio
import contextlib
import random
from types import SimpleNamespace

import pytest

from syrinx_operator.tuner.model.playing import Queue, Request
from syrinx_stages.connector.base import Capacity, QueueFull
from syrinx_stages.connector.redis.scripts import TURN_SECONDS
from syrinx_stages.contract.keys import StreamKind
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.contract.stages import WORKERS, Stage

pytestmark = pytest.mark.virtual
ADMISSION = GatewaySettings(max_queue=100, max_queue_seconds=2.0)


async def fill(world, gateway, count, start=0):
    """Submits `count` requests. Returns the first that is refused with its number, or None."""
    for number in range(start, start + count):
        try:
            await gateway.submit(world.request(f"r{number}"), ADMISSION)
        except QueueFull as error:
            return number, error
    return None


async def serve_one(world, gateway):
    """Submits a request that a talker claims, so that the replicas are not idle."""
    await gateway.submit(world.request("served"), ADMISSION)
    assert len(await world.replica(Stage.TALKER, "busy").claim(1)) == 1


async def test_an_idle_service_refuses_nobody(world):
    """The last report of a replica may be older than the end of its last request, which a client follows up at once."""
    gateway, talker, codec = world.connector(), world.replica(Stage.TALKER, "t"), world.replica(Stage.CODEC, "c")
    for number in range(5):
        for replica in (talker, codec):
            await replica.report(Capacity(free=0, requests_per_second=0.1))
        assert (await gateway.queue()).expected_seconds == 0
        assert await fill(world, gateway, 1, start=number) is None
        assert await fill(world, gateway, 1, start=100 + number) is not None, "the next one finds it busy"
        [claim] = await talker.claim(10)
        await finish(world, claim)


async def test_without_reports_only_age_and_count_limit_the_queue(world):
    gateway = world.connector()
    assert await fill(world, gateway, 50) is None
    assert (await gateway.queue()).expected_seconds == 0


async def test_a_request_is_refused_if_it_is_expected_to_wait_too_long(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await talker.report(Capacity(free=3, requests_per_second=2.0))
    # Three at once, and two more within half of the limit.
    number, error = await fill(world, gateway, 20)
    assert number == 5
    assert error.retry_after == pytest.approx(1.5, abs=0.01)
    assert "wait for a talker is 1.50 s, and only a part of maxQueueSeconds (2 s) is granted while" in str(error)
    assert "retry in 2 s; to admit more requests, add replicas or raise maxQueueSeconds" in str(error)
    assert (await gateway.queue()).expected_seconds == pytest.approx(1.5, abs=0.01)


async def test_during_an_overload_the_queue_stays_short(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await talker.report(Capacity(free=0, requests_per_second=10.0))
    number, _ = await fill(world, gateway, 50)
    assert number == 10
    for number in range(20):
        await fill(world, gateway, 1, start=50 + number)
    # The burst is served; the overload is not over yet.
    assert len(await talker.claim(100)) == 10
    refused, error = await fill(world, gateway, 50, start=100)
    assert refused == 102
    assert error.retry_after == 1.0
    assert len(await talker.claim(100)) == 2
    await talker.report(Capacity(free=0, requests_per_second=2.0))
    assert (await fill(world, gateway, 2, start=150))[0] == 151, "one may wait alone, for half of the limit"
    assert len(await talker.claim(100)) == 1
    await talker.report(Capacity(free=0, requests_per_second=0.9))
    assert await fill(world, gateway, 1, start=160) is not None, "but not for longer"
    # A quarter of a minute later it is. No request waits.
    await asyncio.sleep(15)
    await talker.report(Capacity(free=0, requests_per_second=10.0))
    refused, _ = await fill(world, gateway, 50, start=200)
    assert refused == 210


async def test_a_burst_at_a_low_rate_is_no_overload(world):
    """At half of what is served, a request may wait until another one has ended."""
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    for number in range(20):
        await talker.report(Capacity(free=0, requests_per_second=2.0))
        assert await fill(world, gateway, 1, start=number) is None
        assert len(await talker.claim(1)) == 1
        await asyncio.sleep(1)


@pytest.mark.parametrize(("rate", "admitted"), [(0.6, True), (0.4, False)])
async def test_one_request_may_wait_for_all_of_max_queue_seconds(world, rate, admitted):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await serve_one(world, gateway)
    await asyncio.sleep(15)
    await talker.report(Capacity(free=0, requests_per_second=rate))
    number = (await fill(world, gateway, 2))[0]
    assert number == (1 if admitted else 0)


async def test_a_queue_that_stands_does_not_grow(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await talker.report(Capacity(free=0, requests_per_second=10.0))
    assert await fill(world, gateway, 6) is None
    await asyncio.sleep(0.5)
    await talker.report(Capacity(free=0, requests_per_second=10.0))
    assert await fill(world, gateway, 1, start=100) is not None
    assert len(await talker.claim(100)) == 6
    assert await fill(world, gateway, 1, start=200) is None


async def test_only_a_request_that_no_talker_has_claimed_can_be_withdrawn(world):
    gateway, talker, codec = world.connector(), world.replica(Stage.TALKER, "t"), world.replica(Stage.CODEC, "c")
    claimed, waiting = [await gateway.submit(world.request(name), ADMISSION) for name in ("one", "two")]
    assert len(await talker.claim(1)) == 1
    assert len(await codec.claim(2)) == 2
    assert not await gateway.withdraw(claimed)
    assert await gateway.withdraw(waiting)
    assert (await gateway.queue()).length == 0
    assert await gateway.last_position("one", StreamKind.AUDIO) is not None
    assert await gateway.last_position("two", StreamKind.AUDIO) is None
    await gateway.release(claimed)
    await gateway.release(waiting)
    assert await world.left() == set()


def of(world, client, number):
    return world.request(f"{client}-{number}", client=client)


async def test_a_client_that_holds_more_makes_room_for_another(world):
    gateway, talker, codec = world.connector(), world.replica(Stage.TALKER, "t"), world.replica(Stage.CODEC, "c")
    await talker.report(Capacity(free=2, requests_per_second=1.0))
    for number in range(3):
        await gateway.submit(of(world, "greedy", number), ADMISSION)
    assert len(await codec.claim(10)) == 3
    await gateway.submit(of(world, "modest", 0), ADMISSION)
    [(_, cancelled)] = await world.raw.xrange(world.keys.control)
    assert cancelled == {b"d": b"greedy-2"}
    claims = await talker.claim(10)
    assert [claim.request.id for claim in claims] == ["greedy-0", "greedy-1", "modest-0"]
    assert (await world.raw.xpending(world.keys.requests, Stage.CODEC))["pending"] == 2


async def test_requests_in_progress_count_toward_a_clients_share(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await talker.report(Capacity(free=0, requests_per_second=1.0))
    await gateway.submit(of(world, "greedy", 0), ADMISSION)
    assert len(await talker.claim(10)) == 1
    await gateway.submit(of(world, "greedy", 1), ADMISSION)
    await gateway.submit(of(world, "modest", 0), ADMISSION)
    assert [claim.request.id for claim in await talker.claim(10)] == ["modest-0"]


async def test_equal_shares_displace_nobody(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await talker.report(Capacity(free=1, requests_per_second=1.0))
    for client in ("one", "two"):
        await gateway.submit(of(world, client, 0), ADMISSION)
    for client in ("one", "two", "three"):
        with pytest.raises(QueueFull):
            await gateway.submit(of(world, client, 1), ADMISSION)
    assert (await gateway.queue()).length == 2


async def test_a_flood_leaves_another_client_its_share(world):
    """One request of the modest client for ten of the greedy one; four are served at a time."""
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    serving, served = [], 0
    for number in range(200):
        await talker.report(Capacity(free=0, requests_per_second=5.0))
        with contextlib.suppress(QueueFull):
            await gateway.submit(of(world, "greedy", number), ADMISSION)
        if number % 10 == 0:
            with contextlib.suppress(QueueFull):
                await gateway.submit(of(world, "modest", number), ADMISSION)
            serving += await talker.claim(1)
        if len(serving) > 4:
            await talker.finish(serving[0].entry_id)
            await world.replica(Stage.CODEC, "c").finish(serving[0].entry_id)
            served += serving.pop(0).request.client == "modest"
    # Of 16 served requests. Without shares, the greedy client would take every place.
    assert served >= 4


async def finish(world, claim):
    for group in WORKERS:
        await world.replica(group, f"{group}-0").finish(claim.entry_id)


async def serve_one_and_refuse(world, gateway, talker, *clients):
    """A request of the greedy client is served; meanwhile one of each client is refused."""
    await talker.report(Capacity(free=1, requests_per_second=0.2))
    await gateway.submit(of(world, "greedy", 0), ADMISSION)
    [claim] = await talker.claim(10)
    await talker.report(Capacity(free=0, requests_per_second=0.2))
    for client in clients:
        with pytest.raises(QueueFull):
            await gateway.submit(of(world, client, 1), ADMISSION)
    await finish(world, claim)


async def test_a_refused_client_gets_the_next_place_of_one_that_holds_more(world):
    """Clients with fewer requests are not affected, and a turn ends when it is used."""
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await serve_one_and_refuse(world, gateway, talker, "greedy", "modest")
    await talker.report(Capacity(free=5, requests_per_second=0.2))
    with pytest.raises(QueueFull) as refused:
        await gateway.submit(of(world, "greedy", 2), ADMISSION)
    assert str(refused.value) == ("a client with fewer requests was refused, and its next one goes first; retry in 1 s")
    await gateway.submit(of(world, "other", 0), ADMISSION)
    await gateway.submit(of(world, "modest", 2), ADMISSION)
    await gateway.submit(of(world, "greedy", 3), ADMISSION)


async def test_a_turn_that_is_not_used_expires(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await serve_one_and_refuse(world, gateway, talker, "modest")
    with pytest.raises(QueueFull, match="goes first"):
        await gateway.submit(of(world, "greedy", 1), ADMISSION)
    await asyncio.sleep(TURN_SECONDS)
    await gateway.submit(of(world, "greedy", 1), ADMISSION)


@pytest.mark.parametrize("seed", range(20))
async def test_the_tuners_model_admits_what_redis_admits(world, seed):
    """A talker has some room and claims at its rate; more or fewer requests than that come, alone or in bursts."""
    draw = random.Random(seed)
    rate, free = 10 ** draw.uniform(-0.5, 1), draw.uniform(-1, 3)
    interval, at, requests = draw.choice((0.3, 1.0, 3.0)) / rate, 0.0, []
    while len(requests) < 80:
        at += draw.expovariate(1 / interval)
        requests += [Request(at, "Base", 50)] * draw.choice((1, 1, 1, 4))
    model_talker = SimpleNamespace(speed=SimpleNamespace(requests_per_second=rate), spare=free)
    model = Queue(requests, ADMISSION.max_queue_seconds, [model_talker])
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    await serve_one(world, gateway)
    await asyncio.sleep(20)
    start, claim_at, waiting, real, modelled = asyncio.get_running_loop().time(), 0.0, [], [], []

    async def go_on_until(at):
        await asyncio.sleep(start + at - asyncio.get_running_loop().time())
        while waiting and waiting[0][0] < at - ADMISSION.max_queue_seconds:
            assert await gateway.withdraw(waiting.pop(0)[1])

    for number, request in enumerate(requests):
        while claim_at < request.accepted:
            await go_on_until(claim_at)
            real += waiting[:1] and [claim.request.id for claim in await talker.claim(1)]
            modelled += [f"r{model.take()}"] if model.has_any(claim_at) else []
            del waiting[:1]
            claim_at += 1 / rate
        await go_on_until(request.accepted)
        await talker.report(Capacity(free=free, requests_per_second=rate))
        with contextlib.suppress(QueueFull):
            ticket = await gateway.submit(world.request(f"r{number}"), ADMISSION)
            waiting.append((request.accepted, ticket))
    assert real == modelled
