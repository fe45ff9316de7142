"""A talker's pod that also runs a codec: two processes, which live and end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http_client import HTTP
from support.process import ENVIRONMENT
from support.stages import request, synthesize
from support.waiting import DEADLINE, until_blocking
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.stages import WORKERS

pytestmark = pytest.mark.smoke


class Pod:
    """The processes of a pod."""

    def __init__(self, directory: Path, redis: RedisServer) -> None:
        config = {"pipeline": "pods", "generation": "g", "model": "bundled", "settings_port": 0}
        files = [directory / f"{stage}.json" for stage in WORKERS]
        for file in files:
            file.write_text(json.dumps(config))
        own = {"POD_NAME": "pods-talker-0", "REDIS_URL": redis.url, "REDIS_PASSWORD": redis.password}
        self.parent = subprocess.Popen(
            [sys.executable, "-m", "syrinx_stages.colocated", *map(str, files)],
            env={**os.environ, **ENVIRONMENT, **own},
            stdout=subprocess.PIPE,
        )
        self.urls: dict[str, str] = {}

    def start(self) -> None:
        """Waits until both stages are ready."""
        assert self.parent.stdout is not None
        lines = [json.loads(self.parent.stdout.readline()) for _ in WORKERS]
        self.urls = {line["stage"]: line["admin_url"] for line in lines}
        for url in self.urls.values():
            until_blocking(lambda url=url: HTTP.get(f"{url}/readyz").status_code == 200, "it is ready")

    def pids(self) -> list[int]:
        """Process ids of both stages, the talker's first."""
        children = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children").read_text()
        return [int(pid) for pid in children.split()]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def pod(tmp_path: Path, redis: RedisServer) -> Iterator[Pod]:
    running = Pod(tmp_path, redis)
    try:
        running.start()
        yield running
    finally:
        running.parent.kill()
        running.parent.wait()
        running.parent.stdout.close()


async def test_both_stages_serve_and_end_on_sigterm(pod: Pod, redis: RedisServer) -> None:
    connector = RedisConnector(redis.url, Keys("pods", "g"), password=redis.password)
    assert (await synthesize(connector, request("a"))).pcm
    await connector.close()
    pids = pod.pids()
    assert len(pids) == len(pod.urls) == 2
    pod.parent.terminate()
    assert pod.parent.wait(DEADLINE) == 0
    assert gone(pids)


@pytest.mark.parametrize("killed", range(2), ids=WORKERS)
def test_if_one_stage_ends_so_does_the_pod(pod: Pod, killed: int) -> None:
    pids = pod.pids()
    os.kill(pids[killed], signal.SIGKILL)
    assert pod.parent.wait(DEADLINE) == 1
    assert gone(pids)
