"""The whole pipeline as real processes over a real Redis: processes are killed during streams."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import pytest_asyncio
import redis.asyncio
from prometheus_client.parser import text_string_to_metric_families

from support.local_pipeline import local_pipeline
from support.prometheus import find_prometheus, promtool
from support.waiting import DEADLINE
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.supervisor import Child
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.metrics import BY_STAGE

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = (
    "The old teacher carried seven green apples before breakfast. Her brother opened a broken window for his friends."
)
SHORT = "The farmer found two heavy bags."
PASSWORD_ENV = "SYRINX_TEST_REDIS_PASSWORD"


class Running:
    """The pipeline, a client of it, and its Redis."""

    def __init__(self, pipeline: LocalPipeline, client: httpx.AsyncClient, store: redis.asyncio.Redis) -> None:
        self.pipeline, self.client, self.store = pipeline, client, store

    def children(self, stage: str) -> list[Child]:
        return [child for child in self.pipeline.processes if child.stage == stage]

    async def synthesize(self, text: str, seed: int = 1, chunks: Callable[[int], None] | None = None) -> bytes:
        """Returns the PCM of a streamed request. Calls `chunks` with the number of frames received so far."""
        body = {"input": text, "voice": "us", "response_format": "pcm", "stream": True, "seed": seed}
        pcm = b""
        async with asyncio.timeout(DEADLINE), self.client.stream("POST", "/v1/audio/speech", json=body) as response:
            if response.status_code != 200:
                raise AssertionError(await response.aread())
            async for chunk in response.aiter_raw():
                pcm += chunk
                if chunks is not None:
                    chunks(len(pcm) // FAMILY.frame_bytes)
        return pcm

    async def metric(self, child: Child, name: str) -> float:
        """Returns the sum over a metric's series."""
        text = (await self.client.get(f"{child.members[0].admin_url}/metrics")).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    async def settings(self, child: Child) -> dict[str, Any]:
        """Returns what the first stage of a process reports of its settings."""
        headers = self.pipeline.settings_headers
        return (await self.client.get(child.members[0].settings_url, headers=headers)).json()

    async def put_settings(self, child: Child, settings: dict[str, object]) -> httpx.Response:
        """Changes the settings of the first stage of a process."""
        body, headers = {"settings": settings}, self.pipeline.settings_headers
        return await self.client.put(child.members[0].settings_url, json=body, headers=headers)

    async def resident(self) -> float:
        """Returns the number of rows of all talkers and codecs."""
        stages = self.children("talker") + self.children("codec")
        return sum([await self.metric(child, "syrinx_rows_resident") for child in stages])

    async def ready(self) -> None:
        """Waits until every process is ready."""
        async with asyncio.timeout(DEADLINE):
            for child in self.pipeline.processes:
                while not await self._is_ready(child):
                    await asyncio.sleep(0.05)

    async def _is_ready(self, child: Child) -> bool:
        try:
            return (await self.client.get(f"{child.members[0].admin_url}/readyz")).status_code == 200
        except httpx.HTTPError:
            return False


class Redis:
    """A Redis that can crash and restart empty at the same address."""

    def __init__(self) -> None:
        self.server = RedisServer()

    def crash(self) -> None:
        dead = self.server
        dead.process.kill()
        dead.process.wait()
        self.server = RedisServer(dead.port, dead.password)
        dead.stop()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Redis]:
    own = Redis()
    os.environ[PASSWORD_ENV] = own.server.password
    yield own
    del os.environ[PASSWORD_ENV]
    own.server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_pipeline(redis_server: Redis) -> AsyncIterator[Running]:
    resource = {
        "apiVersion": "syrinx.dev/v1beta1",
        "kind": "TTSPipeline",
        "metadata": {"name": "chaos"},
        "spec": {
            "talker": {"replicas": 2},
            "codec": {"replicas": 2},
            "connector": {"url": redis_server.server.url, "passwordEnv": PASSWORD_ENV},
        },
    }
    pipeline = msgspec.convert(resource, TTSPipeline)
    async with (
        local_pipeline(pipeline) as local,
        httpx.AsyncClient(base_url=local.gateway_url, timeout=DEADLINE) as client,
        redis.asyncio.from_url(redis_server.server.url_with_password) as store,
    ):
        yield Running(local, client, store)


@pytest_asyncio.fixture(loop_scope="module")
async def running(running_pipeline: Running) -> Running:
    """The pipeline, with all processes ready."""
    await running_pipeline.ready()
    return running_pipeline


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(running_pipeline: Running) -> bytes:
    """The audio of `LONG` without failures."""
    await running_pipeline.ready()
    return await running_pipeline.synthesize(LONG)


def kill(children: list[Child], number: signal.Signals) -> None:
    for child in children:
        os.kill(child.pid, number)


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "kill -TERM"])
@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_killing_every_replica_of_a_stage_does_not_change_the_audio(
    running: Running, undisturbed: bytes, stage: str, number: signal.Signals
) -> None:
    killed: list[int] = []

    def on_chunk(frames: int) -> None:
        if frames >= 8 and not killed:
            killed.append(frames)
            kill(running.children(stage), number)

    assert await running.synthesize(LONG, chunks=on_chunk) == undisturbed
    assert killed
    await running.ready()


