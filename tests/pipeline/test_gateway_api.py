"""The public API through a real HTTP server, with scripted stages."""

import asyncio
import base64
import io
import json
import socket
import time
import wave
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from openai import APIStatusError, AsyncOpenAI
from prometheus_client import CollectorRegistry

from support.gateway import DEADLINE, Gateway, Script, Stages, gateway, tone, until
from support.streams import Streams
from support.writing import Owner
from syrinx_stages.connector.base import Capacity, StreamEntry, Ticket
from syrinx_stages.connector.redis_connection import Address
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import END_SEQUENCE, Group, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.contract.settings import GatewaySettings, StageConfig
from syrinx_stages.contract.silence import LeadingSilenceTrimmer
from syrinx_stages.gateway import monitor, service
from syrinx_stages.gateway.body import MAX_BODY, MAX_REFERENCE_BODY, MAX_UPLOADS
from syrinx_stages.gateway.encoders import AudioFormat, AudioOptions, Encoder, default_rate
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.settings import SettingsUpdate

SERVED = {"task_type": "CustomVoice", "talker": "talker-0", "codec": "codec-0"}
"""Metric labels of the scripted stages."""


@pytest.fixture
async def running() -> AsyncIterator[Gateway]:
    async with gateway() as it:
        yield it


@pytest.fixture
async def openai(running: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def pcm_of(data: bytes) -> bytes:
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getframerate()) == (1, FAMILY.sample_rate)
        return file.readframes(10**7)


def events(body: bytes) -> list[dict]:
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


# The official client ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"stream": False}], ids=["default", "whole file"])
async def test_openai_client_gets_the_speech(openai: AsyncOpenAI, running: Gateway, extra: dict):
    response = await openai.audio.speech.create(
        model="gpt-4o-mini-tts", voice="alloy", input="Hello.", response_format="wav", extra_body=extra
    )
    assert pcm_of(response.content) == tone(10)
    [request] = running.stages.seen
    assert (request.text, request.voice, request.live) == ("Hello.", "us", not extra)


async def test_openai_client_receives_the_audio_while_it_is_generated(openai: AsyncOpenAI, running: Gateway):
    running.stages.script = script = Script(pause_after=4)
    call = openai.audio.speech.with_streaming_response.create(
        model="tts-1", voice="us", input="Hello.", response_format="pcm"
    )
    received = b""
    async with call as response:
        async for data in response.iter_bytes():
            received += data
            if len(received) == len(tone(4)):
                script.go.set()
    assert received == tone(10)
    assert script.go.is_set()


async def test_openai_client_parses_an_error(openai: AsyncOpenAI):
    with pytest.raises(APIStatusError) as raised:
        await openai.audio.speech.create(model="syrinx-us", voice="alto", input="Hello.")
    assert raised.value.status_code == 400
    assert raised.value.body["param"] == "voice"
    assert "accepted: us, us_f, us_m, gb, alloy" in raised.value.body["message"]
    assert raised.value.request_id


async def test_openai_client_lists_models(openai: AsyncOpenAI):
    assert [model.id async for model in await openai.models.list()] == [
        "syrinx-us",
        "tts-1",
        "tts-1-hd",
        "gpt-4o-mini-tts",
    ]
    assert (await openai.models.retrieve("syrinx-us")).owned_by == "syrinx"
    with pytest.raises(APIStatusError) as raised:
        await openai.models.retrieve("tts-3")
    assert raised.value.status_code == 404


# Whole files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("audio_format", ["wav", "mp3", "flac", "opus", "pcm"])
async def test_every_format_contains_the_speech(running: Gateway, audio_format: str):
    response = await running.say(response_format=audio_format, seed=7, stream=False)
    assert response.status_code == 200
    assert int(response.headers["content-length"]) == len(response.content)
    assert response.headers["x-seed"] == "7"
    assert response.headers["x-finish-reason"] == "stop"
    assert float(response.headers["x-audio-seconds"]) == pytest.approx(10 * FAMILY.frame_seconds)
    assert response.headers["x-request-id"] == running.stages.seen[0].id
    expected = np.frombuffer(tone(10), "<i2").astype(float)
    if audio_format == "pcm":
        samples = np.frombuffer(response.content, "<i2")
    else:
        samples, rate = soundfile.read(io.BytesIO(response.content), dtype="int16")
        assert rate == FAMILY.sample_rate
    assert np.corrcoef(expected, samples.astype(float))[0, 1] > 0.99


