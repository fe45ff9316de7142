"""Stages as pods run them: their start, their place in the world, their leaving."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from support.process import DEADLINE, StageProcess, until
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.model.describe import checkpoint_directory


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def stuck_checkpoint(directory: Path) -> Path:
    """The bundled voice on a volume that does not answer."""
    shutil.copytree(checkpoint_directory("bundled"), directory)
    (directory / "config.json").unlink()
    os.mkfifo(directory / "config.json")
    return directory


def test_a_stage_is_called_after_its_pod_and_starts_with_the_settings_of_its_file(
    tmp_path: Path, redis: RedisServer
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"settings": {"max_num_seqs": 3}, "generation": 7}))
    config = {"settings_file": str(file), "settings_generation": 9, "talker": {"max_num_seqs": 5}, "host": ""}
    with StageProcess("talker", tmp_path, redis, **config).started().ready() as talker:
        assert (talker.line["replica"], talker.line["url"][:17]) == ("pods-talker-0", "http://127.0.0.1:")
        settings = httpx.get(f"{talker.line['admin_url']}/settings", trust_env=False).json()
        assert (settings["generation"], settings["settings"]["max_num_seqs"]) == (7, 3)
        for path in ("healthz", "readyz", "metrics", "settings"):
            assert httpx.head(f"{talker.line['admin_url']}/{path}", trust_env=False).status_code == 200
        with Redis.from_url(redis.url_with_password, protocol=2) as client:
            [key] = client.keys("*:requests")
            assert [consumer["name"] for consumer in client.xinfo_consumers(key, "talkers")] == [b"pods-talker-0"]


def test_a_wrong_settings_file_ends_the_start_with_one_line(tmp_path: Path, redis: RedisServer) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"settings": {"max_num_seqs": 0}}')
    with StageProcess("codec", tmp_path, redis, settings_file=str(file)) as codec:
        assert codec.process.wait(DEADLINE) == 1
        assert codec.errors.startswith(f"syrinx codec: {file}: settings: ") and codec.errors.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stage", ["talker", "codec"])
@pytest.mark.parametrize("reachable", [True, False], ids=["Redis there", "Redis away"])
def test_a_signal_during_the_load_of_the_model_ends_the_process_at_once(
    tmp_path: Path, redis: RedisServer, stage: str, number: signal.Signals, reachable: bool
) -> None:
    model = stuck_checkpoint(tmp_path / "model")
    with StageProcess(stage, tmp_path, redis if reachable else None, model=str(model)).started() as loading:
        assert loading.reason() == "loading the model"
        began = time.monotonic()
        loading.process.send_signal(number)
        assert loading.process.wait(DEADLINE) == 0, loading.errors
        assert time.monotonic() - began < 1.5
        with Redis.from_url(redis.url_with_password, protocol=2) as client:
            assert client.keys("*") == []


@pytest.mark.parametrize("stage", ["gateway", "talker", "codec"])
def test_a_signal_during_the_imports_ends_the_process_at_once(tmp_path: Path, redis: RedisServer, stage: str) -> None:
    with StageProcess(stage, tmp_path, redis) as starting:
        until(lambda: hears(starting.process.pid, signal.SIGTERM), "it hears the signal")
        began = time.monotonic()
        starting.process.terminate()
        assert starting.process.wait(DEADLINE) == 0
        assert time.monotonic() - began < 1.5


def hears(pid: int, number: signal.Signals) -> bool:
    """The process has a handler for the signal."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)
