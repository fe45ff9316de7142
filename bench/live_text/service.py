"""The pipeline of `syrinx up` as processes, which can be killed, and what its clients hear."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence

import aiohttp
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families
from syrinx_utterance import Utterance

from live_text.draws import Piece, first_word
from support.local_pipeline import local_pipeline, replicated
from support.waiting import DEADLINE, until
from syrinx_operator.commands.client import SpeechClient
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.supervisor import Child
from syrinx_stages.contract.stages import Stage

REPLICAS = 2
"""Of each stage: one is killed, and the other one continues."""
THINKING_SECONDS = 0.2
"""From the connection to the first token, as an LLM that reads its prompt."""
_FIELDS = {"voice": "us", "seed": 1}
"""Of all requests."""
_SERVED = ("syrinx_live_streams", "syrinx_rows_resident")
"""The metrics that count what a gateway serves, and a talker or codec."""


class Heard(Struct, frozen=True):
    """What a client heard of a text."""

    pcm: bytes
    ttfa: float
    """Seconds to the first audio from the request, or from the piece that ends the first word."""


class Service:
    """A running pipeline of the bundled voice."""

    def __init__(self, pipeline: LocalPipeline, session: aiohttp.ClientSession, client: SpeechClient) -> None:
        self._pipeline, self._session, self._client = pipeline, session, client
        self._kills = 0

    async def whole(self, text: str) -> Heard:
        """Returns the audio of a request with the whole text, as a stream."""
        fields = {"input": text, "response_format": "pcm", "stream": True, "non_streaming_mode": False}
        start, first, pcm = time.monotonic(), 0.0, bytearray()
        async with self._client.speech({**_FIELDS, **fields}) as pieces:
            async for piece in pieces:
                first = first or time.monotonic()
                pcm += piece
        return Heard(bytes(pcm), first - start)

    async def speak(self, pieces: Sequence[Piece], killed: Stage | None = None, at: int = 0) -> Heard:
        """Returns the audio of a text in pieces. A replica of `killed` is, before piece `at` or when there is audio."""
        utterance, pcm, fed, first = self._utterance(), bytearray(), list[float](), 0.0

        async def on_audio(audio: bytes) -> None:
            nonlocal first
            first = first or time.monotonic()
            pcm.extend(audio)

        speaking = asyncio.create_task(utterance.speak(on_audio))
        await asyncio.sleep(THINKING_SECONDS)
        for piece in pieces:
            await asyncio.sleep(piece.delay)
            if killed is not None and pcm and len(fed) >= at:
                await self._kill(killed)
                killed = None
            utterance.feed(piece.text)
            fed.append(time.monotonic())
        assert killed is None, "the text ended before the first audio"
        utterance.end()
        await speaking
        return Heard(bytes(pcm), first - fed[first_word(pieces)])

    async def cancel(self, text: str, after: float) -> float:
        """Returns the seconds from a cancellation, `after` seconds of speech, to the end of the connection.

        The client closes it when the gateway has confirmed, after the last audio.
        """
        utterance, heard = self._utterance(), asyncio.Event()

        async def on_audio(audio: bytes) -> None:
            heard.set()

        utterance.feed(text)  # Its end does not come: it is not over before.
        speaking = asyncio.create_task(utterance.speak(on_audio))
        await heard.wait()
        await asyncio.sleep(after)
        start = time.monotonic()
        speaking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await speaking
        return time.monotonic() - start

    async def recovered(self) -> None:
        """Waits until all killed replicas have been restarted and all are ready."""
        children = self._pipeline.processes

        def is_recovered() -> bool:
            return sum(each.restarts for each in children) == self._kills and all(each.is_ready for each in children)

        await until(is_recovered, "the killed process is ready again")

    async def _kill(self, stage: Stage) -> None:
        """Sends SIGKILL to the replica that serves the only utterance."""
        async with asyncio.timeout(DEADLINE):
            while (serving := await self._serving(stage)) is None or serving.pid is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        os.kill(serving.pid, signal.SIGKILL)
        self._kills += 1

    async def _serving(self, stage: Stage) -> Child | None:
        for child in self._pipeline.processes:
            if child.stage == stage and child.is_ready:
                async with self._session.get(f"{child.admin_url}/metrics") as response:
                    families = text_string_to_metric_families(await response.text())
                    if any(each.value for family in families if family.name in _SERVED for each in family.samples):
                        return child
        return None

    def _utterance(self) -> Utterance:
        return Utterance(self._session, f"{self._pipeline.gateway_url}/v1", None, _FIELDS)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Service]:
    """Runs the pipeline."""
    async with (
        local_pipeline(replicated("live", gateway=REPLICAS, talker=REPLICAS, codec=REPLICAS)) as pipeline,
        aiohttp.ClientSession() as session,
        SpeechClient(pipeline.gateway_url) as client,
    ):
        yield Service(pipeline, session, client)