async def test_speed_changes_the_length(running: Gateway):
    response = await running.say(speed=2.0, stream=False)
    assert len(pcm_of(response.content)) == len(tone(5))
    assert float(response.headers["x-audio-seconds"]) == pytest.approx(5 * FAMILY.frame_seconds)


async def test_finish_reason_is_length_at_max_new_tokens(running: Gateway):
    running.stages.script = Script(end=End(EndReason.LENGTH))
    assert (await running.say(max_new_tokens=10, stream=False)).headers["x-finish-reason"] == "length"
    assert running.stages.seen[0].max_frames == 10


# Streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream_format": "audio"}])
async def test_raw_wav_stream_is_playable(running: Gateway, fields: dict):
    response = await running.say(**fields)
    assert "content-length" not in response.headers
    assert response.headers["content-type"] == "audio/wav"
    assert pcm_of(response.content) == tone(10)
    assert running.stages.seen[0].live


async def test_events_contain_audio_and_usage(running: Gateway):
    response = await running.say(stream_format="sse", response_format="pcm", input="The old teacher.")
    *deltas, done = events(response.content)
    assert response.headers["content-type"] == "text/event-stream"
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == tone(10)
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["output_tokens"] == 10
    assert done["usage"]["total_tokens"] == 10 + done["usage"]["input_tokens"] > 12


async def test_events_of_a_wav_form_a_wav_file(running: Gateway):
    *deltas, _ = events((await running.say(stream_format="sse", response_format="wav")).content)
    assert pcm_of(b"".join(base64.b64decode(delta["audio"]) for delta in deltas)) == tone(10)


async def test_playback_is_reported_to_the_talker(running: Gateway):
    running.stages.script = script = Script(pause_after=6)

    def played() -> int:
        last = running.streams.last_position(running.stages.seen[0].id, StreamKind.PLAYBACK)
        return last.frames if last else -1

    async with running.http.stream("POST", "/v1/audio/speech", json={"input": "Hi.", "stream": True}):
        await until(lambda: running.stages.seen and played() == 6, "six frames were played")
        script.go.set()


async def test_concurrent_streams_do_not_mix(running: Gateway):
    answers = await asyncio.gather(*(running.say(stream=True, response_format="pcm", seed=n) for n in range(30)))
    assert all(response.content == tone(10) for response in answers)
    assert {response.headers["x-seed"] for response in answers} == {str(n) for n in range(30)}


# Failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_stage_error_with_a_field_is_a_400(running: Gateway, stream: bool):
    running.stages.script = Script(frames=0, end=End(EndReason.ERROR, "input: is too long", "input"))
    response = await running.say(stream=stream)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"
    assert response.json()["error"]["message"] == "input: is too long"
    assert response.headers["x-request-id"] == running.stages.seen[0].id


@pytest.mark.parametrize(("frames", "stream"), [(0, True), (0, False), (4, False)])
async def test_stage_error_before_the_first_byte_is_a_500(running: Gateway, frames: int, stream: bool):
    running.stages.script = Script(frames=frames, end=End(EndReason.ERROR, "gave up"))
    response = await running.say(stream=stream)
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "gave up",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_stage_error_that_a_retry_may_resolve_is_a_503(running: Gateway, stream: bool):
    running.stages.script = Script(frames=0, end=End(EndReason.ERROR, "gave up", retry_after=4.2))
    response = await running.say(stream=stream)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert (response.json()["error"]["message"], response.json()["error"]["code"]) == ("gave up", "stage_failed")


async def test_failure_in_a_raw_stream_leaves_the_transfer_incomplete(running: Gateway):
    running.stages.script = Script(frames=4, end=End(EndReason.ERROR, "gave up"))
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await running.say(stream=True)
    await until(lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="error"), "counted")


async def test_failure_in_an_event_stream_is_an_event(running: Gateway):
    running.stages.script = Script(frames=4, end=End(EndReason.ERROR, "gave up"))
    *_, last = events((await running.say(stream_format="sse")).content)
    assert last["type"] == "speech.audio.error"
    assert last["error"]["message"] == "gave up"


async def test_stream_without_audio_is_a_500(running: Gateway):
    running.stages.script = Script(frames=0)
    response = await running.say(stream=True)
    assert response.status_code == 500
    assert "before its first frame" in response.json()["error"]["message"]


