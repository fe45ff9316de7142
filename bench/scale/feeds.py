"""The inboxes of codes: what a written entry costs Redis, by the number of readers that share the streams."""

import asyncio

from redis import Redis

from redis_bench.redis_time import private_redis, redis_seconds
from redis_bench.requests import claim, connected, submit
from syrinx_stages.connector.base import Append
from syrinx_stages.connector.redis.reader import RedisReader
from syrinx_stages.contract.keys import STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Codes
from syrinx_stages.contract.stages import Stage

READERS = (1, 4, 16, 48)
STREAMS = 48
STEPS = 100
STEP_SECONDS = 0.01


def measure() -> dict[int, float]:
    """Returns the microseconds of Redis's processor time for each entry, by the number of readers."""
    with private_redis() as (url, client):
        return {readers: asyncio.run(_cost(url, client, readers)) for readers in READERS}


async def _cost(url: str, client: Redis, readers: int) -> float:
    """One writer writes an entry to every stream in each step. Each stream has one reader."""
    client.flushall()
    async with connected(url, 1 + readers) as [talker, *codecs]:
        await submit(talker, range(STREAMS))
        claims = await claim(talker.consumer(Stage.TALKER, "writer"), STREAMS)
        remaining, all_read = STEPS * STREAMS, asyncio.Event()

        async def read(reader: RedisReader) -> None:
            nonlocal remaining
            while events := await reader.read():
                remaining -= len(events)
                if remaining <= 0:
                    all_read.set()

        tasks = []
        for number, connector in enumerate(codecs):
            reader = connector.reader()
            for each in claims[number::readers]:
                reader.subscribe(each.request.id, StreamKind.CODES, STREAM_CREATED)
            tasks.append(asyncio.create_task(read(reader)))
        await asyncio.sleep(0.5)
        before = redis_seconds(client)
        last = {each.request.id: each.fence.start(StreamKind.CODES) for each in claims}
        for step in range(1, STEPS + 1):
            appends = [
                Append(each.request.id, StreamKind.CODES, Position(step), Codes(bytes(32)), each.fence, after)
                for each, after in zip(claims, last.values(), strict=True)
            ]
            assert not any(await talker.append(appends))
            last = dict.fromkeys(last, Position(step))
            await asyncio.sleep(STEP_SECONDS)
        async with asyncio.timeout(10):
            await all_read.wait()
        return 1e6 * (redis_seconds(client) - before) / (STEPS * STREAMS)
