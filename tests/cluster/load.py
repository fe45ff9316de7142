"""Steady load through the API server's proxy, in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from cluster.client import Kubernetes
from cluster.speech import service_path
from syrinx_operator.commands.bench.load import Limit, Script, closed_loop, corpus, make_sender, open_loop, poisson
from syrinx_operator.commands.bench.stats import Outcome, summarize
from syrinx_operator.commands.client import SpeechClient, SpeechError

VOICE = "us"
SENTENCES = ("The farmer found two heavy bags.", "The old teacher carried seven green apples before breakfast.")
REFUSED = "http 503"
AT_ONCE = 8
MEASURE_SECONDS = 15.0
PAUSE_AFTER_REFUSAL = 1.0
JOIN_SECONDS = 60.0


class Load:
    """Sends random requests at a constant rate, and the same sentences repeatedly to compare their audio.

    Use as `with`; streams still active at the end are cancelled.
    """

    def __init__(self, cluster: Kubernetes, pipeline: str, rate: float, expected: Mapping[int, bytes]) -> None:
        """`expected` is the PCM of each sentence, by number."""
        self.outcomes: list[Outcome] = []
        """Outcome of each finished request."""
        self.matches: list[bool] = []
        """Whether each received sentence was identical to the expected PCM."""
        self._cluster = cluster
        self._pipeline = pipeline
        self._rate = rate
        self._expected = expected
        self._loop = asyncio.new_event_loop()
        self._leave = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._come(),))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(JOIN_SECONDS)
        self._loop.close()

    @property
    def errors(self) -> set[str]:
        """Returns the failures except refusals because of a full queue."""
        return {outcome.error for outcome in list(self.outcomes) if outcome.error not in (None, REFUSED)}

    async def _come(self) -> None:
        async with connect(self._cluster, self._pipeline) as client:
            tasks = {asyncio.create_task(self._ask(client)), asyncio.create_task(self._listen(client))}
            tasks.add(asyncio.create_task(self._leave.wait()))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _ask(self, client: SpeechClient) -> None:
        speak = make_sender(client, Script(corpus(), (VOICE,), 1))

        async def noted(number: int, due: float) -> Outcome:
            self.outcomes.append(await speak(number, due))
            return self.outcomes[-1]

        await open_loop(noted, poisson(self._rate, 1, Limit(seconds=3600)))

    async def _listen(self, client: SpeechClient) -> None:
        while True:
            for number, expected in self._expected.items():
                try:
                    self.matches.append(await pcm(client, number) == expected)
                except SpeechError as error:
                    self.outcomes.append(Outcome(error=error.kind))
                    await asyncio.sleep(PAUSE_AFTER_REFUSAL)


def connect(cluster: Kubernetes, pipeline: str) -> SpeechClient:
    """Returns a client for a pipeline's gateway, with unlimited concurrency."""
    return cluster.connect(service_path(cluster, pipeline, ""))


async def pcm(client: SpeechClient, number: int) -> bytes:
    """Returns a sentence's PCM with a fixed seed. Raises SpeechError."""
    body = {"input": SENTENCES[number], "voice": VOICE, "response_format": "pcm", "stream": True, "seed": number}
    async with client.speech(body) as pieces:
        return b"".join([piece async for piece in pieces])


async def measure(cluster: Kubernetes, pipeline: str) -> tuple[dict[int, bytes], float]:
    """Returns each sentence's PCM, and the pipeline's maximum requests per second."""
    async with connect(cluster, pipeline) as client:
        audio = {number: await pcm(client, number) for number in range(len(SENTENCES))}
        speak = make_sender(client, Script(corpus(), (VOICE,), 1))
        outcomes, wall = await closed_loop(speak, AT_ONCE, Limit(seconds=MEASURE_SECONDS))
    return audio, summarize("closed", AT_ONCE, outcomes, wall).requests_per_second