async def test_stalled_stages_end_the_request():
    async with gateway(stall_seconds=0.2) as running:
        running.stages.script = Script(frames=0, end=None)
        response = await running.say(stream=True)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "stalled")
        assert response.headers["retry-after"]
        running.stages.script = Script(frames=4, end=None)
        with pytest.raises(httpx.RemoteProtocolError):
            await running.say(stream=True)
        *_, last = events((await running.say(stream_format="sse")).content)
        assert last["error"]["code"] == "stalled"


async def test_a_check_that_gets_no_answer_does_not_hold_up_a_stream(running: Gateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("syrinx_stages.gateway.speech.CHECK_SECONDS", 0.05)
    monkeypatch.setattr("syrinx_stages.gateway.service.CONNECTOR_SECONDS", 0.1)
    checks = []

    async def no_answer(*arguments: object) -> None:
        checks.append(arguments)
        await asyncio.Event().wait()

    monkeypatch.setattr(running.service._connector, "last_position", no_answer)
    running.stages.script = script = Script(pause_after=4)
    call = asyncio.create_task(running.say(stream=True, response_format="pcm"))
    await until(lambda: checks, "the gateway checks whether audio can still arrive")
    script.go.set()
    assert (await call).content == tone(10)


async def test_every_response_has_a_request_id(running: Gateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running.service, "input_tokens", lambda request: 1 // 0)
    calls = [
        (200, running.say()),
        (200, running.http.get("/v1/models")),
        (400, running.say(speed="fast")),
        (400, running.http.post("/v1/audio/speech", content=b"{", headers={"Content-Type": "application/json"})),
        (415, running.http.post("/v1/audio/speech", content=b"{")),
        (404, running.http.get("/nowhere")),
        (405, running.http.get("/v1/audio/speech")),
        (500, running.say(stream_format="sse")),
    ]
    responses = [(expected, await call) for expected, call in calls]
    assert [response.status_code for _, response in responses] == [expected for expected, _ in responses]
    assert len({response.headers["x-request-id"] for _, response in responses}) == len(calls)
    for expected, response in responses:
        assert expected == 200 or response.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_a_request_id_of_the_client_is_returned(running: Gateway):
    """So that its logs and those of a proxy name the same request."""
    for path in ("/v1/models", "/nowhere"):
        response = await running.http.get(path, headers={"X-Request-Id": "trace-1.a:b_c"})
        assert response.headers.get_list("x-request-id") == ["trace-1.a:b_c"]
    for invalid in ("", "a b", "x" * 129, "a;b"):
        response = await running.http.get("/v1/models", headers={"X-Request-Id": invalid})
        assert len(response.headers["x-request-id"]) == 32


async def test_fields_without_effect_are_named_in_a_warning(running: Gateway):
    response = await running.say(instructions="Whisper.", initial_codec_chunk_frames=1)
    assert response.status_code == 200
    instructions, chunks = response.headers["warning"].split(", 299 - ")
    assert instructions == '299 - "instructions are ignored: this checkpoint (CustomVoice, tiny) does not support them"'
    assert chunks.startswith('"initial_codec_chunk_frames is ignored: ')


@pytest.mark.parametrize("audio_format", ["mp3", "opus", "aac", "ulaw"])
async def test_compressed_formats_are_streamed_as_they_are_generated(running: Gateway, audio_format: str):
    running.stages.script = script = Script(frames=30, pause_after=20)
    received = b""
    async with running.http.stream(
        "POST", "/v1/audio/speech", json={"input": "a", "response_format": audio_format, "speed": 1.1}
    ) as response:
        assert response.headers["x-sample-rate"] == ("8000" if audio_format == "ulaw" else "24000")
        async for piece in response.aiter_raw():
            received += piece
            if len(received) > 2000:
                script.go.set()
    assert script.go.is_set()
    assert received == encoded(script.pcm, audio_format)


def encoded(pcm: bytes, audio_format: str) -> bytes:
    """Returns the stream of PCM at 1.1 times the speed."""
    found = AudioFormat(audio_format)
    encoder, trimmer = Encoder(AudioOptions(found, default_rate(found), 1.1)), LeadingSilenceTrimmer()
    return encoder.feed(trimmer.feed(pcm) + trimmer.end()) + encoder.finish()


# Clients that disconnect ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream_format": "sse"}, {}])
@pytest.mark.parametrize("pause_after", [0, 4])
async def test_disconnected_client_is_released_within_100_ms(running: Gateway, fields: dict, pause_after: int):
    running.stages.script = Script(pause_after=pause_after)
    call = asyncio.create_task(running.say(**fields))
    await until(lambda: running.stages.seen, "the request was claimed")
    await until(
        lambda: running.stages.written.get(running.stages.seen[0].id, 0) == pause_after, "its audio was written"
    )
    disconnected = time.monotonic()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(lambda: len(running.streams) == 0, "the request was released")
    assert time.monotonic() - disconnected < 0.1
    await until(lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="cancelled"), "count")


async def silent_client(running: Gateway, **fields: object) -> asyncio.StreamWriter:
    """Sends a request and reads nothing."""
    body = json.dumps({"input": "Hi.", "response_format": "pcm", **fields})
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.setblocking(False)
    await asyncio.get_running_loop().sock_connect(unread, ("127.0.0.1", httpx.URL(running.url).port))
    _, writer = await asyncio.open_connection(sock=unread, limit=1024)
    writer.write(
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n".encode()
    )
    writer.write(b"Content-Type: application/json\r\n\r\n" + body.encode())
    return writer


async def test_unread_audio_is_not_counted(running: Gateway):
    frames = 4000
    running.stages.script = Script(frames=frames, chunk=100)
    writer = await silent_client(running, stream=True)
    await until(lambda: frames in running.stages.written.values(), "all audio was written")
    writer.transport.abort()
    await until(
        lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="cancelled"), "counted"
    )
    assert 0 < running.metric("syrinx_audio_seconds_total", **SERVED) < 0.8 * frames * FAMILY.frame_seconds


