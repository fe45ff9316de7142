"""A gateway process with few file descriptors, and more connections to its ports than it has of them."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from support.gateway import Script, gateway_process, tone
from support.process import StageProcess
from support.waiting import DEADLINE, until

MAX_FILES = 600
LIMITED = ("sh", "-c", f'ulimit -n {MAX_FILES}; exec "$@"', "sh")
"""Precedes a command that runs with `MAX_FILES`."""
CONNECTIONS = 500
"""To each port, in addition."""
STREAM = {"input": "Hello.", "response_format": "pcm", "stream": True}
MAX_LOG = 20_000
"""Characters of the log: one line for each connection would be more."""


def connect(url: str, sent: bytes) -> socket.socket:
    """Opens a connection that sends part of a request, or nothing."""
    client = socket.create_connection(("127.0.0.1", urlsplit(url).port))
    client.sendall(sent)
    return client


async def test_idle_connections_leave_streams_requests_and_health_checks_alone(tmp_path: Path) -> None:
    async with gateway_process(tmp_path, prefix=LIMITED) as (process, stages, http):
        url, admin_url = process.line["url"], process.line["admin_url"]
        stages.script = script = Script(pause_after=4)
        async with http.stream("POST", f"{url}/v1/audio/speech", json=STREAM) as response:
            pieces = response.aiter_raw()
            audio = await anext(pieces)
            idle = [connect(each, sent) for sent in (b"", b"GET /v1/models HT") for each in (url, admin_url) * 250]
            try:
                await until(lambda: files(process) < MAX_FILES - 100, "files are left")
                for _ in range(3):
                    assert (await get(f"{admin_url}/healthz")).text == "ok\n"
                    assert (await get(f"{admin_url}/metrics")).status_code == 200
                    assert (await get(f"{url}/v1/models")).status_code == 200
                stages.script = Script()
                assert (await http.post(f"{url}/v1/audio/speech", json=STREAM)).content == tone(10)
                script.go.set()
                assert audio + b"".join([piece async for piece in pieces]) == tone(10)
            finally:
                for client in idle:
                    client.close()
        assert len(idle) == 2 * CONNECTIONS
        assert "Traceback" not in process.errors and len(process.errors) < MAX_LOG, process.errors[-2000:]


async def get(url: str) -> httpx.Response:
    """Sends a request on a new connection."""
    async with httpx.AsyncClient(timeout=DEADLINE) as http:
        return await http.get(url)


def files(process: StageProcess) -> int:
    """Returns the number of files that a process has open."""
    return len(list(Path(f"/proc/{process.process.pid}/fd").iterdir()))
