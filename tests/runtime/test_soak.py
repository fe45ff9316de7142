"""The soak's clients, in virtual time."""

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from soak.load import Load, Utterance, Verdict
from support.waiting import DEADLINE

pytestmark = pytest.mark.virtual


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
