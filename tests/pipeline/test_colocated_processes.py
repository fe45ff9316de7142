"""A colocated pipeline as real processes over a real Redis, as `syrinx up` runs it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
import pytest_asyncio

from support.local_pipeline import local_pipeline
from support.waiting import DEADLINE
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.supervisor import Member
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.metrics import BY_STAGE

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "The old teacher carried seven apples before breakfast, and her brother opened a broken window for his friends."

FINISHED = 'syrinx_requests_finished_total{{pipeline="together",reason="stop",stage="{}"}}'
ROWS = 'syrinx_rows_resident{pipeline="together",stage="codec"}'


class Running:
    """The pipeline and a client of it."""

    def __init__(self, pipeline: LocalPipeline, client: httpx.AsyncClient) -> None:
        self.pipeline, self.client = pipeline, client

    def members(self, stage: str) -> list[Member]:
        return [member for member in self.pipeline.members if member.stage == stage]

    async def stream_pcm(self, text: str, seed: int = 1) -> AsyncIterator[bytes]:
        body = {"input": text, "voice": "us", "response_format": "pcm", "stream": True, "seed": seed}
        async with self.client.stream("POST", "/v1/audio/speech", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for chunk in response.aiter_raw():
                yield chunk

    async def synthesize(self, text: str, seed: int = 1) -> bytes:
        return b"".join([chunk async for chunk in self.stream_pcm(text, seed)])

    async def metrics(self, member: Member) -> dict[str, float]:
        text = (await self.client.get(f"{member.admin_url}/metrics")).text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def ready(self) -> None:
        async with asyncio.timeout(DEADLINE):
            while not all([await self._is_ready(member) for member in self.pipeline.members]):
                await asyncio.sleep(0.05)

    async def _is_ready(self, member: Member) -> bool:
        try:
            return (await self.client.get(f"{member.admin_url}/readyz")).status_code == 200
        except httpx.HTTPError:
            return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline() -> AsyncIterator[Running]:
    resource = {
        "apiVersion": "syrinx.dev/v1beta1",
        "kind": "TTSPipeline",
        "metadata": {"name": "together"},
        "spec": {"topology": "Colocated", "talker": {"replicas": 2}},
    }
    async with (
        local_pipeline(msgspec.convert(resource, TTSPipeline)) as local,
        httpx.AsyncClient(base_url=local.gateway_url, timeout=DEADLINE, trust_env=False) as client,
    ):
        yield Running(local, client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(pipeline: Running) -> bytes:
    """The audio of `LONG` without failures."""
    await pipeline.ready()
    return await pipeline.synthesize(LONG)


@pytest_asyncio.fixture(loop_scope="module")
async def running(pipeline: Running) -> Running:
    """The pipeline, with all processes ready."""
    await pipeline.ready()
    return pipeline


async def test_each_stage_has_its_own_metrics_and_settings(running: Running) -> None:
    assert [child.name for child in running.pipeline.processes] == ["talker-0+codec-0", "talker-1+codec-1", "gateway-0"]
    members = running.pipeline.members
    assert len({member.admin_url for member in members}) == 3, "the stages of a process share its ports"
    assert len({member.settings_url for member in members}) == 5
    for member in running.members("talker") + running.members("codec"):
        names = {name.partition("{")[0] for name in await running.metrics(member)}
        for metric in BY_STAGE[member.stage]:
            assert any(name.startswith(metric.name) for name in names) or metric.labels, metric.name
    first, second = running.members("codec")
    change = {"settings": {"chunk_ramp": [1]}, "seconds": 60}
    headers = running.pipeline.settings_headers
    answer = (await running.client.put(first.settings_url, json=change, headers=headers)).json()
    assert answer["settings"]["chunk_ramp"] == [1]
    for other in (second, *running.members("talker")):
        assert "seconds" not in (await running.client.get(other.settings_url, headers=headers)).json()


async def test_killing_a_process_does_not_change_the_audio(running: Running, undisturbed: bytes) -> None:
    pcm, killed = b"", 0
    async for chunk in running.stream_pcm(LONG):
        pcm += chunk
        if killed < min(2, len(pcm) // FAMILY.frame_bytes // 16):
            killed += await kill_the_owner(running)
    assert killed
    assert pcm == undisturbed


async def kill_the_owner(running: Running) -> bool:
    """Kills the process that owns a request. Returns whether there was one."""
    for child in running.pipeline.processes[:2]:
        codec = child.members[1]
        if codec.is_ready and (await running.metrics(codec)).get(ROWS):
            os.kill(child.pid, signal.SIGKILL)
            return True
    return False


async def test_requests_are_distributed_and_each_is_served_by_one_process(running: Running) -> None:
    before = await finished(running)
    await asyncio.gather(*(running.synthesize(LONG, seed) for seed in range(6)))
    by_talkers, by_codecs = await finished(running) - before
    assert list(by_talkers) == list(by_codecs)
    assert sum(by_talkers) == 6


async def finished(running: Running) -> np.ndarray:
    """Returns the requests that the talkers, and the codecs, of both processes have finished."""
    members = [child.members for child in running.pipeline.processes[:2]]
    counts = [[(await running.metrics(one)).get(FINISHED.format(one.stage), 0.0) for one in both] for both in members]
    return np.array(counts).T


async def test_sigterm_lets_a_process_finish_its_requests(running: Running, undisturbed: bytes) -> None:
    chunks = running.stream_pcm(LONG)
    pcm = await anext(chunks)
    for child in running.pipeline.processes[:2]:
        os.kill(child.pid, signal.SIGTERM)
    async for chunk in chunks:
        pcm += chunk
    assert pcm == undisturbed


def refused(*paths: str) -> str:
    """Returns the error output of a process that cannot start."""
    command = [sys.executable, "-m", "syrinx_stages.colocated", *paths]
    environment = {**os.environ, "REDIS_URL": "redis://127.0.0.1:1/0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 1
    return done.stderr.strip()


async def test_incompatible_configurations_are_refused(tmp_path: Path) -> None:
    paths = []
    for stage, device in (("talker", "cpu"), ("codec", "cuda")):
        path = tmp_path / f"{stage}.json"
        config = {"pipeline": "p", "generation": "g", "model": "bundled", "replica": stage, "device": device}
        path.write_text(json.dumps(config))
        paths.append(str(path))
    message = "syrinx colocated: device: 'cpu' of the talker and 'cuda' of the codec cannot share a process"
    assert refused(*paths).endswith(message)
    assert "usage: python -m syrinx_stages.colocated TALKER.json CODEC.json" in refused(paths[0])
