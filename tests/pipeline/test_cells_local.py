"""`syrinx up` with cells: real processes, a bundled Redis for each cell, and one of these is killed under load."""

import asyncio
import os
import re
import signal
from pathlib import Path

import httpx
import redis.asyncio
from msgspec import structs

from support.local_pipeline import local_pipeline
from support.waiting import DEADLINE, until
from syrinx_operator.local.events import Event
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.connector import ConnectorSpec
from syrinx_operator.resource.spec import TTSPipeline, default_pipeline

TEXT = "The farmer found two heavy bags."
SEEDS = range(6)


def two_cells() -> TTSPipeline:
    default = default_pipeline("wide")
    talker, codec = (structs.replace(stage, replicas=2) for stage in (default.spec.talker, default.spec.codec))
    connector = ConnectorSpec(managed=True, cells=2)
    return structs.replace(default, spec=structs.replace(default.spec, talker=talker, codec=codec, connector=connector))


async def frames(client: httpx.AsyncClient, pipeline: LocalPipeline) -> dict[str, float]:
    """Returns how many frames each talker has generated."""
    found = {}
    for member in pipeline.members:
        if member.stage == "talker":
            text = (await client.get(f"{member.admin_url}/metrics")).text
            values = re.findall(r"^syrinx_frames_total{.*} (\S+)$", text, re.MULTILINE)
            found[member.name] = sum(map(float, values))
    return found


def redis_variables(pipeline: LocalPipeline) -> dict[str, str]:
    """Returns the environment of the gateway."""
    gateway = next(child for child in pipeline.processes if child.stage == "gateway")
    variables = Path(f"/proc/{gateway.pid}/environ").read_text().split("\0")
    return dict(each.split("=", 1) for each in variables if each)


async def redis_process(pipeline: LocalPipeline, cell: int) -> int:
    """Returns the process ID of a cell's Redis."""
    variables = redis_variables(pipeline)
    urls = variables["REDIS_URL"].split()
    assert len(urls) == len(set(urls)) == 2
    async with redis.asyncio.from_url(urls[cell], password=variables["REDIS_PASSWORD"]) as client:
        process: int = (await client.info("server"))["process_id"]
        return process


async def test_a_killed_redis_costs_no_request_that_has_not_begun(tmp_path: Path) -> None:
    events: list[Event] = []
    async with (
        local_pipeline(two_cells(), directory=tmp_path, observe=events.append) as pipeline,
        httpx.AsyncClient(base_url=pipeline.gateway_url, timeout=DEADLINE, trust_env=False) as client,
    ):

        async def say(seed: int) -> bytes:
            body = {"input": TEXT, "response_format": "pcm", "stream": True, "seed": seed}
            response = await client.post("/v1/audio/speech", json=body)
            response.raise_for_status()
            return response.content

        whole = list(await asyncio.gather(*map(say, SEEDS)))
        assert all((await frames(client, pipeline)).values()), "both cells have served"
        os.kill(await redis_process(pipeline, 1), signal.SIGKILL)
        assert await asyncio.gather(*map(say, SEEDS)) == whole
        await until(lambda: sum(e.kind == "ready" and e.name == "redis-1" for e in events) == 2, "it is restarted")
        before = await frames(client, pipeline)
        async with asyncio.timeout(DEADLINE):
            while (await frames(client, pipeline))["talker-1"] == before["talker-1"]:
                assert await asyncio.gather(*map(say, SEEDS)) == whole
