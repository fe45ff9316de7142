"""Stages as pods run them: their start, their place in the world, their leaving."""

import base64
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from redis import Redis

from support import small_checkpoint
from support.process import StageProcess
from support.required import require
from support.waiting import DEADLINE, until_blocking
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.model.describe import checkpoint_directory

SOON = 10.0
"""Seconds; far from the minute that a pod would be given, and from what a busy machine takes for it."""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def stuck_checkpoint(directory: Path) -> Path:
    """A checkpoint on a volume that does not respond: its largest file is a FIFO."""
    shutil.copytree(checkpoint_directory("bundled"), directory)
    (directory / "config.json").unlink()
    os.mkfifo(directory / "config.json")
    return directory


def test_a_stage_takes_its_name_from_its_pod_and_its_settings_from_a_file(tmp_path: Path, redis: RedisServer) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"settings": {"max_num_seqs": 3}, "generation": 7}))
    config = {
        "settings_file": str(file),
        "settings_generation": 9,
        "settings_port": 0,
        "talker": {"max_num_seqs": 5},
        "host": "",
    }
    token = {"SYRINX_SETTINGS_TOKEN": "of-the-operator"}
    with StageProcess("talker", tmp_path, redis, environment=token, **config).started().ready() as talker:
        assert (talker.line["replica"], talker.line["url"][:17]) == ("pods-talker-0", "http://127.0.0.1:")
        url, headers = talker.line["settings_url"], {"X-Syrinx-Token": "of-the-operator"}
        settings = httpx.get(url, headers=headers, trust_env=False).json()
        assert (settings["generation"], settings["settings"]["max_num_seqs"]) == (7, 3)
        for path in ("healthz", "readyz", "metrics"):
            assert httpx.head(f"{talker.line['admin_url']}/{path}", trust_env=False).status_code == 200
        with Redis.from_url(redis.url_with_password, protocol=2) as client:
            [key] = client.keys("*:leases-talker")
            assert client.zrange(key, 0, -1) == [b"pods-talker-0"]


def test_a_stage_without_a_token_serves_no_settings(tmp_path: Path, redis: RedisServer) -> None:
    with StageProcess("codec", tmp_path, redis).started() as codec:
        assert "settings_url" not in codec.line
        answer = httpx.put(f"{codec.line['admin_url']}/settings", json={"settings": {}}, trust_env=False)
        assert answer.status_code == 404
        until_blocking(lambda: "SYRINX_SETTINGS_TOKEN is not set" in codec.errors, "the log says why")


def test_an_invalid_settings_file_fails_the_start_with_one_line(tmp_path: Path, redis: RedisServer) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"settings": {"max_num_seqs": 0}}')
    with StageProcess("codec", tmp_path, redis, settings_file=str(file)) as codec:
        assert codec.process.wait(DEADLINE) == 1
        assert f": syrinx codec: {file}: settings: " in codec.errors and codec.errors.count("\n") == 1


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
        assert time.monotonic() - began < SOON
        with Redis.from_url(redis.url_with_password, protocol=2) as client:
            assert client.keys("*") == []


@pytest.mark.parametrize("stage", ["gateway", "talker", "codec"])
def test_a_signal_during_the_imports_ends_the_process_at_once(tmp_path: Path, redis: RedisServer, stage: str) -> None:
    with StageProcess(stage, tmp_path, redis) as starting:
        until_blocking(lambda: handles(starting.process.pid, signal.SIGTERM), "it handles the signal")
        began = time.monotonic()
        starting.process.terminate()
        assert starting.process.wait(DEADLINE) == 0
        assert time.monotonic() - began < SOON


def handles(pid: int, number: signal.Signals) -> bool:
    """Returns whether the process has a handler for the signal."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


READ_ONLY = """
mount --make-rprivate / && mount --bind /tmp /tmp
awk '$2 !~ "^/(proc|sys|dev|tmp)" {print $2}' /proc/mounts | while read -r at; do mount -o remount,bind,ro "$at"; done
caps=-all,+dac_read_search
exec setpriv --reuid 65532 --regid 65532 --clear-groups --no-new-privs --bounding-set $caps --inh-caps $caps \
    --ambient-caps $caps "$@"
"""
"""Like a restricted pod: only /tmp is writable, and the user has no name. It can read root's files."""
RESTRICTED = ("unshare", "--mount", "sh", "-e", "-c", READ_ONLY, "sh")


def restricted() -> bool:
    """Returns whether this machine can confine a process like that."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))):
        return False
    tried = subprocess.run([*RESTRICTED, "sh", "-c", "! touch /x /var/tmp/x && touch /tmp/x"], capture_output=True)
    return tried.returncode == 0


@pytest.mark.parametrize("kind", ["bundled", "base"])
def test_stages_run_with_a_read_only_file_system_and_an_unknown_user(
    tmp_path: Path, redis: RedisServer, kind: str
) -> None:
    require(restricted(), "it needs to be root in a machine of its own")
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    model = kind if kind == "bundled" else str(small_checkpoint.write(tmp_path / "model", kind))
    options = {
        "prefix": RESTRICTED,
        "environment": {"HOME": str(home), "LOG_LEVEL": "DEBUG"},
        "model": model,
        "host": "",
    }
    seconds = base64.b64encode(wav(2)).decode()
    fields = {} if kind == "bundled" else {"ref_audio": f"data:audio/wav;base64,{seconds}", "ref_text": "Okay."}
    with contextlib.ExitStack() as stages:
        running = [
            stages.enter_context(StageProcess(stage, tmp_path / "config", redis, **options))
            for stage in ("talker", "codec", "gateway")
        ]
        for stage in running:
            stage.started().ready()
        for form in ("wav", "flac", "mp3", "opus"):
            body = {"input": "Hello.", "response_format": form, "max_new_tokens": 10, **fields}
            url = f"{running[-1].line['url']}/v1/audio/speech"
            answer = httpx.post(url, json=body, trust_env=False, timeout=DEADLINE)
            assert answer.status_code == 200, answer.text
        for stage in running:
            stage.process.terminate()
            assert stage.process.wait(DEADLINE) == 0, stage.errors
            assert '"config_sha256"' in stage.errors and redis.password not in stage.errors
            assert "Read-only file system" not in stage.errors and "Permission denied" not in stage.errors
    assert not [*home.iterdir()], "nothing is written to the home directory"


def wav(seconds: int) -> bytes:
    """Returns a tone as a WAV file."""
    buffer = io.BytesIO()
    samples = np.sin(np.arange(24_000 * seconds) / 20)
    soundfile.write(buffer, samples, 24_000, format="WAV")
    return buffer.getvalue()