@pytest.mark.parametrize("chunk", [100, 4000], ids=["many chunks", "one chunk"])
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream_format": "sse"}, {}], ids=str)
async def test_client_that_does_not_read_times_out(
    running: Gateway, monkeypatch: pytest.MonkeyPatch, fields: dict, chunk: int
):
    monkeypatch.setattr("syrinx_stages.gateway.delivery.SEND_SECONDS", 0.2)
    running.stages.script = Script(frames=4000, chunk=chunk)
    writer = await silent_client(running, **fields)
    try:
        await until(
            lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="cancelled"), "counted"
        )
    finally:
        writer.transport.abort()


# Admission and drain ---------------------------------------------------------------------------------------------


async def test_full_queue_is_a_503():
    async with gateway(gateway=GatewaySettings(max_queue=0)) as running:
        response = await running.say()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
        assert int(response.headers["retry-after"]) >= 1
        assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="refused") == 1


async def test_drain_serves_open_connections_and_closes_them(running: Gateway):
    running.stages.script = script = Script(pause_after=4)
    call = asyncio.create_task(running.say(stream=True, response_format="pcm"))
    await until(lambda: running.stages.seen, "the request was claimed")
    drain = asyncio.create_task(running.service.drain(DEADLINE))
    await until(lambda: running.service.ready() == "draining", "the drain started")
    second = asyncio.create_task(running.say(stream=True, response_format="pcm"))
    await until(lambda: len(running.stages.seen) == 2, "the second request was claimed")
    listed = await running.http.get("/v1/models")
    assert (listed.status_code, listed.headers["connection"]) == (200, "close")
    assert not drain.done()
    script.go.set()
    assert (await call).content == (await second).content == tone(10)
    assert (await second).headers["connection"] == "close"
    await drain
    await running.service.close()
    assert len(running.streams) == 0
    refused = await running.say()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


async def test_a_refused_client_is_refused_again_without_asking_redis(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("syrinx_stages.gateway.client.REPEAT_SECONDS", 60.0)
    async with gateway(gateway=GatewaySettings(max_queue=0)) as running:
        first = await running.say()
        running.service.live.apply(SettingsUpdate({"max_queue": 10}))
        again = await running.http.post("/v1/audio/speech", content=b"x" * 1_000_000)
        assert (again.status_code, again.json(), again.headers["retry-after"]) == (503, first.json(), "1")
        other = await running.http.post("/v1/audio/speech", json={"input": "Hello."}, headers={"Authorization": "b"})
        assert other.status_code == 200
        assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="refused") == 2


