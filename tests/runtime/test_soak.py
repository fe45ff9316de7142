"""The soak's proxy and clients, in virtual time."""

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from soak.load import Load, Utterance, Verdict
from soak.proxy import Proxy
from support.waiting import DEADLINE, until

pytestmark = pytest.mark.virtual


# The proxy ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def echo_server() -> AsyncIterator[tuple[int, list[bytes]]]:
    """Yields the port of a server that echoes what it receives, and what it has received."""
    received: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1024):
                received.append(data)
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1], received


async def test_a_partition_holds_data_back_and_delivers_it_even_if_its_sender_has_closed():
    async with asyncio.timeout(DEADLINE), echo_server() as (port, received), Proxy([port]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[port])
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        proxy.partition(from_redis=False)
        writer.write(b"late")
        writer.close()
        await writer.wait_closed()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(until(lambda: len(received) > 1, "both have arrived"), 0.1)
        proxy.heal()
        await until(lambda: received == [b"before", b"late"], "both have arrived")


async def test_a_reset_ends_connections_and_new_ones_work():
    async with asyncio.timeout(DEADLINE), echo_server() as (port, _), Proxy([port]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[port])
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.reset()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[port])
        writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        writer.close()


# The clients ----------------------------------------------------------------------------------------------------

PCM = bytes(range(200))


class FakeGateway:
    """A gateway whose answers to streams and files are set by a test."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, bool]] = []
        """Status, body, and whether the connection is cut after it."""

    async def speech(self, request: web.Request) -> web.StreamResponse:
        if "stream_format" in await request.json():
            delta = {"type": "speech.audio.delta", "audio": base64.b64encode(PCM).decode()}
            done = {"type": "speech.audio.done", "usage": {"output_tokens": 1}}
            return web.Response(text="".join(f"data: {json.dumps(event)}\n\n" for event in (delta, done)))
        status, body, cut = self.answers.pop(0)
        response = web.StreamResponse(status=status, headers={"X-Request-Id": "r"})
        await response.prepare(request)
        await response.write(body)
        if cut:
            request.transport.abort()
        return response


@contextlib.asynccontextmanager
async def gateway_and_load() -> AsyncIterator[tuple[FakeGateway, Load]]:
    gateway, app = FakeGateway(), web.Application()
    app.router.add_post("/v1/audio/speech", gateway.speech)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        async with Load({"gateway-0": f"http://{host}:{port}"}) as load:
            [recorded] = await load.record([Utterance({"input": "text"})])
            assert (recorded.pcm, recorded.frames) == (PCM, 1)
            yield gateway, load
    finally:
        await runner.cleanup()


def error(code: str) -> bytes:
    return json.dumps({"error": {"message": "", "code": code}}).encode()


@pytest.mark.parametrize(
    ("answer", "verdict", "words"),
    [
        ((200, PCM, False), Verdict.COMPLETE, ""),
        ((200, PCM[:50], False), Verdict.MISMATCH, "50 bytes differ"),
        ((200, b"x" + PCM[1:], False), Verdict.MISMATCH, "200 bytes differ"),
        ((200, PCM[:50], True), Verdict.LOST, "cut off"),
        ((200, b"x" + PCM[1:50], True), Verdict.MISMATCH, "50 bytes differ"),
        ((500, error("internal_error"), False), Verdict.LOST, "http 500"),
        ((503, error("request_lost"), False), Verdict.LOST, "request_lost"),
    ],
)
async def test_a_client_tells_whole_from_wrong_and_lost(answer, verdict, words):
    async with asyncio.timeout(DEADLINE), gateway_and_load() as (gateway, load):
        gateway.answers = [answer]
        result = await load.request(random.Random(1), live=True)
    assert (result.verdict, words in result.message) == (verdict, True), result.message
    assert load.outcomes == [result]


async def test_a_refused_request_is_sent_again():
    async with asyncio.timeout(DEADLINE), gateway_and_load() as (gateway, load):
        gateway.answers = [(503, error("queue_full"), False), (200, PCM, False)]
        await load.request(random.Random(1), live=True)
    assert [each.verdict for each in load.outcomes] == [Verdict.REFUSED, Verdict.COMPLETE]
