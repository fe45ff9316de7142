"""A gateway process after SIGTERM: what clients on real sockets get, with scripted stages."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI

from support.gateway import Script, Stages, tone
from support.process import StageProcess
from support.streams import Streams, redis_url
from support.waiting import DEADLINE, until
from syrinx_stages.contract.family import FAMILY

GRACE = 6.0
"""Seconds that a gateway may take beyond `drain_seconds` on a busy machine."""
PATH = "/v1/audio/speech"
STREAM = {"input": "Hello.", "response_format": "pcm", "stream": True}
SSE = {"input": "Hello.", "response_format": "pcm", "stream_format": "sse"}
WHOLE = {"input": "Hello.", "response_format": "pcm", "stream": False}


@dataclass
class Draining:
    """A gateway process, and the stages behind it."""

    process: StageProcess
    stages: Stages
    streams: Streams
    url: str
    http: httpx.AsyncClient

    def open(self, **body: Any) -> AbstractAsyncContextManager[httpx.Response]:
        """Sends a request; its audio may still be on its way."""
        return self.http.stream("POST", PATH, json=body)

    async def terminate(self) -> None:
        """Sends SIGTERM and waits until the gateway reports that it drains."""
        self.process.process.terminate()
        await until(lambda: self.process.reason() == "draining", "the gateway drains")

    async def exited(self) -> int:
        """Waits for the process and returns its exit status."""
        return await asyncio.to_thread(self.process.process.wait, DEADLINE)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a plain connection."""
        url = httpx.URL(self.url)
        return await asyncio.open_connection(url.host, url.port)


Start = Callable[..., AbstractAsyncContextManager[Draining]]


@contextlib.asynccontextmanager
async def gateway(directory: Path, drain_seconds: float = DEADLINE) -> AsyncIterator[Draining]:
    streams = Streams()
    config = {"pipeline": streams.keys.pipeline, "generation": streams.keys.generation, "drain_seconds": drain_seconds}
    environment = {"REDIS_URL": redis_url(), "REDIS_PASSWORD": ""}
    try:
        async with Stages(streams) as stages:
            with StageProcess("gateway", directory, None, environment=environment, **config) as process:
                await asyncio.to_thread(lambda: process.started().ready())
                url = process.line["url"]
                async with httpx.AsyncClient(base_url=url, timeout=DEADLINE, trust_env=False) as http:
                    yield Draining(process, stages, streams, url, http)
        assert "Traceback" not in process.errors
    finally:
        await streams.close()


async def started(response: httpx.Response) -> tuple[bytes, AsyncIterator[bytes]]:
    """Returns a response's first piece and the iterator of the others."""
    pieces = response.aiter_raw()
    return await anext(pieces), pieces


async def rest(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.removeprefix("data: ")) for block in body.decode().split("\n\n") if block]


def assert_refused(response: httpx.Response) -> None:
    """The 503 of the API, which clients repeat elsewhere."""
    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining"), response.text
    assert int(response.headers["retry-after"]) >= 1
    assert response.headers["connection"] == "close"
    assert len(response.headers["x-request-id"]) == 32