async def test_settings_apply_without_restart():
    async with gateway() as running:
        running.service.live.apply(SettingsUpdate({"max_queue": 0}))
        running.service.settings_changed()
        assert (await running.say()).status_code == 503
        assert running.metric("syrinx_settings_generation", stage="gateway") == 1


async def test_unreachable_queue_is_a_503_and_not_ready():
    async with gateway() as running:
        await until(lambda: running.service.ready() is None, "the gateway was ready")
        await running.service._connector.close()
        response = await running.say()
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        await until(
            lambda: (running.service.ready() or "").startswith("Redis cannot be reached"), "the failure was noticed"
        )


async def test_ready_once_both_stages_have_been_live():
    streams = Streams()
    connector, replicas = streams.connector(), streams.connector()
    config = StageConfig(pipeline="p", generation="g", replica="gateway-0", model="bundled")
    service = GatewayService(config, connector, Metrics(CollectorRegistry()))
    await service.start()
    try:
        assert service.ready() == "no talker of this model generation is running yet"
        talker, codec = replicas.consumer(Group.TALKERS, "t"), replicas.consumer(Group.CODECS, "c")
        await talker.take_over(1)
        await until(
            lambda: service.ready() == "no codec of this model generation is running yet", "the talker was seen"
        )
        await codec.take_over(1)
        await until(lambda: service.ready() is None, "the codec was seen")
        await replicas.close()
        await service.monitor.measure()
        assert not await connector.has_live_consumer(Group.TALKERS, 5.0)
        assert service.ready() is None
    finally:
        await service.close()
        await streams.close()


async def test_a_request_that_no_talker_claims_in_time_is_a_503():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.2)) as running:
        await until(lambda: running.service.ready() is None, "both stages were seen")
        await running.stages.leave()
        replicas = running.streams.connector()
        for group in Group:
            await replicas.consumer(group, "busy").take_over(1)
        started = time.monotonic()
        response = await running.say(stream=True)
        assert time.monotonic() - started > 0.2
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
        assert "no talker was free in time" in response.json()["error"]["message"]
        assert int(response.headers["retry-after"]) >= 1
        assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="refused") == 1
        assert (await running.service._connector.queue(Group.TALKERS)).length == 0


async def test_a_request_that_waits_while_redis_is_unreachable_is_a_503(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitor, "CONNECTOR_SECONDS", 0.2)
    monkeypatch.setattr(service, "WITHDRAW_SECONDS", 0.5)
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.2)) as running:
        await until(lambda: running.service.ready() is None, "both stages were seen")
        await running.stages.leave()
        connector = running.service._connector
        submit, pool, address = connector.submit, connector._pool, connector._pool.address

        async def submit_and_disconnect(*arguments: Any) -> Ticket:
            ticket = await submit(*arguments)
            pool.address = Address("redis://127.0.0.1:1")
            pool._close_free()
            return ticket

        monkeypatch.setattr(connector, "submit", submit_and_disconnect)
        response = await running.say(stream=True)
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        assert response.json()["error"]["message"] == "the service cannot reach its queue"
        assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="refused") == 1
        pool.address = address


async def test_a_client_with_many_requests_makes_room_for_another():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=60.0)) as running:
        await until(lambda: running.service.ready() is None, "both stages were seen")
        await running.stages.leave()
        talker = running.streams.connector().consumer(Group.TALKERS, "busy")
        await talker.take_over(1)
        await talker.report(Capacity(free=2, requests_per_second=0.01))

        def ask(key: str) -> asyncio.Task[httpx.Response]:
            headers = {"Authorization": f"Bearer {key}"}
            return asyncio.create_task(running.http.post("/v1/audio/speech", json={"input": "Hello."}, headers=headers))

        greedy = []
        for number in range(2):
            greedy.append(ask("greedy"))
            await until(lambda: running.streams.raw.xlen(running.streams.keys.requests) == number + 1, "it waits")  # noqa: B023
        modest = ask("modest")
        response = await greedy[1]
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
        assert int(response.headers["retry-after"]) >= 1
        assert not greedy[0].done() and not modest.done()
        for task in (greedy[0], modest):
            task.cancel()
        await asyncio.gather(greedy[0], modest, return_exceptions=True)


