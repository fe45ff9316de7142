"""Local pipelines of real processes, for tests of anything but admission."""

import asyncio
import os
import signal
from collections.abc import Callable

import httpx
from msgspec import structs

from support.waiting import DEADLINE
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.supervisor import Child
from syrinx_operator.resource.spec import TTSPipeline, default_pipeline
from syrinx_stages.contract.family import FAMILY

MAX_QUEUE_SECONDS = 600.0
"""A busy machine may serve one request after the other."""


def local_pipeline(pipeline: TTSPipeline, **options: object) -> LocalPipeline:
    """Returns a pipeline on a free port that refuses no request because the machine is busy."""
    gateway = structs.replace(pipeline.spec.gateway, max_queue_seconds=MAX_QUEUE_SECONDS)
    patient = structs.replace(pipeline, spec=structs.replace(pipeline.spec, gateway=gateway))
    return LocalPipeline(patient, port=0, **options)


def replicated(name: str = "demo", **replicas: int) -> TTSPipeline:
    """Returns the default pipeline with so many replicas of stages."""
    default = default_pipeline(name)
    stages = {stage: structs.replace(getattr(default.spec, stage), replicas=n) for stage, n in replicas.items()}
    return structs.replace(default, spec=structs.replace(default.spec, **stages))


class Running:
    """A local pipeline and a client of it."""

    def __init__(self, pipeline: LocalPipeline, client: httpx.AsyncClient) -> None:
        self.pipeline, self.client = pipeline, client

    def children(self, stage: str) -> list[Child]:
        return [child for child in self.pipeline.processes if child.stage == stage]

    async def synthesize(self, text: str, chunks: Callable[[int], None] = lambda frames: None) -> bytes:
        """Returns the PCM of a streamed request. Calls `chunks` with the number of frames received so far."""
        body = {"input": text, "voice": "us", "response_format": "pcm", "stream": True, "seed": 1}
        pcm = b""
        async with asyncio.timeout(DEADLINE), self.client.stream("POST", "/v1/audio/speech", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for chunk in response.aiter_raw():
                pcm += chunk
                chunks(len(pcm) // FAMILY.frame_bytes)
        return pcm

    async def metrics(self, child: Child) -> str:
        return (await self.client.get(f"{child.admin_url}/metrics")).text

    async def ready(self, *stages: str) -> None:
        """Waits until every process is ready, of all stages or of some."""
        async with asyncio.timeout(DEADLINE):
            for child in self.pipeline.processes:
                if stages and child.stage not in stages:
                    continue
                while not await self._is_ready(child):
                    await asyncio.sleep(0.05)

    async def _is_ready(self, child: Child) -> bool:
        try:
            return (await self.client.get(f"{child.admin_url}/readyz")).status_code == 200
        except httpx.HTTPError:
            return False


def kill(children: list[Child], number: signal.Signals) -> None:
    """Sends a signal to the processes of stages."""
    for child in children:
        os.kill(child.pid, number)
