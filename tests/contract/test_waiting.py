"""The index of the requests that no talker has claimed is exact, and recovers from whatever it has missed."""

import random

import pytest

from support.memory_redis.values import entry_id
from syrinx_stages.connector.base import QueueFull
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.contract.stages import Stage

ADMISSION = GatewaySettings(max_queue=6, max_queue_seconds=60.0)


async def waiting(world):
    """Returns the number of requests after the last one that the talkers were delivered."""
    groups = await world.raw.xinfo_groups(world.keys.requests)
    last = next(group["last-delivered-id"] for group in groups if group["name"] == b"talker")
    return sum(entry_id(at) > entry_id(last) for at, _ in await world.raw.xrange(world.keys.requests))


@pytest.mark.parametrize("seed", range(4))
async def test_the_length_of_the_queue_is_the_number_of_waiting_requests(world, seed):
    """Whatever clients, talkers, codecs and other gateways do in between."""
    chance, gateway = random.Random(seed), world.connector()
    talker, codec = world.replica(Stage.TALKER, "t"), world.replica(Stage.CODEC, "c")
    tickets, claims = [], []
    await world.submit(gateway, "first")
    for number in range(120):
        match chance.choice(("submit", "submit", "claim", "finish", "release", "withdraw")):
            case "submit":
                request = world.request(f"r{number}", client=chance.choice(("", "greedy", "greedy", "modest")))
                try:
                    tickets.append(await gateway.submit(request, ADMISSION))
                except QueueFull as error:
                    assert f"{await waiting(world)} requests wait" in str(error)
            case "claim" if await waiting(world):
                claims += await talker.claim(chance.randint(1, 3))
            case "finish" if claims:
                await codec.finish(claims.pop(0).entry_id)
            case "release" if tickets:
                await gateway.release(tickets.pop(chance.randrange(len(tickets))))
            case "withdraw" if tickets:
                await gateway.withdraw(chance.choice(tickets))
        assert (await gateway.queue()).length == await waiting(world), f"after {number} steps"


async def test_the_index_keeps_nothing_of_requests_that_do_not_wait(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    for number in range(30):
        ticket = await world.submit(gateway, f"claimed-{number}")
        if number % 3:
            await talker.claim(1)
        else:
            await gateway.release(ticket)
    await world.submit(gateway, "last")
    assert await world.raw.zcount(world.keys.waiting, "-inf", "+inf") == 1


async def test_requests_that_codecs_end_before_a_talker_claims_them_count_until_the_queue_has_passed_them(world):
    gateway, talker, codec = world.connector(), world.replica(Stage.TALKER, "t"), world.replica(Stage.CODEC, "c")
    for number in range(4):
        await world.submit(gateway, f"r{number}")
    claims = await codec.claim(4)
    await codec.finish(claims[0].entry_id)
    assert (await gateway.queue()).length == 3, "what precedes the first waiting request never counts"
    await codec.finish(claims[2].entry_id)
    assert (await gateway.queue()).length == 3
    assert [claim.request.id for claim in await talker.claim(1)] == ["r1"]
    assert (await gateway.queue()).length == 1


async def test_a_request_that_has_ended_unnoticed_is_not_displaced(world):
    gateway, codec = world.connector(), world.replica(Stage.CODEC, "c")
    for number in range(6):
        await gateway.submit(world.request(f"r{number}", client="greedy"), ADMISSION)
    claims = await codec.claim(6)
    await codec.finish(claims[-1].entry_id)
    with pytest.raises(QueueFull):
        await gateway.submit(world.request("modest", client="modest"), GatewaySettings(max_queue=1))
    assert await world.raw.xlen(world.keys.control) == 0
    await gateway.submit(world.request("modest", client="modest"), ADMISSION)
    assert (await gateway.queue()).length == await waiting(world) == 6


async def test_without_its_index_the_queue_has_at_least_one_request_and_soon_its_length_again(world):
    gateway, talker = world.connector(), world.replica(Stage.TALKER, "t")
    for number in range(3):
        await world.submit(gateway, f"r{number}")
    await world.raw.delete(world.keys.waiting)
    assert (await gateway.queue()).length == 1
    await world.submit(gateway, "r3")
    await talker.claim(3)
    assert (await gateway.queue()).length == 1
    await world.submit(gateway, "r4")
    assert (await gateway.queue()).length == 2


async def test_a_queue_that_was_deleted_takes_its_index_along(world):
    gateway = world.connector()
    for number in range(3):
        await world.submit(gateway, f"r{number}")
    await world.raw.delete(world.keys.requests)
    await world.submit(gateway, "r3")
    assert (await gateway.queue()).length == 1
