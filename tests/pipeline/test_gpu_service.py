"""The service benchmark as a process, with the bundled voice on the CPU and with simulated engines."""

import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from gpu.results import ServiceRun, SpeechRun, load
from support import small_checkpoint

pytestmark = pytest.mark.bench

TIMEOUT_SECONDS = 240.0


ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


async def start(out: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpu.service", "--out", str(out), "--generators", "1", *arguments),
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.DEVNULL,
    )


def read_result(out: Path) -> ServiceRun | None:
    file = out / "cpu_bundled_defaults_service.json"
    return load(file) if file.exists() else None


async def test_results_survive_kill_9_and_no_process_is_left(tmp_path):
    process = await start(tmp_path, "--device", "cpu", "--bundled", "--only", "closed", "--concurrency", "1,2,3,4")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (run := read_result(tmp_path)) is None or not run.points:
        assert process.returncode is None and time.monotonic() < deadline
        await asyncio.sleep(0.1)
    children = _descendants(process.pid)
    process.kill()
    await process.wait()
    run = read_result(tmp_path)
    assert run is not None and not run.complete
    point = run.points[0]
    assert (point.load, point.amount) == ("closed", 1)
    assert point.stats.errors.keys() <= {"http 503"}, "a busy machine may refuse requests"
    assert point.stats.ttfa is not None and point.stats.audio_seconds > 1
    assert point.usage.stages["talker-0"]["frames_per_second"] > 10
    assert point.usage.cpu_share["codec-0"] > 0
    assert children
    while any(os.path.exists(f"/proc/{pid}") for pid in children):  # noqa: ASYNC240
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found |= {int(child)} | _descendants(int(child))
    return found


async def test_measures_the_service_with_simulated_engines(tmp_path):
    process = await start(tmp_path, "--paced", "--quick", "--only", "closed", "--concurrency", "4", "--name", "paced")
    assert await asyncio.wait_for(process.wait(), TIMEOUT_SECONDS) == 0
    run = load(tmp_path / "paced_service.json")
    assert run.complete and not run.deaths
    [point] = run.points
    assert point.stats.errors == {} and point.stats.silent == 0
    assert point.stats.audio_seconds / point.stats.requests == pytest.approx(4.2, rel=0.3)
    assert point.usage.stages["codec-0"]["frames_per_second"] > 12.5


async def test_cloned_voices_are_kept_and_then_new_in_each_request(tmp_path):
    model = small_checkpoint.write(tmp_path / "model", "base")
    arguments = ("--device", "cpu", "--random-model", str(model), "--base", "--rates", "2", "--name", "base")
    process = await start(tmp_path, *arguments)
    assert await asyncio.wait_for(process.wait(), TIMEOUT_SECONDS) == 0
    kept, new = load(tmp_path / "base_service.json").points
    assert [(each.voice, each.load, each.amount) for each in (kept, new)] == [("kept", "open", 2), ("new", "open", 2)]
    for each in (kept, new):
        assert each.stats.requests == 10 and each.stats.ttfa is not None
        assert each.stats.errors.keys() <= {"http 503"}, "a busy machine may refuse requests"


async def test_speech_is_understood_while_codec_and_talker_are_killed(tmp_path):
    arguments = ("--device", "cpu", "--concurrency", "2", "--kill", "4", "--sentences", "8", "--out", str(tmp_path))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gpu.speech", *arguments, env=ENVIRONMENT)
    assert await asyncio.wait_for(process.wait(), TIMEOUT_SECONDS) == 0
    [file] = tmp_path.glob("*_speech.json")
    calm, disturbed = msgspec.json.decode(file.read_bytes(), type=SpeechRun).loads
    assert (calm.name, disturbed.name) == ("2", "4 with kills")
    assert list(disturbed.killed) == ["codec-0", "talker-0"]
    assert min(calm.identified, disturbed.identified) >= 7 / 8
