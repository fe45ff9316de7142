"""A gateway that forwards a share of its requests to the gateway of a canary, with scripted stages behind both."""

import asyncio
import random
from collections.abc import AsyncIterator

import httpx
import pytest

from support.canary import Pair, gateways
from support.gateway import SERVED, Script, tone
from support.tls import Authority, tls_front
from support.waiting import until
from syrinx_stages.contract.settings import TlsFiles
from syrinx_stages.runtime.settings import SettingsUpdate

pytestmark = pytest.mark.virtual

STREAM = {"response_format": "pcm", "stream": True}


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with gateways() as running:
        yield running


async def counted(pair: Pair, stable: int, canary: int, **forwards: int) -> None:
    """Waits until each side has counted so many requests as served, and the stable one these as forwarded."""

    def holds() -> bool:
        served = (pair.stable.requests("stop"), pair.canary.requests("stop"))
        return served == (stable, canary) and all(pair.forwards(each) == n for each, n in forwards.items())

    await until(holds, f"{stable} and {canary} requests are counted, and {forwards}")


async def test_a_forwarded_request_is_served_and_counted_by_the_canary_alone(pair):
    pair.route()
    answer = await pair.stable.http.post(
        "/v1/audio/speech", json={"input": "Hello.", "seed": 5, **STREAM}, headers={"X-Request-Id": "mine-7"}
    )
    assert answer.content == tone(10)
    assert (answer.headers["x-request-id"], answer.headers["x-seed"]) == ("mine-7", "5")
    await counted(pair, 0, 1, answered=1)
    assert pair.canary.metric("syrinx_ttfa_seconds_count", **SERVED) == 1
    assert [request.seed for request in pair.canary.stages.seen] == [5] and pair.stable.stages.seen == []


@pytest.mark.parametrize("weight", [0.1, 0.5])
async def test_the_share_of_requests_is_the_weight(pair, weight):
    random.seed(1)
    pair.route(weight=weight)
    requests = 100
    answers = await asyncio.gather(*(pair.stable.say(**STREAM) for _ in range(requests)))
    assert {answer.content for answer in answers} == {tone(10)}
    await until(lambda: pair.stable.requests("stop") + pair.canary.requests("stop") == requests, "all are counted")
    # Four standard deviations, beyond which one of 16,000 runs is.
    assert abs(pair.canary.requests("stop") / requests - weight) < 4 * (weight * (1 - weight) / requests) ** 0.5


async def test_only_speech_is_forwarded(pair):
    pair.route(pair.refusing_url)
    for path in ("/v1/models", "/v1/audio/voices"):
        assert (await pair.stable.http.get(path)).status_code == 200
    assert pair.forwards("fallback") == 0


async def test_a_canary_that_cannot_be_reached_costs_no_request(pair):
    pair.route(pair.refusing_url)
    answer = await pair.stable.say(**STREAM)
    assert answer.content == tone(10)
    await counted(pair, 1, 0, fallback=1)


async def test_a_canary_that_breaks_the_connection_gives_503_or_an_event(pair):
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"}")
        if b'"sse"' in request:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + b"5\r\ndata:\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(broken, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        pair.route(f"http://{host}:{port}")
        answer = await pair.stable.say()
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        answer = await pair.stable.say(stream_format="sse", response_format="pcm")
        assert b"speech.audio.error" in answer.content
    assert pair.forwards("failed") == 2


async def test_a_client_that_leaves_before_the_first_audio_reaches_the_canary(pair):
    pair.route()
    pair.canary.stages.script = Script(pause_after=0)
    waiting = asyncio.create_task(pair.stable.say())
    await until(lambda: pair.canary.stages.seen, "the canary has the request")
    waiting.cancel()
    await pair.canary.counted("cancelled")
    pair.canary.stages.script.go.set()


async def test_a_stream_ends_on_the_canary_after_the_route_is_gone(pair):
    pair.route()
    pair.canary.stages.script = Script(pause_after=2)
    async with pair.stable.http.stream("POST", "/v1/audio/speech", json={"input": "Hello.", **STREAM}) as answer:
        chunks = answer.aiter_raw()
        pcm = await anext(chunks)
        base = pair.stable.service.live
        base.apply(SettingsUpdate({}, generation=base.generation))
        assert (await pair.stable.say(**STREAM)).content == tone(10)
        pair.canary.stages.script.go.set()
        async for chunk in chunks:
            pcm += chunk
    assert pcm == tone(10)
    await counted(pair, 1, 1, answered=1)


async def test_the_route_expires_without_an_operator(pair):
    pair.route(seconds=0.01)
    await asyncio.sleep(0.02)
    await pair.stable.say(**STREAM)
    await counted(pair, 1, 0, answered=0)


async def test_with_tls_only_a_canary_with_the_same_certificate_is_trusted(tmp_path):
    own, other = (Authority(tmp_path / name).server("DNS:speech.example.com") for name in ("own", "other"))
    async with gateways(tls=TlsFiles(certificate=str(own[0]), key=str(own[1]))) as pair:
        port = httpx.URL(pair.canary.url).port
        for certificate, key in (own, other):
            async with tls_front(port, certificate, key) as front:
                pair.route(f"https://127.0.0.1:{front}")
                assert (await pair.stable.say(**STREAM)).content == tone(10)
        await counted(pair, 1, 1, answered=1, fallback=1)
