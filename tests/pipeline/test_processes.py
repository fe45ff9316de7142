"""The whole pipeline as real processes: processes are killed during streams."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from support.local_pipeline import Running, kill, local_pipeline, replicated
from support.prometheus import find_prometheus, promtool
from support.waiting import DEADLINE
from syrinx_stages.contract.metrics import BY_STAGE

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = (
    "The old teacher carried seven green apples before breakfast. Her brother opened a broken window for his friends."
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_pipeline() -> AsyncIterator[Running]:
    async with (
        local_pipeline(replicated("chaos", talker=2, codec=2)) as local,
        httpx.AsyncClient(base_url=local.gateway_url, timeout=DEADLINE) as client,
    ):
        yield Running(local, client)


@pytest_asyncio.fixture(loop_scope="module")
async def running(running_pipeline: Running) -> Running:
    """The pipeline, with all processes ready."""
    await running_pipeline.ready()
    return running_pipeline


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(running_pipeline: Running) -> bytes:
    """The audio of `LONG` without failures."""
    return await running_pipeline.synthesize(LONG)


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


async def test_the_token_of_the_settings_is_in_no_file_and_on_no_command_line(running: Running) -> None:
    token = running.pipeline.settings_headers["X-Syrinx-Token"].encode()
    directory = running.pipeline.processes[0].config_file.parent
    assert not [file.name for file in directory.iterdir() if token in file.read_bytes()]
    for child in running.pipeline.processes:
        process = Path(f"/proc/{child.pid}")
        assert token in (process / "environ").read_bytes(), "only this user may read it"
        assert token not in (process / "cmdline").read_bytes()
        answer = await running.client.put(child.settings_url, json={"settings": {}})
        assert answer.status_code == 401


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
    """Promtool finds no fault in them."""
    checking = [promtool(find_prometheus()), "check", "metrics"]
    for child in running.children(stage):
        text = await running.metrics(child)
        families = {family.name for family in text_string_to_metric_families(text)}
        own = {name for name in families if not name.startswith("process_")}
        assert own == {metric.name.removesuffix("_total") for metric in BY_STAGE[stage]}
        assert families - own >= {"process_resident_memory_bytes", "process_cpu_seconds", "process_start_time_seconds"}
        check = await asyncio.to_thread(subprocess.run, checking, input=text, capture_output=True, text=True)
        assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
