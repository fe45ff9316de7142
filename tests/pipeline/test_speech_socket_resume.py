"""An utterance is continued on another connection, also to another gateway after the first was killed."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from support.speech_socket import Client, connected, serving
from support.stages import Pipeline, pipeline
from support.waiting import until
from syrinx_stages.gateway import service as gateway_service
from syrinx_stages.gateway.http.delivery import ClientDisconnected
from syrinx_stages.gateway.socket.sender import Sender
from syrinx_stages.gateway.speech import submission
from syrinx_stages.model.describe import describe

TEXT = "The old teacher found two heavy bags. 12.5 kg were in each, for $5.50."
CONFIG = {"text_mode": "tokens", "seed": 5, "request_id": "turn-1"}


@pytest.fixture
async def stages() -> AsyncIterator[Pipeline]:
    async with pipeline(reading=describe("bundled").reading) as running:
        yield running


async def expected_audio(url: str, text: str = TEXT) -> bytes:
    body = {"input": text, "response_format": "pcm", "seed": 5, "non_streaming_mode": False}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return (await http.post(f"{url}/v1/audio/speech", json=body)).content


async def begin(client: Client) -> int:
    """Sends the text up to within a number, and receives some audio. Returns the number of the first sample."""
    await client.send("session.config", **CONFIG)
    await client.send("input.text", text=TEXT[:40])
    start = await client.until("audio.start")
    await client.receive()
    return start["offset"]


async def go_on(client: Client, offset: int, received: bytes, characters: int | None = None) -> bytes:
    """Continues the utterance. Returns the rest of its audio."""
    await client.send("session.config", **CONFIG, audio_offset=offset + len(received) // 2)
    resumed = await client.until("session.resumed")
    assert resumed["request_id"] == "turn-1"
    if characters is not None:
        assert resumed["characters"] == characters
    if not resumed["ended"]:
        await client.send("input.text", text=TEXT[resumed["characters"] :])
        await client.send("input.done")
    await client.until("session.done")
    start = client.of_type("audio.start")
    assert not start or start[0]["offset"] == offset + len(received) // 2
    assert not client.of_type("error")
    return client.audio.get((0, 0), b"")


@pytest.mark.parametrize("cut", [0, 2, 4000], ids=["at a chunk", "within a frame", "earlier"])
async def test_another_gateway_continues_after_a_lost_connection(stages: Pipeline, cut: int) -> None:
    async with serving(stages.streams) as (first, _, _), serving(stages.streams) as (second, _, _):
        expected = await expected_audio(first)
        async with connected(first) as client:
            offset = await begin(client)
            client.socket.transport.abort()
        received = client.audio[0, 0]
        received = received[: len(received) - cut]
        async with connected(second) as client:
            rest = await go_on(client, offset, received, characters=40)
            # The next utterance has no name.
            await client.send("input.text", text=TEXT)
            await client.send("input.done")
            await client.until("session.done")
        assert received + rest == client.audio[1, 0] == expected


class Listening:
    """Receives an utterance of several segments up to a sample, and on other connections what follows."""

    def __init__(self, text: str) -> None:
        self.text, self.pcm, self.next_sample = text, b"", 0

    async def receive(self, client: Client, samples: int) -> bool:
        """Receives the audio up to so many samples; returns whether it ends before."""
        while len(self.pcm) < 2 * samples:
            message = await client.receive()
            if isinstance(message, bytes):
                pcm = message[: 2 * samples - len(self.pcm)]
                self.pcm += pcm
                self.next_sample += len(pcm) // 2
            elif message["type"] == "session.done":
                return True
            else:
                assert message["type"] != "error", message
                self.next_sample = message.get("offset", self.next_sample)
        return False

    async def run(self, client: Client, samples: int, characters: int) -> bool:
        """Goes on on a connection, with the text up to a character. Returns the same as `receive`."""
        resumed: dict[str, Any] = {"characters": 0, "ended": False}
        if not self.pcm:
            await client.send("session.config", **CONFIG)
        else:
            await client.send("session.config", **CONFIG, audio_offset=self.next_sample)
            resumed = await client.until("session.resumed")
        await client.send("input.text", text=self.text[resumed["characters"] : characters])
        if characters == len(self.text) and not resumed["ended"]:
            await client.send("input.done")
        return await self.receive(client, samples)


def pauses(pcm: bytes) -> list[int]:
    """Returns the middles of what is silent, as the pauses between segments are, in samples."""
    found = re.finditer(rb"(?:\x00\x00){2000,}", pcm)
    return [(each.start() + each.end()) // 4 for each in found]


@pytest.mark.parametrize("seed", range(4))
async def test_a_connection_may_be_lost_within_and_between_segments(stages: Pipeline, seed: int) -> None:
    """Also within the pause between them."""
    text, chance = "The dog ran home.  Who saw it, at 5?\n\nNobody came.", random.Random(seed)
    async with serving(stages.streams) as (first, _, _), serving(stages.streams) as (second, _, _):
        expected = await expected_audio(first, text)
        places = sorted((8000, *pauses(expected), *chance.sample(range(9000, len(expected) // 2 - 1000), 4)))
        assert len(places) >= 7
        listening = Listening(text)
        for number, samples in enumerate([*places, len(expected)]):
            async with connected((first, second)[number % 2]) as client:
                ended = await listening.run(client, samples, len(text) if number else text.index("Who") + 6)
                client.socket.transport.abort()
            assert ended == (samples == len(expected))
        assert listening.pcm == expected


async def test_a_connection_that_is_lost_during_a_send(stages: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender may notice it before the receiver does."""
    closed, close = asyncio.Event(), submission.Submission.close

    async def send_to_nobody(*arguments: object) -> None:
        raise ClientDisconnected

    def observed_close(closing: submission.Submission, keep_seconds: float) -> None:
        close(closing, keep_seconds)
        closed.set()

    async with serving(stages.streams) as (url, _, _):
        expected = await expected_audio(url)
        async with connected(url) as client:
            offset = await begin(client)
            with monkeypatch.context() as patched:
                patched.setattr(Sender, "binary", send_to_nobody)
                patched.setattr(submission.Submission, "close", observed_close)
                await client.send("input.text", text=TEXT[40:])
                async with asyncio.timeout(60):
                    await closed.wait()
            client.socket.transport.abort()
        received = client.audio[0, 0]
        async with connected(url) as client:
            rest = await go_on(client, offset, received)
        assert received + rest == expected


