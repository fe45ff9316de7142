"""Sessions of text that streams in, forwarded to the gateway of a canary, with scripted stages behind both."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus

from support.canary import Pair, gateways
from support.gateway import Gateway, Script, tone
from support.speech_socket import Client, connected
from support.waiting import DEADLINE, until
from syrinx_stages.contract.api import NARI_STREAM_PATH, SPEECH_STREAM_PATH
from syrinx_stages.gateway.http.api import create_app
from syrinx_stages.gateway.socket.nari import PROTOCOL
from syrinx_stages.runtime.http.server import HttpServer

pytestmark = pytest.mark.virtual

PCM = {"response_format": "pcm", "stream_audio": True}


@contextlib.asynccontextmanager
async def server_of(running: Gateway) -> AsyncIterator[str]:
    paths = SPEECH_STREAM_PATH, NARI_STREAM_PATH
    server = HttpServer(create_app(running.service), "127.0.0.1", 0, 100, websocket_paths=paths)
    try:
        yield server.url
    finally:
        await server.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with gateways() as it, server_of(it.stable) as it.url, server_of(it.canary) as it.canary_url:
        yield it


async def speak(client: Client, text: str = "Hello.") -> None:
    await client.send("session.config", **PCM)
    await client.send("input.text", text=text)
    await client.send("input.done")


async def test_a_forwarded_session_is_served_and_counted_by_the_canary_alone(pair: Pair) -> None:
    pair.route()
    async with connected(pair.url, subprotocols=["speech"]) as client:
        assert client.socket.subprotocol == "speech"
        for utterance in range(2):
            await speak(client)
            assert (await client.until("session.done"))["utterance_index"] == utterance
            assert client.audio[utterance, 0] == tone(10)
        await client.send("session.close")
        await client.socket.wait_closed()
    assert client.socket.close_code == 1000
    assert (len(pair.stable.stages.seen), len(pair.canary.stages.seen)) == (0, 2)
    await pair.forwarded("answered")


async def test_errors_and_close_codes_are_those_of_the_canary(pair: Pair) -> None:
    pair.route()
    async with connected(pair.url) as client:
        await client.send("session.config", voice="nobody")
        assert (await client.until("error"))["param"] == "voice"
        assert (await client.until("error"))["code"] == "idle_timeout"
        await client.socket.wait_closed()
    assert client.socket.close_code == 1008
    await pair.forwarded("answered")


async def test_a_client_that_leaves_reaches_the_canary(pair: Pair) -> None:
    pair.route()
    pair.canary.stages.script = Script(frames=40, pause_after=2)
    async with connected(pair.url) as client:
        await speak(client)
        await client.until("audio.start")
    await pair.canary.counted("cancelled")
    pair.canary.stages.script.go.set()
    await pair.forwarded("answered")


async def test_a_canary_that_cannot_be_reached_costs_no_session(pair: Pair) -> None:
    pair.route(pair.refusing_url)
    async with connected(pair.url) as client:
        await speak(client)
        await client.until("session.done")
    assert client.audio[0, 0] == tone(10)
    await pair.stable.counted("stop")
    await pair.forwarded("fallback")


async def test_a_version_without_sessions_costs_none(pair: Pair) -> None:
    async with serve(
        lambda socket: socket.close(), "127.0.0.1", 0, process_request=lambda c, r: c.respond(404, "")
    ) as old:
        pair.route(f"http://127.0.0.1:{old.sockets[0].getsockname()[1]}")
        async with connected(pair.url) as client:
            await speak(client)
            await client.until("session.done")
    await pair.forwarded("fallback")


async def test_a_canary_that_is_lost_gives_an_error(pair: Pair) -> None:
    async def lost(socket: ServerConnection) -> None:
        await socket.recv()
        socket.transport.abort()

    async with serve(lost, "127.0.0.1", 0) as server:
        pair.route(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with connected(pair.url) as client:
            await speak(client)
            assert (await client.until("error"))["code"] == "internal_error"
            await client.socket.wait_closed()
    assert client.socket.close_code == 1011
    await pair.forwarded("failed")


async def test_a_web_page_of_another_origin_is_refused_before(pair: Pair) -> None:
    pair.route()
    with pytest.raises(InvalidStatus) as refused:
        async with connected(pair.url, additional_headers={"Origin": "https://attacker.example"}):
            pass
    assert refused.value.response.status_code == 403
    assert pair.forwards("answered") == 0


async def test_a_drain_lets_an_utterance_end(pair: Pair) -> None:
    pair.route()
    pair.canary.stages.script = Script(pause_after=2)
    async with connected(pair.url) as client:
        await speak(client)
        await client.until("audio.start")
        drain = asyncio.create_task(pair.stable.service.drain(DEADLINE))
        await until(lambda: pair.stable.service.requests.draining, "the drain has begun")
        pair.canary.stages.script.go.set()
        await client.until("session.done")
        await client.socket.wait_closed()
        await drain
    assert client.audio[0, 0] == tone(10)
    assert client.socket.close_code == 1012


@contextlib.asynccontextmanager
async def naris_client(url: str) -> AsyncIterator[ClientConnection]:
    """A connection for Nari's messages that has sent a text."""
    address = url.replace("http", "ws", 1) + NARI_STREAM_PATH
    async with connect(address, proxy=None, subprotocols=[PROTOCOL]) as socket:
        for sent in (
            {"type": "request.start", "voice": "us"},
            {"type": "input_text.append", "sequence": 0, "text": "Hello."},
            {"type": "input_text.end", "sequence": 1},
        ):
            await socket.send(json.dumps(sent))
        yield socket


async def rest(socket: ClientConnection) -> tuple[bytes, list[dict[str, object]]]:
    """Returns the audio of a connection up to its end, and its messages."""
    received = [each async for each in socket]
    audio = b"".join(each for each in received if isinstance(each, bytes))
    return audio, [json.loads(each) for each in received if isinstance(each, str)]


async def test_naris_messages_are_forwarded_as_well(pair: Pair) -> None:
    pair.route()
    async with naris_client(pair.url) as socket:
        assert socket.subprotocol == PROTOCOL
        audio, messages = await rest(socket)
    assert (audio, messages[-1]["type"], socket.close_code) == (tone(10), "response.done", 1000)
    assert (len(pair.stable.stages.seen), len(pair.canary.stages.seen)) == (0, 1)
    await pair.forwarded("answered")


async def test_a_lost_canary_is_an_error_in_naris_messages(pair: Pair) -> None:
    async def lost(socket: ServerConnection) -> None:
        await socket.recv()
        socket.transport.abort()

    async with serve(lost, "127.0.0.1", 0, subprotocols=[PROTOCOL]) as server:
        pair.route(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with naris_client(pair.url) as socket:
            message = json.loads(await socket.recv())
            await socket.wait_closed()
    assert message["error"]["code"] == "internal_error"
    assert socket.close_code == 1011
    await pair.forwarded("failed")


async def test_a_drain_lets_an_utterance_in_naris_messages_end(pair: Pair) -> None:
    pair.route()
    pair.canary.stages.script = Script(pause_after=2)
    async with naris_client(pair.url) as socket:
        while not isinstance(await socket.recv(), bytes):
            pass
        drain = asyncio.create_task(pair.stable.service.drain(DEADLINE))
        await until(lambda: pair.stable.service.requests.draining, "the drain has begun")
        pair.canary.stages.script.go.set()
        _, messages = await rest(socket)
        await drain
    assert messages[-1]["type"] == "response.done"