async def test_a_claimed_request_may_take_longer_than_the_queue():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.5)) as running:
        running.stages.script = script = Script(pause_after=0)
        call = asyncio.create_task(running.say(stream=True, response_format="pcm"))
        await until(lambda: running.stages.seen, "the request was claimed")
        await asyncio.sleep(0.8)
        script.go.set()
        assert (await call).content == tone(10)


async def test_missing_stage_is_a_503_after_max_queue_seconds():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=1.0)) as running:
        await until(lambda: running.service.ready() is None, "both stages were seen")
        await running.stages.leave()
        waiting = await running.say(stream=True)
        assert (waiting.status_code, waiting.json()["error"]["code"]) == (503, "stage_unavailable")
        assert "no talker" in waiting.json()["error"]["message"]
        assert int(waiting.headers["retry-after"]) >= 1
        assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="refused") == 1
        await until(lambda: running.service.monitor.missing_stage_error(), "it was missing for long enough")
        assert (await running.say()).json()["error"]["code"] == "stage_unavailable"
        assert running.metric("syrinx_requests_total", task_type="unknown", outcome="refused") == 1, "at once"
        async with Stages(running.streams):
            await until(lambda: running.service.monitor._missing is None, "they were seen again")
            assert (await running.say()).content


async def test_begun_stream_outlasts_a_missing_stage():
    """Another replica may still take the stream over."""
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.1)) as running:
        await until(lambda: running.service.monitor._was_complete, "the stages were seen")
        running.stages.script = Script(pause_after=4)
        call = asyncio.create_task(running.say(stream=True, response_format="pcm"))
        await until(lambda: running.metric("syrinx_live_streams"), "the stream was live")
        [request] = running.stages.seen
        await running.stages.leave()
        await until(lambda: running.metric("syrinx_underrun_seconds_total", **SERVED) > 1.5, "the gateway has checked")
        assert running.service.monitor.missing_stage_error() is not None
        connector = running.streams.connector()
        end = End(EndReason.STOP)
        await Owner(connector).append([StreamEntry(request.id, StreamKind.AUDIO, Position(4, END_SEQUENCE), end)])
        assert (await call).content == tone(4)


async def lose(running: Gateway, request: SpeechRequest) -> None:
    """Makes Redis forget a request, as a fail-over does to what the replica had not received."""
    streams = running.streams
    [entry_id] = [at for at, fields in streams.raw.xrange(streams.keys.requests) if request.id.encode() in fields[b"d"]]
    streams.raw.xdel(streams.keys.requests, entry_id)
    for kind in StreamKind:
        streams.raw.delete(streams.keys.stream(request.id, kind))
    streams.raw.delete(streams.keys.owners(request.id), streams.keys.reference(request.id))


async def test_a_request_that_redis_lost_before_its_first_audio_is_queued_again() -> None:
    async with gateway() as running:
        running.stages.script = script = Script(frames=4, pause_after=0)
        call = asyncio.create_task(running.say(stream=True, response_format="pcm"))
        await until(lambda: len(running.stages.seen) == 1, "it is claimed")
        await lose(running, running.stages.seen[0])
        await until(lambda: len(running.stages.seen) == 2, "it is claimed again")
        script.go.set()
        response = await call
    assert response.content == tone(4)
    assert running.stages.seen[0] == running.stages.seen[1]


async def test_a_whole_response_that_redis_lost_begins_anew() -> None:
    """Nothing of it was sent, although some of its audio has arrived."""
    async with gateway() as running:
        running.stages.script = script = Script(frames=4, pause_after=2)
        call = asyncio.create_task(running.say(response_format="pcm", stream=False))
        await until(lambda: running.stages.seen, "it is claimed")
        [request] = running.stages.seen
        await until(lambda: has_played(running, request, 2), "audio has arrived")
        await lose(running, request)
        await until(lambda: len(running.stages.seen) == 2, "it is claimed again")
        script.go.set()
        response = await call
    assert response.content == tone(4)


def has_played(running: Gateway, request: SpeechRequest, frames: int) -> bool:
    return running.streams.last_position(request.id, StreamKind.PLAYBACK) == Position(frames)