async def test_a_stopped_process_that_resumes_later_does_no_harm(running: Running, undisturbed: bytes) -> None:
    """It lost its claims while it was stopped, and then continues where it was."""
    frozen: list[Child] = []

    def on_chunk(frames: int) -> None:
        if frames >= 8 and not frozen:
            frozen.extend([*running.children("talker")[:1], *running.children("codec")[:1]])
            kill(frozen, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(4.0, kill, frozen, signal.SIGCONT)

    tasks = [running.synthesize(LONG, chunks=on_chunk), *(running.synthesize(LONG) for _ in range(3))]
    assert set(await asyncio.gather(*tasks)) == {undisturbed}
    assert frozen


async def test_settings_can_be_changed_over_http_during_a_stream(running: Running, undisturbed: bytes) -> None:
    updates = {
        "talker": {"max_num_seqs": 1, "lead_limit_seconds": 30.0},
        "codec": {"max_num_seqs": 2, "chunk_ramp": [1, 5], "capture_pairs": [[1, 5], [2, 8]]},
    }
    answers: list[httpx.Response] = []

    async def change(settings: dict[str, dict[str, object]]) -> None:
        for stage, values in settings.items():
            for child in running.children(stage):
                answers.append(await running.put_settings(child, values))

    defaults = {}
    for stage in updates:
        defaults[stage] = (await running.settings(running.children(stage)[0]))["settings"]
    stream = asyncio.create_task(running.synthesize(LONG))
    await asyncio.sleep(0.3)
    await change(updates)
    assert await stream == undisturbed
    await change(defaults)
    assert [answer.status_code for answer in answers] == [200] * 8
    in_force = {"max_num_seqs": 1, "lead_limit_seconds": 30.0}
    assert answers[0].json() == {"generation": 1, "settings": in_force, "base": in_force, "limits": {}}


async def test_a_restarted_stage_loads_its_saved_settings(running: Running) -> None:
    codec = running.children("codec")[0]
    there = await running.settings(codec)
    codec.members[0].save_settings({"generation": there["generation"] + 7, "settings": {"max_num_seqs": 3}})
    killed = codec.pid
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE):
        while codec.pid in (None, killed):
            await asyncio.sleep(0.01)
    await running.ready()
    found = await running.settings(codec)
    assert (found["generation"], found["settings"]) == (
        there["generation"] + 7,
        there["settings"] | {"max_num_seqs": 3},
    )
    await running.put_settings(codec, there["settings"])


async def test_the_token_of_the_settings_is_in_no_file_and_on_no_command_line(running: Running) -> None:
    token = running.pipeline.settings_headers["X-Syrinx-Token"].encode()
    directory = running.pipeline.members[0].config_file.parent
    assert not [file.name for file in directory.iterdir() if token in file.read_bytes()]
    for child in running.pipeline.processes:
        process = Path(f"/proc/{child.pid}")
        assert token in (process / "environ").read_bytes(), "only this user may read it"
        assert token not in (process / "cmdline").read_bytes()
        answer = await running.client.put(child.members[0].settings_url, json={"settings": {}})
        assert answer.status_code == 401


async def test_invalid_settings_are_refused_with_their_field(running: Running) -> None:
    url, headers = running.children("codec")[0].members[0].settings_url, running.pipeline.settings_headers
    for body, status, word in (
        ({"settings": {"max_num_seqs": 0}}, 422, "max_num_seqs"),
        ({"settings": {"max_num_seqs": 33}}, 422, "max_resident"),
        ({"settings": {"no_such": 1}}, 422, "no_such"),
        ({"settings": {}, "generation": -1}, 409, "older"),
        ({"settings": {}, "seconds": 0}, 422, "seconds"),
        ({"settings": {}, "seconds": 3601}, 422, "seconds"),
        ({"settings": {"chunk_ramp": []}, "seconds": 60}, 422, "chunk_ramp"),
        ({"settings": {}, "seconds": 60, "generation": 999}, 409, "base"),
        ({"max_num_seqs": 1}, 422, "max_num_seqs"),
        ([], 422, "settings"),
    ):
        answer = await running.client.put(url, json=body, headers=headers)
        assert (answer.status_code, word in answer.text) == (status, True), answer.text
    answer = await running.client.put(url, content=b"x" * 100_000, headers=headers)
    assert answer.status_code == 413


async def test_a_client_that_disconnects_frees_its_rows_within_100_ms(running: Running) -> None:
    async with asyncio.timeout(DEADLINE):
        while await running.resident():
            await asyncio.sleep(0.05)
        body = {"input": LONG * 6, "voice": "us", "response_format": "pcm", "stream": True}
        async with running.client.stream("POST", "/v1/audio/speech", json=body) as response:
            audio = response.aiter_raw()
            await anext(audio)
            assert await running.resident() == 2
        left = time.monotonic()
        while await running.resident():
            await asyncio.sleep(0.005)
        # 0.1 s are for the four scrapes of `resident` on a busy machine.
        assert time.monotonic() - left < 0.1 + 0.1


