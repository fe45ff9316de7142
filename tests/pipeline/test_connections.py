"""Real processes under load: how many connections each has to the Redis of a cell, and under which name."""

import asyncio
from collections import Counter
from pathlib import Path

import httpx
import redis.asyncio

from support.local_pipeline import local_pipeline, replicated
from support.waiting import DEADLINE
from syrinx_operator.local.pipeline import LocalPipeline

TEXT = "The old teacher carried seven green apples before breakfast."
MAX_CONNECTIONS = 4
REQUESTS = 12


def redis_of(pipeline: LocalPipeline) -> redis.asyncio.Redis:
    """Returns a client of the Redis of a pipeline with one cell."""
    gateway = next(child for child in pipeline.processes if child.stage == "gateway")
    variables = dict(
        each.split("=", 1) for each in Path(f"/proc/{gateway.pid}/environ").read_text().split("\0") if "=" in each
    )
    return redis.asyncio.from_url(variables["REDIS_URL"], password=variables["REDIS_PASSWORD"])


async def test_a_process_has_at_most_four_connections_to_a_cell(tmp_path: Path) -> None:
    async with (
        local_pipeline(replicated("wide", talker=2, codec=2), directory=tmp_path) as pipeline,
        httpx.AsyncClient(base_url=pipeline.gateway_url, timeout=DEADLINE, trust_env=False) as client,
        redis_of(pipeline) as store,
    ):

        async def say(seed: int) -> None:
            body = {"input": TEXT, "response_format": "pcm", "stream": True, "seed": seed}
            (await client.post("/v1/audio/speech", json=body)).raise_for_status()

        most, purposes = Counter[str](), set[str]()
        loads = [asyncio.create_task(say(seed)) for seed in range(REQUESTS)]
        while not all(task.done() for task in loads):
            names = [each["name"] for each in await store.client_list() if each["name"]]
            most |= Counter(name.rpartition(":")[0] for name in names)
            purposes |= {name.rpartition(":")[2] for name in names}
            await asyncio.sleep(0.01)
        await asyncio.gather(*loads)
        processes = {child.name for child in pipeline.processes}
        assert set(most) == processes, "Redis lists every process by its name"
        assert max(most.values()) <= MAX_CONNECTIONS, most
        assert purposes == {"inbox", "claims", "scripts", "others"}
        unnamed = [each for each in await store.client_list() if not each["name"]]
        assert len(unnamed) == 1, "the one of this test"
