"""Capacity reports: what replicas of a group can serve together, kept as sums."""

import asyncio
import math
import random
import time

import pytest

from syrinx_stages.connector.base import Capacity
from syrinx_stages.contract.stages import WORKERS, Stage


def room(reports):
    """Returns the requests that codecs can take, by their reports."""
    whole = sum(max(math.floor(report.free), 0) for report in reports)
    return whole or min(sum(report.free for report in reports), 0.9)


def expected_wait(groups):
    """Returns the expected wait of a request behind another one, in seconds, by the reports of each group."""
    seconds = 0.0
    for reports in groups:
        rate = sum(report.requests_per_second for report in reports)
        if rate > 0 and sum(max(math.floor(report.free), 0) for report in reports) < 2:
            seconds = max(seconds, (2 - sum(report.free for report in reports)) / rate)
    return seconds


class Reporters:
    """Replicas with the last report of each."""

    def __init__(self, world):
        self.world, self.replicas, self.reports = world, {}, {}

    async def report(self, group, name, capacity):
        if (group, name) not in self.replicas:
            self.replicas[group, name] = self.world.replica(group, name)
        self.reports[group, name] = capacity
        return await self.replicas[group, name].report(capacity)

    async def leave(self, group, name):
        if (replica := self.replicas.pop((group, name), None)) is not None:
            del self.reports[group, name]
            await replica.take_over(1)
            await replica.close()

    def of(self, group):
        """Returns the reports of a group."""
        return [capacity for (each, _), capacity in self.reports.items() if each is group]


@pytest.mark.virtual
@pytest.mark.parametrize("seed", range(4))
async def test_the_sums_are_those_of_the_last_report_of_each_replica(world, seed):
    chance, gateway, reporters = random.Random(seed), world.connector(), Reporters(world)
    await world.submit(gateway)
    for _ in range(60):
        group, name = chance.choice(WORKERS), chance.choice("abc")
        if chance.random() < 0.1:
            await reporters.leave(group, name)
        else:
            free, rate = chance.choice((chance.randint(-20, 20) / 10, 0.7125)), chance.choice((0.0, 0.25, 0.333))
            codecs_free = await reporters.report(group, name, Capacity(free, rate))
            codecs = reporters.of(Stage.CODEC)
            expects_room = codecs and group is Stage.TALKER
            assert codecs_free == (pytest.approx(room(codecs), abs=0.005) if expects_room else None)
        groups = [reporters.of(each) for each in WORKERS]
        assert (await gateway.queue()).expected_seconds == pytest.approx(expected_wait(groups), abs=0.05)


async def expected_seconds(gateway):
    return (await gateway.queue()).expected_seconds


@pytest.mark.virtual
async def test_a_report_counts_for_two_seconds(world):
    """Neither other reports nor submissions and measurements make it count longer, or less long."""
    gateway, talker, other = world.connector(), world.replica(Stage.TALKER, "t"), world.replica(Stage.TALKER, "u")
    await world.submit(gateway)
    await talker.report(Capacity(free=-3, requests_per_second=1.0))
    for _ in range(19):
        await asyncio.sleep(0.1)
        await other.report(Capacity(free=0, requests_per_second=1.0))
        assert await expected_seconds(gateway) == pytest.approx(2.5)
    await asyncio.sleep(0.2)
    assert await expected_seconds(gateway) == pytest.approx(2.0)
    assert await world.raw.hget(world.keys.capacity, "talker:t") is None
    assert await world.raw.hget(world.keys.capacity, "talker:u") is not None


async def test_a_clock_that_a_fail_over_has_put_back_does_not_keep_reports(world):
    gateway, talker, other = world.connector(), world.replica(Stage.TALKER, "t"), world.replica(Stage.TALKER, "u")
    await world.submit(gateway)
    later = 1000 * (time.time() + 60)
    await world.raw.hset(world.keys.capacity, mapping={"talker:t": b"%d 1 1" % later, "talker:u": b"%d 1 1" % later})
    await world.raw.hdel(world.keys.capacity, "due")
    for replica in (talker, other):
        await replica.report(Capacity(free=0, requests_per_second=1.0))
    assert int(await world.raw.hget(world.keys.capacity, "due")) < 1000 * (time.time() + 3)
