"""A pipeline as pods run it, and the operator's port, in a network with one family; see `one_family`."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx

from support.one_family import ADDRESSES, keep_only
from support.process import StageProcess
from support.waiting import DEADLINE, until_blocking
from syrinx_operator.cluster.watch.telemetry import Health, HealthServer
from syrinx_stages.connector.server import find_redis_server

PORTS = {"talker": 9101, "codec": 9102, "gateway": 9103}
"""Ports of metrics and probes; those of settings are 10 higher."""
API_PORT, REDIS_PORT, OPERATOR_PORT = 8000, 6379, 8080


def main(family: str, directory: Path) -> None:
    """Raises an error unless the pipeline speaks, and all ports answer."""
    keep_only(family)
    host = ADDRESSES[family] if family == "IPv4" else f"[{ADDRESSES[family]}]"
    environment = {"REDIS_URL": f"redis://{host}:{REDIS_PORT}/0", "SYRINX_SETTINGS_TOKEN": "t"}
    with contextlib.ExitStack() as cleanup, httpx.Client(trust_env=False, timeout=DEADLINE) as client:
        command = [str(find_redis_server()), "--bind", ADDRESSES[family], "--port", str(REDIS_PORT), "--save", ""]
        redis = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory)
        cleanup.callback(redis.wait)
        cleanup.callback(redis.kill)
        stages = [
            cleanup.enter_context(
                StageProcess(
                    stage,
                    directory,
                    None,
                    environment=environment,
                    host="",
                    port=API_PORT,
                    admin_port=port,
                    settings_port=port + 10,
                )
            )
            for stage, port in PORTS.items()
        ]
        for stage, port in zip(stages, PORTS.values(), strict=True):
            stage.started()
            ready = partial(client.get, f"http://{host}:{port}/readyz")
            until_blocking(lambda: ready().status_code == 200, f"{stage.line['stage']} was ready")  # noqa: B023
            assert "syrinx_" in client.get(f"http://{host}:{port}/metrics").text
            settings = client.get(
                f"http://{host}:{port + 10}/settings/{stage.line['stage']}", headers={"X-Syrinx-Token": "t"}
            )
            assert settings.status_code == 200, settings.text
        body = {"input": "The farmer opened the garden gate.", "response_format": "wav"}
        answer = client.post(f"http://{host}:{API_PORT}/v1/audio/speech", json=body)
        assert answer.status_code == 200 and len(answer.content) > 20_000, answer.text
        asyncio.run(probe_operator(host))


async def probe_operator(host: str) -> None:
    """Asks the operator's port."""

    def healthy() -> Health:
        return Health(True, "ok")

    server = HealthServer(OPERATOR_PORT, health=healthy, readiness=healthy, metrics=lambda: b"")
    async with server, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://{host}:{OPERATOR_PORT}/healthz")).status_code == 200


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
