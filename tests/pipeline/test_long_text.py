"""Texts of several segments, spoken by real processes as one stream."""

import asyncio
import base64
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable

import httpx
import msgspec
import numpy as np
import pytest
import pytest_asyncio
import redis.asyncio

from support.local_pipeline import local_pipeline
from support.speech_socket import connected
from support.waiting import DEADLINE
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from syrinx_stages.gateway.audio.seam import Seam
from syrinx_stages.model.describe import describe
from syrinx_stages.normalization.segments import PARAGRAPH_SECONDS, SENTENCE_SECONDS, divide
from syrinx_stages.talker.speech import take_seed

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEED = 2**63 - 5
PASSWORD_ENV = "SYRINX_TEST_LONG_TEXT_PASSWORD"
LIMIT = 40_000
TEXT = (
    "The old teacher carried seven green apples before breakfast. Her brother opened a broken window for his friends."
    "\n\nWe walked along the quiet road until the sun went down. Nobody knew where the small boat had gone. "
    "The children were waiting for their mother at the station. At last the train came, and everybody was glad."
)
SEGMENTS = list(divide(TEXT, describe("bundled").reading.segment_size, single_sentences=True))


class Running:
    """A pipeline of two talkers and two codecs, a client of it, and its Redis."""

    def __init__(self, pipeline: LocalPipeline, client: httpx.AsyncClient, store: redis.asyncio.Redis) -> None:
        self.pipeline, self.client, self.store = pipeline, client, store

    async def speak(self, text: str = TEXT, on_chunk: Callable[[int], object] = lambda frames: None, **fields) -> bytes:
        """Returns the PCM of a stream. Calls `on_chunk` with the number of seconds received so far."""
        body = {"input": text, "voice": "us", "response_format": "pcm", "stream": True, "seed": SEED, **fields}
        pcm = b""
        async with asyncio.timeout(DEADLINE), self.client.stream("POST", "/v1/audio/speech", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for chunk in response.aiter_raw():
                pcm += chunk
                on_chunk(len(pcm) // 2 // FAMILY.sample_rate)
        return pcm

    async def metric(self, pattern: str) -> float:
        """Returns the sum of the gateway's series that a pattern matches."""
        (gateway,) = [child for child in self.pipeline.processes if child.stage == "gateway"]
        text = (await self.client.get(f"{gateway.admin_url}/metrics")).text
        return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", text, re.MULTILINE))

    async def streams(self) -> int:
        """Returns how many requests have a stream of audio in Redis."""
        return len([key async for key in self.store.scan_iter("*:audio", _type="stream") if key.count(b":") > 3])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    server = RedisServer()
    os.environ[PASSWORD_ENV] = server.password
    spec = {
        "talker": {"replicas": 2},
        "codec": {"replicas": 2},
        "gateway": {"api": {"maxTextLength": LIMIT, "lexicon": {"nginx": "engine x"}}},
        "connector": {"url": server.url, "passwordEnv": PASSWORD_ENV},
    }
    head = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": "long"}}
    pipeline = msgspec.convert({**head, "spec": spec}, TTSPipeline)
    try:
        async with (
            local_pipeline(pipeline) as local,
            httpx.AsyncClient(base_url=local.gateway_url, timeout=DEADLINE) as client,
            redis.asyncio.from_url(server.url_with_password) as store,
        ):
            yield Running(local, client, store)
    finally:
        del os.environ[PASSWORD_ENV]
        server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(running: Running) -> bytes:
    return await running.speak()


async def test_a_long_text_is_its_segments_with_silence_between_them(running: Running, undisturbed: bytes) -> None:
    """Each segment is bit for bit what it is alone, so that nothing is lost or doubled."""
    assert [each.pause for each in SEGMENTS] == [SENTENCE_SECONDS, PARAGRAPH_SECONDS, *[SENTENCE_SECONDS] * 3, 0.0]
    seam, expected = Seam(), b""
    for number, segment in enumerate(SEGMENTS):
        alone = await running.speak(segment.text, seed=take_seed(SEED, number, 0))
        seam.add(alone)
        expected += alone + (seam.pause(segment.pause) if segment.pause else b"")
    assert undisturbed == expected


async def test_max_new_tokens_limits_the_whole_text(running: Running, undisturbed: bytes) -> None:
    """The audio is the beginning of that without a limit, and ends within the second sentence."""
    first = await running.speak(SEGMENTS[0].text)
    limit = len(first) // FAMILY.frame_bytes + 10
    limited = await running.speak(max_new_tokens=limit)
    assert len(first) < len(limited) < len(undisturbed) and undisturbed.startswith(limited[: len(first)])
    body = {"input": TEXT, "voice": "us", "seed": SEED, "max_new_tokens": limit, "stream_format": "sse"}
    *_, done = (await running.client.post("/v1/audio/speech", json=body)).text.strip().split("\n\n")
    event = json.loads(done.removeprefix("data: "))
    assert (event["finish_reason"], event["usage"]["output_tokens"]) == ("length", limit)


async def test_no_seam_clicks(undisturbed: bytes) -> None:
    """Silence begins and ends no louder than speech does by itself."""
    samples = np.frombuffer(undisturbed, "<i2").astype(int)
    silent = np.abs(samples) < AUDIBLE_PEAK
    edges = np.flatnonzero(np.diff(np.concatenate(([0], silent, [0]))))
    pauses = [(start, end) for start, end in edges.reshape(-1, 2) if end - start > 0.3 * FAMILY.sample_rate]
    assert len(pauses) >= len(SEGMENTS) - 1
    for start, end in pauses:
        around = samples[max(0, start - 240) : end + 240]
        assert np.abs(np.diff(around)).max() < 1_500


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_killing_all_replicas_of_a_stage_does_not_change_the_audio(
    running: Running, undisturbed: bytes, stage: str
) -> None:
    """In the second segment or later."""
    killed: list[int] = []

    def on_chunk(seconds: int) -> None:
        if seconds >= 6 and not killed:
            children = [child for child in running.pipeline.processes if child.stage == stage]
            killed.extend(child.pid for child in children)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    assert await running.speak(on_chunk=on_chunk) == undisturbed
    assert len(killed) == 2


async def test_a_long_text_is_one_request(running: Running) -> None:
    speaking = asyncio.create_task(running.speak(TEXT * 2))
    counts = set()
    while not speaking.done():
        counts.add(await running.streams())
        await asyncio.sleep(0.02)
    assert await speaking and counts <= {0, 1} and 1 in counts


async def test_a_client_that_leaves_ends_all_segments(running: Running) -> None:
    class Left(Exception):
        pass

    def leave(seconds: int) -> None:
        if seconds >= 6:
            raise Left

    with pytest.raises(Left):
        await running.speak(on_chunk=leave)
    async with asyncio.timeout(10):
        while await running.streams():
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    assert await running.streams() == 0


async def test_a_long_text_is_one_request_in_the_metrics(running: Running) -> None:
    patterns = {
        name: rf"{name}{{[^}}]*{label}[^}}]*}}"
        for name, label in (
            ("syrinx_requests_total", 'outcome="stop"'),
            ("syrinx_stream_outcomes_total", "outcome="),
            ("syrinx_streams_accepted_total", ""),
            ("syrinx_ttfa_seconds_count", ""),
            ("syrinx_request_seconds_count", ""),
            ("syrinx_audio_seconds_total", ""),
            ("syrinx_underruns_total", ""),
        )
    }
    before = {name: await running.metric(pattern) for name, pattern in patterns.items()}
    pcm = await running.speak()
    total = "syrinx_requests_total"
    async with asyncio.timeout(DEADLINE):
        # It is counted after the last byte is sent.
        while await running.metric(patterns[total]) == before[total]:
            await asyncio.sleep(0.05)
    counted = {name: await running.metric(pattern) - before[name] for name, pattern in patterns.items()}
    assert counted.pop("syrinx_audio_seconds_total") == pytest.approx(len(pcm) / 2 / FAMILY.sample_rate, abs=0.01)
    assert counted.pop("syrinx_underruns_total") <= 1, "of a busy machine"
    assert counted == dict.fromkeys(counted, 1)


async def test_every_way_of_delivery_gives_the_same_audio(running: Running, undisturbed: bytes) -> None:
    body = {"input": TEXT, "voice": "us", "response_format": "pcm", "seed": SEED}
    whole = await running.client.post("/v1/audio/speech", json={**body, "stream": False})
    assert whole.content == undisturbed and whole.headers["X-Finish-Reason"] == "stop"
    assert whole.headers["X-Seed"] == str(SEED)
    events = (await running.client.post("/v1/audio/speech", json={**body, "stream_format": "sse"})).text.split("\n\n")
    *deltas, done = [json.loads(event.removeprefix("data: ")) for event in events if event]
    assert b"".join(base64.b64decode(each["audio"]) for each in deltas) == undisturbed
    assert done["finish_reason"] == "stop"
    batch = {**body, "items": [{"input": body.pop("input")}]}
    del batch["input"]
    (result,) = (await running.client.post("/v1/audio/speech/batch", json=batch)).json()["results"]
    assert base64.b64decode(result["audio_data"]) == undisturbed and result["usage"] == done["usage"]
    async with connected(running.pipeline.gateway_url) as client:
        await client.send("session.config", **{**body, "split_granularity": "none", "stream_audio": True})
        await client.send("input.text", text=TEXT)
        await client.send("input.done")
        assert (await client.until("session.done"))["total_sentences"] == 1
        assert client.audio[0, 0] == undisturbed


async def test_a_text_beyond_the_limit_is_refused(running: Running) -> None:
    async def refusal(**fields: object) -> tuple[int, str, str]:
        response = await running.client.post("/v1/audio/speech", json=fields)
        error = response.json()["error"]
        return response.status_code, error["param"], error["message"]

    assert await refusal(input="a" * (LIMIT + 1)) == (
        400,
        "input",
        "input: has 40,001 characters; at most 40,000 are accepted",
    )
    status, param, message = await refusal(input="a" * LIMIT, stream=False)
    assert (status, param) == (400, "input") and "at most 32,768 are accepted for a whole file" in message


async def test_a_lexicon_and_normalization_change_what_is_spoken(running: Running) -> None:
    spelled = await running.speak("The engine x box costs four dollars.")
    assert await running.speak("The nginx cube costs $4.", normalize=True, lexicon={"cube": "box"}) == spelled
    assert await running.speak("The nginx cube costs $4.", normalize=False) != spelled