async def test_a_stream_that_redis_lost_continues_where_it_was() -> None:
    """The audio is generated again, and the client gets what it does not have."""
    async with gateway() as running:
        running.stages.script = script = Script(frames=6, silent=2, pause_after=4)
        call = asyncio.create_task(running.say(stream=True, response_format="pcm"))
        await until(lambda: running.metric("syrinx_live_streams"), "the stream is live")
        await lose(running, running.stages.seen[0])
        await until(lambda: len(running.stages.seen) == 2, "it is claimed again")
        script.go.set()
        response = await call
        assert response.content.endswith(script.pcm[2 * FAMILY.frame_bytes :])
        assert len(response.content) < len(script.pcm) - FAMILY.frame_bytes
        assert running.stages.seen[0] == running.stages.seen[1]
        assert running.metric("syrinx_live_streams") == 0


@pytest.mark.parametrize("again", [Script(frames=6, silent=1), Script(frames=3)], ids=["other frames", "fewer frames"])
async def test_a_stream_that_redis_lost_fails_if_its_audio_differs_when_generated_again(again: Script) -> None:
    async with gateway() as running:
        running.stages.script = Script(frames=6, pause_after=4)
        call = asyncio.create_task(running.say(stream=True, response_format="pcm", stream_format="sse"))
        await until(lambda: list(running.stages.written.values()) == [4], "it has begun")
        await until(lambda: running.metric("syrinx_live_streams"), "the stream is live")
        running.stages.script = again
        await lose(running, running.stages.seen[0])
        *deltas, error = events((await call).content)
        assert error["error"]["code"] == "request_lost"
        assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == tone(4)


async def test_a_release_that_redis_lost_is_repeated() -> None:
    async with gateway() as running:
        streams = running.streams
        await running.say()
        [request] = running.stages.seen
        await until(lambda: len(streams) == 0, "the request is released")
        key = streams.keys.stream(request.id, StreamKind.CODES)
        streams.raw.xadd(key, {"d": b""}, id="0-1")
        streams.raw.client_kill_filter(_type="normal", skipme=True)
        await until(lambda: not streams.raw.exists(key), "it is released again")


# Bad requests ----------------------------------------------------------------------------------------------------


async def post(running: Gateway, body: bytes, content_type: str = "application/json") -> httpx.Response:
    return await running.http.post("/v1/audio/speech", content=body, headers={"Content-Type": content_type})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"input": "\\ud800"}',
        b'{"input": "a", "temperature": NaN}',
        b'{"input": "a", "\\ud800": 1}',
        b"\xff\xfe",
        b'{"input": "' + b"a" * 100_000 + b'"}',
    ],
)
async def test_invalid_body_is_a_400(running: Gateway, body: bytes):
    response = await post(running, body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert running.metric("syrinx_requests_total", task_type="unknown", outcome="refused") == 1
    assert (await running.say()).status_code == 200


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


def test_only_checkpoints_that_clone_accept_large_bodies(running: Gateway):
    assert running.service.max_body == MAX_BODY


LARGE = b'{"input": "a", "ref_text": "' + b"a" * MAX_BODY + b'"}'


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


async def test_stalled_uploads_do_not_keep_others_out(running: Gateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("syrinx_stages.gateway.body.EVICTABLE_SECONDS", 0.0)
    running.service.max_body = MAX_REFERENCE_BODY
    async with asyncio.timeout(DEADLINE):
        stalled = [asyncio.create_task(send_large(running, asyncio.Event())) for _ in range(MAX_UPLOADS)]
        await until(lambda: len(running.service.uploads) == MAX_UPLOADS, "there is no room")
        assert await send_large(running) == 400, "the slowest one has made room"
        assert len(running.service.uploads) == MAX_UPLOADS - 1, "the others go on"
        for call in stalled:
            call.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)


@pytest.mark.parametrize("limit", ["BODY_SECONDS", "IDLE_SECONDS"])
async def test_late_body_is_a_408(running: Gateway, monkeypatch: pytest.MonkeyPatch, limit: str):
    monkeypatch.setattr(f"syrinx_stages.gateway.body.{limit}", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(running.url).port)
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    writer.write(head)
    response = await asyncio.wait_for(reader.read(), DEADLINE)
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in response
    writer.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/audio/nothing", 404),
        ("GET", "/v1/audio/speech", 405),
        ("GET", "/v1/models/x/y", 404),
        ("POST", "/v1/audio/speech/", 404),
    ],
)
async def test_routing_errors_have_the_same_shape(running: Gateway, method: str, path: str, status: int):
    response = await running.http.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.headers.get("allow") == ("POST" if status == 405 else None)


