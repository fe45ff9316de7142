"""The public API through a real HTTP server, with scripted stages: what clients get."""

import base64
import io
from collections.abc import AsyncIterator

import pytest
import soundfile
from openai import APIStatusError, AsyncOpenAI, NotFoundError

from support.gateway import Gateway, Script, events, gateway, pcm_of, tone
from support.waiting import until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import ApiConfig
from syrinx_stages.contract.silence import LeadingSilenceTrimmer
from syrinx_stages.gateway.audio.encoders import AudioFormat, AudioOptions, Encoder, default_rate

pytestmark = pytest.mark.virtual


@pytest.fixture
async def openai(running: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


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
    listed = [model.id async for model in await openai.models.list()]
    assert listed == ["syrinx-us", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert (await openai.models.retrieve("syrinx-us")).owned_by == "syrinx"
    with pytest.raises(APIStatusError) as raised:
        await openai.models.retrieve("tts-3")
    assert raised.value.status_code == 404


async def test_a_file_is_complete_and_its_headers_describe_it(running: Gateway):
    response = await running.say(response_format="flac", seed=7, stream=False)
    assert (response.status_code, int(response.headers["content-length"])) == (200, len(response.content))
    assert (response.headers["x-seed"], response.headers["x-finish-reason"]) == ("7", "stop")
    assert float(response.headers["x-audio-seconds"]) == pytest.approx(10 * FAMILY.frame_seconds)
    assert response.headers["x-request-id"] == running.stages.seen[0].id
    samples, rate = soundfile.read(io.BytesIO(response.content), dtype="int16")
    assert (samples.tobytes(), rate) == (tone(10), FAMILY.sample_rate)


async def test_events_contain_audio_and_usage(running: Gateway):
    response = await running.say(stream_format="sse", response_format="pcm", input="The old teacher.")
    *deltas, done = events(response.content)
    assert response.headers["content-type"] == "text/event-stream"
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == tone(10)
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["output_tokens"] == 10
    assert done["usage"]["total_tokens"] == 10 + done["usage"]["input_tokens"] > 12


async def test_an_error_names_a_field_of_another_api_as_it_was_sent(running: Gateway):
    error = (await running.say(speaker="nobody")).json()["error"]
    assert error["param"] == "speaker" and error["message"].startswith("speaker: stands for voice: 'nobody' is unknown")


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


async def test_every_response_has_a_request_id(running: Gateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running.service, "input_tokens", lambda request: 1 // 0)
    calls = [
        (200, running.say()),
        (200, running.http.get("/v1/models")),
        (400, running.say(speed="fast")),
        (400, running.http.post("/v1/audio/speech", content=b"{", headers={"Content-Type": "application/json"})),
        (415, running.http.post("/v1/audio/speech", content=b"{")),
        (404, running.http.get("/nowhere")),
        (404, running.http.post("/v1/audio/speeches")),
        (405, running.http.get("/v1/audio/speech")),
        (500, running.say(stream_format="sse")),
    ]
    responses = [(expected, await call) for expected, call in calls]
    assert [response.status_code for _, response in responses] == [expected for expected, _ in responses]
    assert len({response.headers["x-request-id"] for _, response in responses}) == len(calls)
    for expected, response in responses:
        assert response.headers.get("allow") == ("POST" if expected == 405 else None)
        assert expected == 200 or response.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_a_final_slash_of_a_path_is_ignored(running: Gateway):
    for path in ("/v1/audio/speech/", "/v1/audio/speech//"):
        response = await running.http.post(path, json={"input": "Hello.", "response_format": "pcm"})
        assert (response.status_code, response.content) == (200, tone(10))
    paths = ("/v1/models/", "/v1/models/syrinx-us/", "/v1/audio/voices/", "/v1/audio/voices/us/", "/health/", "/docs/")
    for path in paths:
        assert (await running.http.get(path)).content == (await running.http.get(path.rstrip("/"))).content, path
    assert (await running.http.get("/v1/audio/voices/us%2F")).status_code == 404, "it is part of a name"
    batch = await running.http.post("/v1/audio/speech/batch/", json={"items": [{"input": "Hello."}]})
    assert batch.json()["succeeded"] == 1
    assert running.requests("stop") == 3


@pytest.mark.parametrize(
    ("sent", "right"),
    [
        ("/v1/v1/audio/speech", "/v1/audio/speech"),
        ("/audio/speech", "/v1/audio/speech"),
        ("/audio/speech/", "/v1/audio/speech"),
        ("/api/v1/audio/speech/batch", "/v1/audio/speech/batch"),
        ("//v1/audio/speech", "/v1/audio/speech"),
        ("/models/tts-1", "/v1/models/tts-1"),
        ("/v1/health", "/health"),
    ],
)
async def test_an_unknown_path_is_answered_with_the_right_one(running: Gateway, sent: str, right: str):
    response = await running.http.post(f"{running.url}{sent}", json={"input": "Hello."})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "not_found")
    assert error["message"].endswith(f": there is no such path; send it to {right!r}")


async def test_recordings_of_consents_are_refused_with_what_to_send_instead(openai: AsyncOpenAI):
    with pytest.raises(NotFoundError, match="send its id, or who agreed, as consent of POST /v1/audio/voices"):
        await openai.audio.voice_consents.create(name="Anna", language="en-US", recording=("a.wav", b"RIFF"))
    with pytest.raises(NotFoundError, match="neither checked nor kept here"):
        await openai.audio.voice_consents.retrieve("cons_1")


async def test_a_path_of_another_api_is_answered_with_that_of_this_one(running: Gateway):
    for path in ("/tts", "/v1/voicesque", "/" + "a/" * 4000):
        response = await running.http.post(path, json={"text": "Hello."})
        assert response.status_code == 404
        assert "speech is POST /v1/audio/speech" in response.json()["error"]["message"]
    for path, advice in {
        "/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM": "send the same body with voice_id and output_format in it",
        "/v1/text-to-speech/us/stream?output_format=mp3": "send the same body with voice_id and output_format in it",
        "/v1/voices": "voices are listed at GET /v1/audio/voices",
        "/v2/voices?page_size=1": "voices are listed at GET /v1/audio/voices",
        "/v1/realtime?model=tts-1": "text that streams in is sent over the WebSocket /v1/audio/speech/stream",
        "/v1/audio/speech/voices": "voices are listed at GET /v1/audio/voices",
        "/metrics": "metrics and probes have a port of their own",
    }.items():
        response = await running.http.get(path)
        assert response.status_code == 404
        assert f": there is no such path; {advice}" in response.json()["error"]["message"]


async def test_another_method_is_answered_with_the_right_ones(running: Gateway):
    response = await running.http.get("/v1/audio/speech", params={"input": "Hello."})
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")
    assert response.json()["error"]["message"] == "GET '/v1/audio/speech': send POST"
    assert "send GET or HEAD" in (await running.http.post("/v1/models")).json()["error"]["message"]


async def test_raw_control_characters_and_a_byte_order_mark_do_not_matter(running: Gateway):
    response = await running.http.post(
        "/v1/audio/speech",
        content=b'\xef\xbb\xbf{"input": "One.\x0cTwo\x00.", "stream_format": "SSE"}',
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 200
    assert running.stages.seen[0].text == "One.\x0cTwo\x00.", "so that segments have the places of the client's text"
    assert events(response.content)[-1]["finish_reason"] == "stop"


async def test_the_resource_says_what_a_stream_without_a_format_is():
    async with gateway(api=ApiConfig(stream_format="SSE")) as running:
        response = await running.say(stream=True, response_format="pcm")
        assert response.headers["content-type"] == "text/event-stream"
        assert (await running.say(stream=True, stream_format="audio", response_format="pcm")).content == tone(10)
        async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            spoken = await client.audio.speech.create(
                model="tts-1", voice="alloy", input="Hello.", response_format="pcm"
            )
        assert spoken.content == tone(10), "OpenAI's clients send no stream"


async def test_a_request_id_of_the_client_is_returned(running: Gateway):
    """So that its logs and those of a proxy name the same request."""
    for path in ("/v1/models", "/nowhere"):
        response = await running.http.get(path, headers={"X-Request-Id": "trace-1.a:b_c"})
        assert response.headers.get_list("x-request-id") == ["trace-1.a:b_c"]
    for invalid in ("", "a b", "x" * 129, "a;b"):
        response = await running.http.get("/v1/models", headers={"X-Request-Id": invalid})
        assert len(response.headers["x-request-id"]) == 32


async def test_health_is_that_of_the_gateway(running: Gateway):
    await until(lambda: running.service.ready() is None, "the gateway is ready")
    assert (await running.http.get("/health")).json() == {"status": "ok"}
    running.service.cells[0].monitor.unreachable = "Redis cannot be reached"
    response = await running.http.get("/health")
    assert (response.status_code, response.json()["error"]["message"]) == (503, "Redis cannot be reached")