async def test_what_is_not_continued_is_released(stages: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_service, "RESUME_SECONDS", 0.5)
    async with serving(stages.streams) as (url, _, _):
        async with connected(url) as client:
            await begin(client)
            client.socket.transport.abort()
            assert len(stages.streams) > 0
        await until(lambda: not len(stages.streams), "it is released")
        await until(lambda: not stages.workers[0].rows, "the row is freed")


async def test_an_utterance_that_cannot_be_continued(stages: Pipeline) -> None:
    async with serving(stages.streams) as (url, _, _), connected(url) as client, connected(url) as other:
        await client.send("session.config", **CONFIG, audio_offset=100)
        error = await client.until("error")
        assert (error["code"], error["param"]) == ("request_not_found", "request_id")
        await begin(client)
        await other.send("session.config", **CONFIG)
        await other.send("input.text", text=TEXT)
        error = await other.until("error")
        assert (error["code"], error["param"]) == ("request_in_use", "request_id")
        await client.send("cancel")
        await client.until("session.done")
        await until(lambda: not len(stages.streams), "it is released")


async def test_cancel_releases_an_utterance_that_could_be_continued(stages: Pipeline) -> None:
    """Also one whose text was complete before it began."""
    async with serving(stages.streams) as (url, _, _), connected(url) as client:
        for done in (False, True):
            await client.send("session.config", **CONFIG)
            await client.send("input.text", text="The" if done else TEXT)
            if done:
                await client.send("input.done")
            else:
                await client.until("audio.start")
            await client.send("cancel")
            await client.until("session.done")
            await until(lambda: not len(stages.streams) and not stages.workers[0].rows, "it is released")


async def test_audio_that_is_no_longer_kept(stages: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "RESUME_FRAMES", 0)
    async with serving(stages.streams) as (url, _, _):
        async with connected(url) as client:
            offset = await begin(client)
            await client.send("input.text", text=TEXT[40:])
            while len(client.audio[0, 0]) < 50_000:
                await client.receive()
            await asyncio.sleep(0.1)
            client.socket.transport.abort()
        async with connected(url) as client:
            await client.send("session.config", **CONFIG, audio_offset=offset + 2000)
            error = await client.until("error")
            assert (error["code"], error["param"]) == ("audio_expired", "audio_offset")
