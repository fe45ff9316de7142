"""API keys with their limits and usage, and access from web pages, at a real gateway."""

import asyncio
import logging
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client import CollectorRegistry

from support.api_keys import Keys
from support.gateway import Gateway, Script, gateway, tone
from support.waiting import DEADLINE, until
from syrinx_stages.gateway.clients.access import ApiKeys
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.telemetry.metrics import Metrics

pytestmark = pytest.mark.virtual

SPEECH = "/v1/audio/speech"
BODY = {"input": "Hello.", "response_format": "pcm"}


async def post(running: Gateway, headers: dict[str, str], **fields: object) -> httpx.Response:
    return await running.http.post(SPEECH, json=BODY | fields, headers=headers)


async def test_a_request_without_a_valid_key_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    keys = Keys(tmp_path, alice={})
    async with gateway(api_keys_file=str(keys.file)) as running:
        host, port = running.url.removeprefix("http://").split(":")
        for sent, message in (
            ("", "no API key"),
            ("Authorization: Bearer \r\n", "no API key"),
            (f"Authorization: Basic {keys.keys['alice']}\r\n", "no API key"),
            ("Authorization: Bearer sk-other\r\n", "not valid"),
            (f"Authorization: Bearer {keys.keys['alice']}x\r\n", "not valid"),
            ("Authorization: Bearer \xff\xfe\r\n", "not valid"),
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            head = (
                f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\n{sent}Content-Type: application/json\r\nContent-Length: 50\r\n"
            )
            writer.write(head.encode("latin-1") + b"\r\n")
            async with asyncio.timeout(DEADLINE):
                answer = (await reader.readuntil(b"}}")).decode()
            writer.close()
            assert answer.startswith("HTTP/1.1 401 ") and message in answer, sent
            assert "\r\nwww-authenticate: bearer\r\n" in answer.lower()
            assert '"code": "invalid_api_key"' in answer and '"type": "invalid_request_error"' in answer
            assert "\r\nx-request-id: " in answer.lower()
            assert "sk-" not in answer
        assert running.metric("syrinx_unauthorized_requests_total") == 6
        assert not running.stages.seen
        accepted = await post(running, {"Authorization": f"bearer {keys.keys['alice']}"})
        assert (accepted.status_code, accepted.content) == (200, tone(10)), "a scheme's case does not matter"


async def test_the_whole_api_needs_a_key_but_not_health_and_its_description(tmp_path: Path) -> None:
    keys = Keys(tmp_path, alice={})
    async with gateway(api_keys_file=str(keys.file)) as running:
        await until(lambda: running.service.ready() is None, "it is ready")
        for path in ("/v1/models", "/v1/models/syrinx-us", "/v1/audio/voices", "/v1/audio/models", "/v1/unknown"):
            assert (await running.http.get(path)).status_code == 401, path
            assert (await running.http.get(path, headers=keys.of("alice"))).status_code != 401, path
            assert (await running.http.get(path.replace("/v1", "/%761"))).status_code == 401, path
        for path in ("/health", "/openapi.json"):
            assert (await running.http.get(path)).status_code == 200, path


async def test_openai_clients_send_the_key_and_recognize_the_errors(tmp_path: Path) -> None:
    keys = Keys(tmp_path, alice={"streams": 1})
    async with gateway(api_keys_file=str(keys.file)) as running:
        wrong = openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        right = openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=keys.keys["alice"], max_retries=0)
        speech = {"model": "tts-1", "voice": "alloy", "input": "Hello.", "response_format": "pcm"}
        with pytest.raises(openai.AuthenticationError) as refused:
            await wrong.audio.speech.create(**speech)
        assert (refused.value.code, refused.value.type) == ("invalid_api_key", "invalid_request_error")
        assert (await right.audio.speech.create(**speech)).content == tone(10)
        running.stages.script = script = Script(pause_after=2)
        first = asyncio.create_task(right.audio.speech.create(**speech))
        await until(lambda: len(running.stages.seen) == 2, "it is claimed")
        with pytest.raises(openai.RateLimitError) as limited:
            await right.audio.speech.create(**speech)
        assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", "requests")
        script.go.set()
        assert (await first).content == tone(10)
        await wrong.close()
        await right.close()


async def test_a_rate_is_limited_with_an_honest_retry_after(tmp_path: Path) -> None:
    keys = Keys(tmp_path, slow={"requests_per_second": 0.001, "burst": 2}, free={})
    async with gateway(api_keys_file=str(keys.file)) as running:
        for _ in range(2):
            assert (await post(running, keys.of("slow"))).status_code == 200
        limited = await running.http.post(SPEECH, content=b"x" * 100_000, headers=keys.of("slow"))
        assert (limited.status_code, limited.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 900 < int(limited.headers["retry-after"]) <= 1000
        assert (await running.http.get("/v1/models", headers=keys.of("slow"))).status_code == 200, "only what is posted"
        assert (await post(running, keys.of("free"))).status_code == 200
        assert running.metric("syrinx_client_limited_total", client="slow", limit="requests") == 1
        assert running.metric("syrinx_client_requests_total", client="slow", outcome="stop") == 2
        assert running.requests("refused") == 0, "no overload"


async def test_streams_at_once_are_limited_until_one_ends_or_disconnects(tmp_path: Path) -> None:
    keys = Keys(tmp_path, alice={"streams": 2})
    async with gateway(api_keys_file=str(keys.file)) as running:
        running.stages.script = Script(pause_after=2)
        calls = [asyncio.create_task(post(running, keys.of("alice"))) for _ in range(2)]
        await until(lambda: len(running.stages.seen) == 2, "both are claimed")
        limited = await post(running, keys.of("alice"))
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "1")
        assert running.metric("syrinx_client_limited_total", client="alice", limit="streams") == 1
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        running.stages.script = Script()
        cancelled = {"client": "alice", "outcome": "cancelled"}
        await until(lambda: running.metric("syrinx_client_requests_total", **cancelled) == 2, "both have ended")
        await until(lambda: len(running.service.requests._requests) == 0, "nothing is in progress")
        assert (await post(running, keys.of("alice"))).status_code == 200


