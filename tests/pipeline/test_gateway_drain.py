"""A gateway process after SIGTERM: what clients on real sockets get, with scripted stages."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.gateway import Script, Stages, gateway_process, tone
from support.process import StageProcess
from support.waiting import DEADLINE, until

PATH = "/v1/audio/speech"
STREAM = {"input": "Hello.", "response_format": "pcm", "stream": True}
SSE = {"input": "Hello.", "response_format": "pcm", "stream_format": "sse"}
WHOLE = {"input": "Hello.", "response_format": "pcm", "stream": False}


@dataclass
class Draining:
    """A gateway process, and the stages behind it."""

    process: StageProcess
    stages: Stages
    http: httpx.AsyncClient

    async def exited(self) -> int:
        """Waits for the process and returns its exit status."""
        return await asyncio.to_thread(self.process.process.wait, DEADLINE)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a plain connection."""
        url = self.http.base_url
        return await asyncio.open_connection(url.host, url.port)


@contextlib.asynccontextmanager
async def gateway(directory: Path, drain_seconds: float = DEADLINE) -> AsyncIterator[Draining]:
    async with gateway_process(directory, drain_seconds=drain_seconds) as running:
        yield Draining(*running)
        assert "Traceback" not in running[0].errors


@pytest.mark.parametrize("kept_alive", [False, True], ids=["new connections", "kept-alive connections"])
async def test_under_load_each_request_is_served_whole_or_its_connection_refused(
    tmp_path: Path, kept_alive: bool
) -> None:
    async with gateway(tmp_path) as running:

        async def call_until_refused(fields: dict[str, Any]) -> int:
            limits = httpx.Limits(max_keepalive_connections=None if kept_alive else 0)
            options = {"base_url": running.http.base_url, "timeout": DEADLINE, "trust_env": False}
            async with httpx.AsyncClient(**options, limits=limits) as http:
                served = 0
                with pytest.raises(httpx.ConnectError, match="All connection attempts failed"):
                    while response := await http.post(PATH, json=fields):
                        assert response.status_code == 200
                        assert fields is not STREAM or response.content == tone(10)
                        served += 1
                return served

        clients = [asyncio.create_task(call_until_refused(fields)) for fields in (STREAM, SSE, WHOLE) * 3]
        await until(lambda: len(running.stages.written) >= 18, "the clients are served")
        running.process.process.terminate()
        assert all(await asyncio.gather(*clients))
        assert await running.exited() == 0


async def test_an_unfinished_upload_is_refused_and_does_not_delay_the_drain(tmp_path: Path) -> None:
    async with gateway(tmp_path, drain_seconds=10 * DEADLINE) as running:
        reader, writer = await running.connect()
        sent = asyncio.Event()
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{".encode()
        )

        async def endless() -> AsyncIterator[bytes]:
            yield b"{"
            sent.set()
            await asyncio.Event().wait()

        upload = asyncio.create_task(
            running.http.post(PATH, content=endless(), headers={"Content-Type": "application/json"})
        )
        await sent.wait()
        # What was sent before has been read when this is answered.
        assert (await running.http.get("/health")).status_code == 200
        running.process.process.terminate()
        head, _, body = (await asyncio.wait_for(reader.read(), DEADLINE)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in head.lower()
        assert json.loads(body)["error"]["code"] == "draining"
        assert await running.exited() == 0
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)
        writer.close()


async def test_a_client_that_does_not_read_does_not_delay_the_exit(tmp_path: Path) -> None:
    async with gateway(tmp_path, 0.5) as running:
        running.stages.script = Script(frames=6000, chunk=600)
        reader, writer = await running.connect()
        body = json.dumps(SSE)
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.transport.pause_reading()
        writer.write((head + body).encode())
        await until(lambda: list(running.stages.written.values()) == [6000], "all audio was generated")
        running.process.process.terminate()
        assert await running.exited() == 0
        writer.transport.abort()
        del reader