async def test_requests_in_progress_finish_in_every_format(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        running.stages.script = script = Script(pause_after=4)
        async with running.open(**STREAM) as raw, running.open(**SSE) as sse:
            whole = asyncio.create_task(running.http.post(PATH, json=WHOLE))
            await until(lambda: len(running.stages.written) == 3, "the stages serve all")
            await running.terminate()
            script.go.set()
            assert b"".join([piece async for piece in raw.aiter_raw()]) == tone(10)
            assert events(await sse.aread())[-1]["type"] == "speech.audio.done"
            response = await whole
            assert (response.status_code, response.content, response.headers["connection"]) == (200, tone(10), "close")
        assert await running.exited() == 0


async def test_new_connections_are_refused_while_the_admin_port_responds(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        running.stages.script = script = Script(pause_after=4)
        async with running.open(**STREAM) as response:
            first, pieces = await started(response)
            await running.terminate()
            with pytest.raises(ConnectionRefusedError):
                await running.connect()
            assert running.process.reason() == "draining"
            script.go.set()
            assert first + await rest(pieces) == tone(10)
        assert await running.exited() == 0


@pytest.mark.parametrize("drain_seconds", [0.0, 1.0])
async def test_requests_that_cannot_finish_end_in_their_own_format(tmp_path: Path, drain_seconds: float) -> None:
    async with gateway(tmp_path, drain_seconds) as running:
        running.stages.script = Script(pause_after=4)
        async with running.open(**STREAM) as raw, running.open(**SSE) as sse:
            first, pieces = await started(raw)
            whole = asyncio.create_task(running.http.post(PATH, json=WHOLE))
            await until(lambda: list(running.stages.written.values()) == [4, 4, 4], "all are in progress")
            began = time.monotonic()
            running.process.process.terminate()
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
                await rest(pieces)
            *deltas, error = events(await sse.aread())
            assert {event["type"] for event in deltas} == {"speech.audio.delta"}
            assert (error["type"], error["error"]["code"]) == ("speech.audio.error", "draining")
            assert_refused(await whole)
        assert len(first) % FAMILY.frame_bytes == 0
        assert await running.exited() == 0
        assert drain_seconds <= time.monotonic() - began < drain_seconds + GRACE
        await until(lambda: len(running.streams) == 0, "the requests are released")


async def test_the_openai_client_sees_a_503_or_an_incomplete_transfer(tmp_path: Path) -> None:
    async with gateway(tmp_path, 0.5) as running:
        running.stages.script = Script(pause_after=4)
        async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            arguments: dict[str, Any] = {"model": "syrinx-us", "voice": "us", "input": "x", "response_format": "pcm"}
            streaming = client.audio.speech.with_streaming_response.create(**arguments)
            async with streaming as response:
                pieces = response.iter_bytes()
                await anext(pieces)
                whole = asyncio.create_task(client.audio.speech.create(**arguments, extra_body={"stream": False}))
                await until(lambda: len(running.stages.written) == 2, "both are in progress")
                running.process.process.terminate()
                with pytest.raises(Exception, match="incomplete chunked read"):  # Of the client's own httpx.
                    await rest(pieces)
            with pytest.raises(APIStatusError) as refused:
                await whole
            assert (refused.value.status_code, refused.value.code) == (503, "draining")
            assert refused.value.response.headers["retry-after"] == "1"
            assert refused.value.request_id is not None
        assert await running.exited() == 0


async def test_a_request_that_arrives_with_the_signal_on_an_open_connection_is_served(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        (await running.http.get("/v1/models")).raise_for_status()
        reader, writer = await running.connect()
        running.process.process.terminate()
        late = await running.http.post(PATH, json=WHOLE)
        assert (late.status_code, late.content, late.headers["connection"]) == (200, tone(10), "close")
        assert await asyncio.wait_for(reader.read(), DEADLINE) == b"", "an unused connection is closed"
        assert await running.exited() == 0
        writer.close()


@pytest.mark.parametrize("kept_alive", [False, True], ids=["new connections", "kept-alive connections"])
async def test_under_load_each_request_is_served_whole_or_its_connection_refused(
    tmp_path: Path, kept_alive: bool
) -> None:
    async with gateway(tmp_path) as running:

        async def call_until_refused(fields: dict[str, Any]) -> int:
            limits = httpx.Limits(max_keepalive_connections=None if kept_alive else 0)
            async with httpx.AsyncClient(
                base_url=running.url, timeout=DEADLINE, trust_env=False, limits=limits
            ) as http:
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


async def test_idle_connections_close_soon_while_a_stream_continues(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        running.stages.script = script = Script(pause_after=4)
        async with running.open(**STREAM) as response:
            first, pieces = await started(response)
            reader, writer = await running.connect()
            writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in await reader.readline()
            began = time.monotonic()
            await running.terminate()
            assert b"syrinx-us" in await asyncio.wait_for(reader.read(), DEADLINE)
            assert time.monotonic() - began < GRACE
            script.go.set()
            assert first + await rest(pieces) == tone(10)
        writer.close()


async def test_an_unfinished_upload_is_refused_and_does_not_delay_the_drain(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        reader, writer = await running.connect()
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{".encode()
        )
        slow = httpx.AsyncClient(base_url=running.url, timeout=DEADLINE, trust_env=False)

        async def endless() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

        upload = asyncio.create_task(slow.post(PATH, content=endless(), headers={"Content-Type": "application/json"}))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        running.process.process.terminate()
        head, _, body = (await asyncio.wait_for(reader.read(), DEADLINE)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in head.lower()
        assert json.loads(body)["error"]["code"] == "draining"
        assert await running.exited() == 0
        assert time.monotonic() - began < 5 + GRACE
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)
        await slow.aclose()
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
        began = time.monotonic()
        running.process.process.terminate()
        assert await running.exited() == 0
        assert time.monotonic() - began < 0.5 + GRACE
        writer.transport.abort()
        del reader