@pytest.mark.smoke
async def test_a_killed_gateway_is_restarted(running: Running, undisturbed: bytes) -> None:
    def on_chunk(frames: int) -> None:
        if frames >= 4:
            kill(running.children("gateway"), signal.SIGKILL)

    with pytest.raises(httpx.HTTPError):
        await running.synthesize(LONG, chunks=on_chunk)
    await running.ready()
    assert await running.synthesize(LONG) == undisturbed


@pytest.mark.parametrize("stage", ["gateway", "talker", "codec"])
async def test_each_stage_exports_exactly_its_metrics_of_the_contract(running: Running, stage: str) -> None:
    for child in running.children(stage):
        text = (await running.client.get(f"{child.members[0].admin_url}/metrics")).text
        families = {family.name for family in text_string_to_metric_families(text)}
        own = {name for name in families if not name.startswith("process_")}
        assert own == {metric.name.removesuffix("_total") for metric in BY_STAGE[stage]}
        assert families - own >= {"process_resident_memory_bytes", "process_cpu_seconds", "process_start_time_seconds"}


@pytest.mark.parametrize("stage", ["gateway", "talker", "codec"])
async def test_promtool_finds_no_fault_in_the_metrics(running: Running, stage: str) -> None:
    await running.synthesize(SHORT)
    for child in running.children(stage):
        metrics = (await running.client.get(f"{child.members[0].admin_url}/metrics")).content
        checking = [promtool(find_prometheus()), "check", "metrics"]
        check = await asyncio.to_thread(subprocess.run, checking, input=metrics, capture_output=True, timeout=DEADLINE)
        assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_a_replica_exports_its_version_and_device(running: Running, stage: str) -> None:
    for child in running.children(stage):
        text = (await running.client.get(f"{child.members[0].admin_url}/metrics")).text
        assert f'syrinx_info{{device="cpu",pipeline="chaos",version="{version("syrinx")}"}} 1.0' in text


async def test_redis_keys_are_deleted_or_expire(running: Running) -> None:
    """Streams of finished requests are deleted, and every other key expires."""
    await running.synthesize(SHORT)
    async with asyncio.timeout(DEADLINE):
        while True:
            keys = [key async for key in running.store.scan_iter("*chaos*")]
            if not [key for key in keys if await running.store.ttl(key) == -1]:
                break
            await asyncio.sleep(0.05)


async def test_the_openai_client_works(running: Running) -> None:
    client = openai.AsyncOpenAI(base_url=f"{running.pipeline.gateway_url}/v1", api_key="none", timeout=DEADLINE)
    async with client:
        arguments = {"model": "syrinx-us", "voice": "us", "input": SHORT}
        whole = await client.audio.speech.create(**arguments, response_format="wav", extra_body={"seed": 1})
        assert whole.content[:4] == b"RIFF"
        streaming = client.audio.speech.with_streaming_response.create(
            **arguments, response_format="pcm", extra_body={"seed": 1, "stream": True}
        )
        async with streaming as response:
            chunks = [chunk async for chunk in response.iter_bytes()]
        assert len(chunks) > 1
        assert b"".join(chunks) == whole.content[44:], "the stream has the samples of the file"


async def test_eight_concurrent_requests_succeed(running: Running) -> None:
    generated = await asyncio.gather(*(running.synthesize(SHORT, seed=seed) for seed in range(8)))
    assert len({*generated}) == 8
    assert all(len(pcm) >= FAMILY.frame_bytes * 10 for pcm in generated)


async def test_a_stalled_upload_does_not_delay_a_draining_gateway(running: Running) -> None:
    [gateway] = running.children("gateway")
    port = httpx.URL(running.pipeline.gateway_url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    writer.write(head + b"Expect: 100-continue\r\n\r\n{")
    assert await asyncio.wait_for(reader.readline(), DEADLINE) == b"HTTP/1.1 100 Continue\r\n"
    began, restarts = time.monotonic(), gateway.members[0].restarts
    kill([gateway], signal.SIGTERM)
    async with asyncio.timeout(DEADLINE):
        while gateway.members[0].restarts == restarts:
            await asyncio.sleep(0.05)
    assert time.monotonic() - began < 10
    writer.close()
    await running.ready()
    assert await running.synthesize(SHORT)


async def test_redis_restarts_empty(running: Running, redis_server: Redis, undisturbed: bytes) -> None:
    """Streams in progress are generated again and continue where they were; new requests are served."""
    crashes: list[int] = []

    def on_chunk(frames: int) -> None:
        if frames >= 8 and not crashes:
            crashes.append(frames)
            redis_server.crash()

    began = time.monotonic()
    assert await running.synthesize(LONG, chunks=on_chunk) == undisturbed
    assert crashes
    assert time.monotonic() - began < 15
    await running.ready()
    assert await running.synthesize(LONG) == undisturbed
