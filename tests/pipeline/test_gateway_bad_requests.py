"""Requests that are refused before they reach the stages."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from support.gateway import Gateway
from support.waiting import DEADLINE, until
from syrinx_stages.gateway.fields.json_objects import MAX_BODY
from syrinx_stages.gateway.http.body import (
    BODY_SECONDS,
    EVICTABLE_SECONDS,
    IDLE_SECONDS,
    MAX_REFERENCE_BODY,
    MAX_UPLOADS,
)
from syrinx_stages.runtime.clock import monotonic

pytestmark = pytest.mark.virtual


@pytest.mark.parametrize(
    ("headers", "code", "message"),
    [
        ({}, "unsupported_media_type", "Content-Type is missing; send application/json"),
        ({"Content-Type": "text/plain"}, "unsupported_media_type", "'text/plain'"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "unsupported_encoding", "'gzip'"),
    ],
)
async def test_a_body_that_is_not_plain_json_is_a_415(running: Gateway, headers: dict, code: str, message: str):
    """A web page can send any body to a gateway on its reader's machine unless it must say that it is JSON."""
    response = await running.http.post("/v1/audio/speech", content=b'{"input": "a"}', headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (415, code)
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize("max_body", [MAX_BODY, MAX_REFERENCE_BODY])
@pytest.mark.parametrize("announced", [True, False])
async def test_oversized_body_is_a_413(running: Gateway, announced: bool, max_body: int):
    running.service.max_body = max_body

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield bytes(2**20)

    headers = {"Content-Type": "application/json", **({"Content-Length": str(200 * 2**20)} if announced else {})}
    response = await running.http.post("/v1/audio/speech", content=chunks(), headers=headers)
    assert response.status_code == 413
    assert f"{max_body // 2**20} MB" in response.json()["error"]["message"]
    assert (await running.say()).status_code == 200


LARGE = b'{"inputs": "a", "ref_audio": "' + b"a" * MAX_BODY + b'"}'
"""Refused as invalid when it is complete."""


async def send_large(running: Gateway, last: asyncio.Event | None = None) -> int:
    """Sends a body with reference audio, of which the last byte waits for `last`. Returns the status."""

    async def content() -> AsyncIterator[bytes]:
        yield LARGE[:-1]
        if last is not None:
            await last.wait()
        yield LARGE[-1:]

    headers = {"Content-Type": "application/json"}
    return (await running.http.post("/v1/audio/speech", content=content(), headers=headers)).status_code


async def test_number_of_large_bodies_is_limited(running: Gateway):
    running.service.max_body = MAX_REFERENCE_BODY
    last = asyncio.Event()
    async with asyncio.timeout(DEADLINE):
        held = [asyncio.create_task(send_large(running, last)) for _ in range(MAX_UPLOADS)]
        await until(lambda: len(running.service.uploads) == MAX_UPLOADS, "there is no room")
        assert await send_large(running) == 503
        assert (await running.say()).status_code == 200
        last.set()
        assert set(await asyncio.gather(*held)) == {400}
        assert await send_large(running) == 400, "there is room again"


async def test_stalled_uploads_do_not_keep_others_out(running: Gateway):
    running.service.max_body = MAX_REFERENCE_BODY
    async with asyncio.timeout(DEADLINE):
        stalled = [asyncio.create_task(send_large(running, asyncio.Event())) for _ in range(MAX_UPLOADS)]
        await until(lambda: len(running.service.uploads) == MAX_UPLOADS, "there is no room")
        await asyncio.sleep(EVICTABLE_SECONDS + 0.1)
        assert await send_large(running) == 400, "the slowest one has made room"
        assert len(running.service.uploads) == MAX_UPLOADS - 1, "the others go on"
        for call in stalled:
            call.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)


@pytest.mark.parametrize(("pause", "limit"), [(1.0, BODY_SECONDS), (1000.0, IDLE_SECONDS)], ids=["slow", "idle"])
async def test_late_body_is_a_408(running: Gateway, pause: float, limit: float):
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(running.url).port)
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n"
    writer.write(head + b"{")

    async def write_slowly() -> None:
        while True:
            await asyncio.sleep(pause)
            writer.write(b" ")

    began, writing = monotonic(), asyncio.create_task(write_slowly())
    response = await reader.readuntil(b"body_timeout")
    assert response.startswith(b"HTTP/1.1 408 ")
    assert monotonic() - began == pytest.approx(limit, abs=pause)
    writing.cancel()
    writer.close()