async def test_the_items_of_a_batch_are_requests_of_its_client(tmp_path: Path) -> None:
    keys = Keys(tmp_path, alice={"requests_per_second": 0.001, "burst": 1, "streams": 2})
    async with gateway(api_keys_file=str(keys.file)) as running:
        running.stages.script = script = Script(pause_after=2)
        body = {"items": [{"input": "Hello."}] * 4, "response_format": "pcm"}
        call = asyncio.create_task(running.http.post(f"{SPEECH}/batch", json=body, headers=keys.of("alice")))
        await until(lambda: len(running.stages.seen) == 2, "two are claimed")
        await asyncio.sleep(0.1)
        assert len(running.stages.seen) == 2, "no more at once"
        script.go.set()
        assert (await call).json()["succeeded"] == 4
        assert running.metric("syrinx_client_requests_total", client="alice", outcome="stop") == 4
        assert running.metric("syrinx_client_audio_seconds_total", client="alice") == pytest.approx(3.2)
        limited = await post(running, keys.of("alice"))
        assert limited.status_code == 429 and 3900 < int(limited.headers["retry-after"]) <= 4000


async def test_keys_are_rotated_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys(tmp_path, old={}, new={})
    keys.write("old")
    async with gateway(api_keys_file=str(keys.file)) as running:

        async def accepted(name: str) -> bool:
            return (await running.http.get("/v1/models", headers=keys.of(name))).status_code == 200

        async def becomes(name: str, valid: bool) -> None:
            async with asyncio.timeout(DEADLINE):
                while await accepted(name) != valid:
                    await asyncio.sleep(0.01)

        assert await accepted("old") and not await accepted("new")
        running.stages.script = script = Script(pause_after=2)
        streaming = asyncio.create_task(post(running, keys.of("old")))
        await until(lambda: running.stages.seen, "it is claimed")
        keys.write("old", "new")
        await becomes("new", True)
        assert await accepted("old")
        keys.write("new")
        await becomes("old", False)
        script.go.set()
        assert (await streaming).content == tone(10), "a stream survives its key"

        def valid() -> float:
            return running.metric("syrinx_file_valid", file="api_keys")

        assert valid() == 1
        with caplog.at_level(logging.ERROR):
            keys.file.write_text('{"name": "eve", "sha256": "sk-plain"}\n')
            await until(lambda: valid() == 0, "the file was refused")
        assert await accepted("new")
        assert f"{keys.file}: line 1: " in caplog.text and "sk-plain" not in caplog.text
        keys.file.unlink()
        await until(lambda: "cannot read" in caplog.text, "the missing file was noticed")
        assert await accepted("new")
        keys.write("old")
        await becomes("old", True)
        assert valid() == 1 and not await accepted("new")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read .*keys: No such file"), ("", "keys: contains no key"), ("sk-plain", "keys: line 1: ")],
)
def test_a_gateway_does_not_start_without_valid_keys(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "keys").write_text(content)
    with pytest.raises(StartError, match=message) as refused:
        ApiKeys(str(tmp_path / "keys"), Metrics(CollectorRegistry()))
    assert "sk-plain" not in str(refused.value)


ORIGIN = "https://app.example.org"


async def test_web_pages_of_allowed_origins_may_call_the_api(tmp_path: Path) -> None:
    keys = Keys(tmp_path, alice={})
    async with gateway(api_keys_file=str(keys.file), cors_origins=(ORIGIN,)) as running:
        asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
        asked["Access-Control-Request-Headers"] = "authorization, content-type, x-stainless-lang"
        preflight = await running.http.options(SPEECH, headers=asked)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert preflight.headers["access-control-allow-headers"] == asked["Access-Control-Request-Headers"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
        for headers, status in ((keys.of("alice"), 200), ({}, 401)):
            response = await post(running, {"Origin": ORIGIN, **headers})
            assert (response.status_code, response.headers["access-control-allow-origin"]) == (status, ORIGIN)
            exposed = set(response.headers["access-control-expose-headers"].split(", "))
            assert exposed >= {"X-Request-Id", "X-Seed", "X-Sample-Rate", "X-Finish-Reason", "Retry-After", "Warning"}
        other = await post(running, {"Origin": "https://evil.example", **keys.of("alice")})
        assert "access-control-allow-origin" not in other.headers
        refused = await running.http.options(SPEECH, headers=asked | {"Origin": "https://evil.example"})
        assert refused.status_code == 400 and "access-control-allow-origin" not in refused.headers


async def test_web_pages_may_read_why_a_drain_cut_them_off() -> None:
    async with gateway(cors_origins=("*",)) as running:
        running.stages.script = Script(pause_after=0)
        call = asyncio.create_task(post(running, {"Origin": ORIGIN}))
        await until(lambda: running.stages.seen, "it is claimed")
        await running.service.drain(0.1)
        response = await call
        assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
        assert response.headers["access-control-allow-origin"] == "*"


async def test_without_configuration_no_page_of_another_origin_may_call() -> None:
    async with gateway() as running:
        response = await post(running, {"Origin": ORIGIN})
        assert response.status_code == 200 and "access-control-allow-origin" not in response.headers
