"""The load: live listeners and clients that download files, with requests from a fixed set."""

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Self

import aiohttp
import msgspec
from msgspec import Struct

from syrinx_operator.commands.bench.load import corpus
from syrinx_operator.commands.bench.stats import Arrival
from syrinx_operator.commands.client import CONNECT_SECONDS, SpeechClient, SpeechError
from syrinx_stages.contract.family import FAMILY

READ_SECONDS = 150.0
"""A response without data for this long is lost. A file is sent when it is complete."""
RETRY_SECONDS = 30.0
"""A client retries a refused request for this long."""
PAUSE_SECONDS = 0.3
"""Between two requests of a client, and before a refused one is sent again."""
REFUSALS = ("queue_full", "redis_full", "stage_unavailable", "unavailable")
"""Codes of a 503 for a request that was not admitted."""
VOICES = ("us", "us_f", "us_m", "gb")


class Verdict(StrEnum):
    """The result of a request."""

    COMPLETE = "complete"
    """All audio arrived, and it is equal to that of a fault-free run."""
    MISMATCH = "mismatch"
    """Audio differs from that of a fault-free run."""
    LOST = "lost"
    """It failed after it was admitted."""
    REFUSED = "refused"
    """Not admitted; the client sends it again."""


class Utterance(Struct, frozen=True):
    """A request and the result of a fault-free run."""

    body: dict[str, object]
    pcm: bytes = b""
    frames: int = 0

    def matches(self, pcm: bytes, complete: bool) -> bool:
        """Returns whether received audio equals that of the fault-free run or, if incomplete, its beginning."""
        return pcm == self.pcm if complete else self.pcm.startswith(pcm)

    def difference(self, pcm: bytes) -> str:
        """Describes where received audio differs from that of the fault-free run."""
        same = next((at for at, (got, want) in enumerate(zip(pcm, self.pcm, strict=False)) if got != want), None)
        at = min(len(pcm), len(self.pcm)) if same is None else same
        where = f"frame {self.frames_in(at)} of {self.frames} (byte {at})"
        return f"{len(pcm)} bytes differ from the {len(self.pcm)} of a fault-free run from {where}"

    def frames_in(self, size: int) -> int:
        """Returns the number of whole frames in the first `size` bytes of the audio, trimmed silence included."""
        return (size + self.frames * FAMILY.frame_bytes - len(self.pcm)) // FAMILY.frame_bytes


class Outcome(Struct, frozen=True):
    """One request. Times are monotonic seconds."""

    gateway: str
    number: int
    """Of the utterance."""
    live: bool
    request_id: str
    """Empty if no response began."""
    start: float
    end: float
    arrivals: tuple[Arrival, ...]
    verdict: Verdict
    message: str = ""


def utterances(seed: int, count: int, sentences: int) -> list[Utterance]:
    """Returns requests of `sentences` sentences of the corpus each."""
    generator = random.Random(seed)
    return [
        Utterance(
            {
                "input": " ".join(generator.sample(corpus(), sentences)),
                "voice": VOICES[number % len(VOICES)],
                "seed": generator.randrange(2**31),
                "response_format": "pcm",
            }
        )
        for number in range(count)
    ]


class Load:
    """Sends requests to gateways and keeps the outcomes. An async context manager."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        """`urls` by name of the gateway."""
        self._urls = urls
        self._clients: dict[str, SpeechClient] = {}
        self._cleanup = contextlib.AsyncExitStack()
        self.outcomes: list[Outcome] = []
        self._utterances: Sequence[Utterance] = ()

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        for name, url in self._urls.items():
            # Each request has a connection of its own: a kept one may be closed by a draining gateway as it is used.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            client = SpeechClient(url, connector=connector, timeout=timeout)
            self._clients[name] = await self._cleanup.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cleanup.aclose()

    async def record(self, requests: Sequence[Utterance]) -> Sequence[Utterance]:
        """Returns requests with the results of this run, and uses them from now on. Raises what a request raises.

        One after another: a slow machine refuses some of several at once.
        """
        client, recorded = next(iter(self._clients.values())), []
        for request in requests:
            async with client.post(request.body | {"stream_format": "sse"}) as response:
                lines = [line async for line in response.content]
            *deltas, done = [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines if line.strip()]
            pcm = b"".join(msgspec.convert(delta["audio"], bytes) for delta in deltas)
            recorded.append(Utterance(request.body, pcm, done["usage"]["output_tokens"]))
        self._utterances = recorded
        return recorded

    async def run_client(self, name: str, seed: int, live: bool, stop: asyncio.Event) -> None:
        """Sends one request after another until `stop`. A live listener plays each utterance to its end."""
        generator = random.Random(f"{seed}:{name}")
        while not stop.is_set():
            outcome = await self.request(generator, live)
            played = outcome.start
            if live and outcome.arrivals:
                samples = sum(arrival.samples for arrival in outcome.arrivals)
                played = outcome.start + outcome.arrivals[0].at + samples / FAMILY.sample_rate
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, played - time.monotonic()) + PAUSE_SECONDS)

    async def request(self, generator: random.Random, live: bool) -> Outcome:
        """Sends one request until it is admitted, each time to another gateway. Returns the last outcome."""
        number = generator.randrange(len(self._utterances))
        gateways = generator.sample(list(self._urls), len(self._urls))
        deadline = time.monotonic() + RETRY_SECONDS
        attempt = 0
        while True:
            outcome = await self._attempt(gateways[attempt % len(gateways)], number, live)
            if outcome.verdict is Verdict.REFUSED and time.monotonic() > deadline:
                message = f"refused for {RETRY_SECONDS:.0f} s: {outcome.message}"
                outcome = msgspec.structs.replace(outcome, verdict=Verdict.LOST, message=message)
            self.outcomes.append(outcome)
            if outcome.verdict is not Verdict.REFUSED:
                return outcome
            attempt += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _attempt(self, gateway: str, number: int, live: bool) -> Outcome:
        utterance, start = self._utterances[number], time.monotonic()
        arrivals: list[Arrival] = []
        pcm = bytearray()
        request_id, message = "", ""
        try:
            async with self._clients[gateway].post(utterance.body | {"stream": live}) as response:
                request_id = response.headers["X-Request-Id"]
                async for piece in response.content.iter_any():
                    arrivals.append(Arrival(time.monotonic() - start, len(piece) // 2))
                    pcm += piece
            verdict = Verdict.COMPLETE
        except SpeechError as error:
            verdict, message = _verdict(error), f"{' '.join(filter(None, (error.kind, error.code)))}: {error}"
        if not utterance.matches(bytes(pcm), verdict is Verdict.COMPLETE):
            message = f"{utterance.difference(bytes(pcm))}; {message}"
            verdict = Verdict.MISMATCH
        end = time.monotonic()
        return Outcome(gateway, number, live, request_id, start, end, tuple(arrivals), verdict, message)


def _verdict(error: SpeechError) -> Verdict:
    """Returns the verdict on a request that ended with an error."""
    refused = error.kind == "connection" or (error.kind == "http 503" and error.code in REFUSALS)
    return Verdict.REFUSED if refused else Verdict.LOST
