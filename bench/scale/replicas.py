"""What grows with the numbers of replicas and of waiting requests: Redis's time for reports, submissions and feeds.

All times are processor time of the server, in microseconds.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from redis import Redis

from redis_bench.redis_time import private_redis, redis_seconds
from redis_bench.requests import claim, connected, name, submit
from syrinx_stages.connector.base import Capacity
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.keys import STREAM_START, StreamKind
from syrinx_stages.contract.stages import Stage

REPLICAS = (16, 64, 256, 1024)
WAITING = (0, 256, 1024)
READERS = (1, 4, 16, 64)
REPORTS = 2_048
SUBMISSIONS = 200
PLAYBACK_REPORTS = 200


def measure_reports() -> dict[int, float]:
    """Returns the cost of a capacity report, by the number of replicas that report."""
    return {replicas: _measure(_reports, replicas) for replicas in REPLICAS}


def measure_submissions() -> dict[int, float]:
    """Returns the cost of a submission, by the number of requests that wait."""
    return {waiting: _measure(_submissions, waiting) for waiting in WAITING}


def measure_refusals() -> dict[int, float]:
    """Returns the cost of a submission that is refused because as many requests as allowed wait."""
    return {waiting: _measure(_submissions, waiting, True) for waiting in WAITING if waiting}


def measure_playback() -> dict[int, float]:
    """Returns the cost of a playback report, by the number of talkers in the cell."""
    return {readers: _measure(_playback, readers) for readers in READERS}


def _measure(cost: Callable[..., Coroutine[Any, Any, float]], *arguments: int) -> float:
    with private_redis() as (url, client):
        return round(asyncio.run(cost(client, url, *arguments)), 1)


async def _reports(client: Redis, url: str, replicas: int) -> float:
    """Rounds in which every replica reports, after one that does not count."""
    async with connected(url) as [connector]:
        groups = (Stage.TALKER, Stage.CODEC)
        consumers = [connector.consumer(groups[number % 2], f"replica-{number}") for number in range(replicas)]
        for number in range(1 + REPORTS // replicas):
            if number == 1:
                before = redis_seconds(client)
            await asyncio.gather(*(consumer.report(Capacity(4.0, 1.0)) for consumer in consumers))
        return 1e6 * (redis_seconds(client) - before) / REPORTS


async def _submissions(client: Redis, url: str, waiting: int, refused: bool = False) -> float:
    async with connected(url) as [connector]:
        await submit(connector, range(waiting))
        limit = waiting if refused else waiting + SUBMISSIONS
        before = redis_seconds(client)
        admitted = await submit(connector, range(waiting, waiting + SUBMISSIONS), limit)
        assert admitted == (0 if refused else SUBMISSIONS)
        return 1e6 * (redis_seconds(client) - before) / SUBMISSIONS


async def _playback(client: Redis, url: str, readers: int) -> float:
    """A gateway reports one request; every talker reads, and one of them needs the report."""
    async with connected(url, 1 + readers) as [gateway, *talkers]:
        await submit(gateway, range(readers))
        await claim(gateway.consumer(Stage.TALKER, "talker"), readers)
        seen = asyncio.Event()

        async def read(number: int, connector: RedisConnector) -> None:
            reader = connector.reader()
            reader.subscribe(name(number), StreamKind.PLAYBACK, STREAM_START)
            while await reader.read():
                if number == 0:
                    seen.set()

        tasks = [asyncio.create_task(read(*each)) for each in enumerate(talkers)]
        await gateway.report_playback({name(number): 1 for number in range(readers)})
        await asyncio.wait_for(seen.wait(), 10)
        await asyncio.sleep(0.5)
        before = redis_seconds(client)
        for frames in range(2, 2 + PLAYBACK_REPORTS):
            seen.clear()
            await gateway.report_playback({name(0): frames})
            await asyncio.wait_for(seen.wait(), 10)
            await asyncio.sleep(0.01)
        spent = redis_seconds(client) - before
        for task in tasks:
            task.cancel()
        return 1e6 * spent / PLAYBACK_REPORTS