@pytest.mark.parametrize("path", ["/v1/audio/voices", "/v1/models", "/v1/models/syrinx-us"])
async def test_head_returns_the_headers_of_get(running: Gateway, path: str):
    head, got = await running.http.head(path), await running.http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.content))


async def test_health_is_that_of_the_gateway(running: Gateway):
    await until(lambda: running.service.ready() is None, "the gateway is ready")
    assert (await running.http.get("/health")).json() == {"status": "ok"}
    running.service.monitor.unreachable = "Redis cannot be reached"
    response = await running.http.get("/health")
    assert (response.status_code, response.json()["error"]["message"]) == (503, "Redis cannot be reached")


async def test_voices_are_listed(running: Gateway):
    listed = (await running.http.get("/v1/audio/voices")).json()
    assert listed["names"] == ["us", "us_f", "us_m", "gb"]
    # As Open WebUI reads it.
    assert {voice["id"]: voice["name"] for voice in listed["voices"]}.keys() >= {"us", "gb", "alloy", "shimmer"}
    assert (listed["default"], listed["languages"]) == ("us", ["auto", "english", "german"])


# Metrics --------------------------------------------------------------------------------------------------------


async def test_stream_metrics_are_labeled_with_the_replicas(running: Gateway):
    running.stages.script = script = Script(pause_after=4)
    call = asyncio.create_task(running.say(stream=True))
    await until(lambda: running.metric("syrinx_live_streams"), "the stream was live")
    # By then the first four frames have been played, so playback stalls.
    await asyncio.sleep(4 * FAMILY.frame_seconds + 0.1)
    script.go.set()
    await call
    await until(lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="stop"), "counted")
    assert running.metric("syrinx_live_streams") == 0
    for histogram in ("ttfa", "first_byte", "request"):
        assert running.metric(f"syrinx_{histogram}_seconds_count", **SERVED) == 1
    assert 0 < running.metric("syrinx_first_byte_seconds_sum", **SERVED) < 0.3
    assert running.metric("syrinx_audio_seconds_total", **SERVED) == pytest.approx(10 * FAMILY.frame_seconds)
    assert running.metric("syrinx_underruns_total", **SERVED) == 1
    assert 0.05 < running.metric("syrinx_underrun_seconds_total", **SERVED) < 0.5


async def test_stall_is_counted_while_it_lasts(running: Gateway):
    running.stages.script = script = Script(pause_after=4)
    call = asyncio.create_task(running.say(stream=True))
    await until(lambda: running.metric("syrinx_live_streams"), "the stream was live")
    assert running.metric("syrinx_underruns_total", **SERVED) == 0, "the series starts at 0"
    await until(lambda: running.metric("syrinx_underruns_total", **SERVED), "playback stalled")
    assert not call.done()
    before = running.metric("syrinx_underrun_seconds_total", **SERVED)
    assert before > 0
    script.go.set()
    await call
    assert running.metric("syrinx_underrun_seconds_total", **SERVED) > before
    assert running.metric("syrinx_underruns_total", **SERVED) == 1, "a stream is counted once"


async def test_stall_of_a_client_that_disconnects_is_counted(running: Gateway):
    running.stages.script = Script(pause_after=4)
    call = asyncio.create_task(running.say(stream=True))
    await until(lambda: running.metric("syrinx_live_streams"), "the stream was live")
    await asyncio.sleep(4 * FAMILY.frame_seconds + 0.1)
    call.cancel()
    await until(
        lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="cancelled"), "counted"
    )
    assert running.metric("syrinx_underruns_total", **SERVED) == 1


async def test_disconnect_before_a_stall_counts_no_stall(running: Gateway):
    running.stages.script = Script(pause_after=4)
    call = asyncio.create_task(running.say(stream=True))
    await until(lambda: running.metric("syrinx_live_streams"), "the stream was live")
    call.cancel()
    await until(
        lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="cancelled"), "counted"
    )
    assert running.metric("syrinx_underruns_total", **SERVED) == 0


async def test_whole_file_has_no_ttfa(running: Gateway):
    await running.say(stream=False)
    await until(lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="stop"), "counted")
    assert running.metric("syrinx_request_seconds_count", **SERVED) == 1
    assert running.metric("syrinx_ttfa_seconds_count", **SERVED) == 0
