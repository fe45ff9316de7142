"""Who may open `/v1/audio/speech/stream`, and what counts there: keys, limits, origins, TLS, spans."""

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from support.api_keys import Keys
from support.speech_socket import connected, serving
from support.stages import pipeline
from support.streams import Streams
from support.tls import Authority
from syrinx_stages.contract.api import SPEECH_STREAM_PATH
from syrinx_stages.runtime.http.tls import Certificate

pytestmark = pytest.mark.virtual


@pytest.fixture
async def streams() -> AsyncIterator[Streams]:
    it = Streams()
    yield it
    await it.close()


async def refused_with(url: str, **options: object) -> tuple[int, dict]:
    with pytest.raises(InvalidStatus) as refusal:
        async with connected(url, **options):
            pass
    response = refusal.value.response
    assert response.headers["x-request-id"]
    return response.status_code, json.loads(bytes(response.body))["error"]


async def test_a_key_is_required_as_for_requests(tmp_path: Path, streams: Streams) -> None:
    keys = Keys(tmp_path, alice={})
    async with serving(streams, api_keys_file=str(keys.file)) as (url, _, registry):
        for options in ({}, {"additional_headers": {"Authorization": "Bearer sk-other"}}):
            status, error = await refused_with(url, **options)
            assert (status, error["code"]) == (401, "invalid_api_key")
        assert registry.get_sample_value("syrinx_unauthorized_requests_total") == 2
        async with connected(url, additional_headers=keys.of("alice")) as client:
            await client.send("session.config")
            assert client.socket.subprotocol is None
        # A browser has no headers, and only this place for the key.
        protocols = ["speech", "openai-insecure-api-key." + keys.keys["alice"]]
        async with connected(url, subprotocols=protocols) as client:
            assert client.socket.subprotocol == "speech", "the key is not repeated"


async def test_each_utterance_counts_toward_the_limits_of_a_key(tmp_path: Path) -> None:
    keys = Keys(tmp_path, alice={"requests_per_second": 0.001})
    async with (
        pipeline() as stages,
        serving(stages.streams, api_keys_file=str(keys.file)) as (url, _, registry),
        connected(url, additional_headers=keys.of("alice")) as client,
    ):
        await client.send("session.config", text_mode="tokens")
        while not client.of_type("error"):
            await client.send("input.text", text="She waited.")
            await client.send("input.done")
            await client.until("session.done")
        number = len(client.audio)
        assert number > 0, "the first one is within the limit"
        [error] = client.of_type("error")
        assert error["code"] == "rate_limit_exceeded" and error["retry_after"] > 1
        assert client.of_type("audio.done")[-1]["error"]
        limited = {"client": "alice", "limit": "requests"}
        assert registry.get_sample_value("syrinx_client_limited_total", limited) == 1
        stopped = {"client": "alice", "outcome": "stop"}
        assert registry.get_sample_value("syrinx_client_requests_total", stopped) == number


async def test_web_pages_of_other_origins_are_refused(streams: Streams) -> None:
    async with serving(streams, cors_origins=["https://app.example"]) as (url, _, _):
        status, error = await refused_with(url, origin="https://evil.example")
        assert (status, error["code"]) == (403, "origin_not_allowed")
        for origin in ("https://app.example", url, None):
            async with connected(url, origin=origin) as client:
                await client.send("session.config")
                await client.send("input.done")
                await client.until("session.done")


async def test_other_requests_for_the_path_and_upgrades_elsewhere(streams: Streams) -> None:
    async with serving(streams) as (url, _, _), httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for method in ("GET", "POST"):
            answer = await http.request(method, SPEECH_STREAM_PATH, json={"input": "Hello."})
            assert (answer.status_code, answer.json()["error"]["code"]) == (426, "upgrade_required")
            assert (answer.headers["Upgrade"], answer.headers["Connection"]) == ("websocket", "Upgrade")
            assert "a whole text is sent to POST /v1/audio/speech" in answer.json()["error"]["message"]
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert (await http.get("/v1/models", headers=upgrade)).status_code == 200
        assert (await http.get(SPEECH_STREAM_PATH, headers=upgrade)).status_code == 400, "no handshake"


async def test_a_message_that_is_too_large_closes_the_connection(streams: Streams) -> None:
    async with serving(streams) as (url, _, _), connected(url) as client:
        await client.socket.send("x" * (5 * 2**20))
        await client.socket.wait_closed()
        assert client.socket.close_code == 1009


async def test_a_gateway_with_a_certificate_serves_it_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.server("IP:127.0.0.1")
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    async with (
        pipeline() as stages,
        serving(stages.streams, Certificate(str(certificate), str(key))) as (url, _, _),
        connected(url, ssl=trusted) as client,
    ):
        assert url.startswith("https:")
        await client.send("session.config", text_mode="tokens", seed=5)
        for piece in ("She waited ", "for ", "two ", "days."):
            await client.send("input.text", text=piece)
        await client.send("input.done")
        await client.until("session.done")
        assert len(client.audio[0, 0]) == client.of_type("audio.done")[0]["total_bytes"] > 10_000
