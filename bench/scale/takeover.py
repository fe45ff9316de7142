"""The scan for requests to take over, while another replica serves many and renews its lease."""

import asyncio
import statistics

from redis import Redis

from redis_bench.redis_time import private_redis
from redis_bench.requests import claim, connected, submit
from syrinx_stages.connector.redis.consumer import RedisConsumer
from syrinx_stages.contract.stages import Stage

PENDING = (100, 1_000, 10_000)
SCANS = 300
RUNS = 3


def measure() -> dict[int, list[float]]:
    """Returns the microseconds that a scan takes in Redis, of each run, by pending claims."""
    with private_redis() as (url, client):
        return {count: [asyncio.run(_scan(url, client, count)) for _ in range(RUNS)] for count in PENDING}


async def _scan(url: str, client: Redis, pending: int) -> float:
    client.flushall()
    async with connected(url) as [connector]:
        owner, other = (connector.consumer(Stage.TALKER, name) for name in ("owner", "other"))
        await other.take_over(1)
        claims: list[str] = []
        while len(claims) < pending:
            await submit(connector, range(len(claims), len(claims) + 100))
            claims += [each.entry_id for each in await claim(owner, 100)]
        return await _time_of_scan(client, owner, other, claims)


async def _time_of_scan(client: Redis, owner: RedisConsumer, other: RedisConsumer, claims: list[str]) -> float:
    """Returns the median of batches: the time of a command includes that in which Redis was not running."""
    times: list[float] = []
    for _ in range(SCANS // 10):
        for start in range(0, len(claims), 1_000):
            await owner.refresh(claims[start : start + 1_000])
        client.config_resetstat()
        for _ in range(10):
            taken = await other.take_over(8)
            assert not taken, "the owner is alive"
        scripts = client.info("commandstats")["cmdstat_evalsha"]
        times.append(scripts["usec"] / scripts["calls"])
    return statistics.median(times)
