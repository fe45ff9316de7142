"""Talker and codec services within the test's process, with the bundled voice."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from unittest import mock

from prometheus_client import CollectorRegistry

from support.streams import Streams
from support.waiting import DEADLINE
from syrinx_stages.codec.eager_engine import EagerCodecEngine
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.base import Cancelled, Ticket
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import STREAM_START, StreamKind
from syrinx_stages.contract.messages import Audio, End, SpeechRequest, TaskType
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, TalkerSettings
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.normalization.reading import Reading
from syrinx_stages.runtime.requests import ownership
from syrinx_stages.runtime.requests.worker import Worker
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.telemetry.metrics import Metrics
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.service import Loaded, TalkerService

LEASE_SECONDS = 0.5
"""Short leases keep tests of crashes quick."""
REFRESH_SECONDS = 0.05
"""Shorter still."""

bundled = cache(lambda: Checkpoint("bundled"))


def request(name: str, text: str = "The old teacher found two heavy bags.", **fields: object) -> SpeechRequest:
    """Returns a request to the bundled voice; its seed is derived from its name."""
    defaults = {
        "task_type": TaskType.CUSTOM_VOICE,
        "voice": "us",
        "seed": sum(name.encode()),
        "accepted_at": time.time(),
    }
    return SpeechRequest(**{**defaults, "id": name, "text": text, **fields})


@dataclass
class ReceivedAudio:
    """Audio of one request, as a gateway receives it."""

    pcm: bytes = b""
    chunks: list[int] = field(default_factory=list)
    """Total frames after each entry."""
    codecs: list[str] = field(default_factory=list)
    talkers: list[str] = field(default_factory=list)
    end: End | None = None


class Pipeline:
    """Any number of talkers and codecs that share streams."""

    def __init__(
        self,
        lease_seconds: float = LEASE_SECONDS,
        checkpoint: Checkpoint | None = None,
        talker_engine: type[EagerTalkerEngine] = EagerTalkerEngine,
        codec_engine: type[EagerCodecEngine] = EagerCodecEngine,
        url: str | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.reading = reading or Reading()
        self.checkpoint = checkpoint or bundled()
        self.talker_engine, self.codec_engine = talker_engine, codec_engine
        self.streams = Streams(lease_seconds, url)
        self.workers: list[Worker] = []
        self._refresh = mock.patch.object(ownership, "REFRESH_SECONDS", REFRESH_SECONDS)
        self._refresh.start()

    def connector(self) -> RedisConnector:
        return self.streams.connector()

    async def talker(self, name: str = "talker-0", max_resident: int = 16, **settings: object) -> TalkerService:
        live = LiveSettings(TalkerSettings(**settings), 1, max_resident)
        arguments = self.connector(), self.load_talker, name, max_resident, live, metrics()
        return await self._start(TalkerService(*arguments))

    def load_talker(self) -> Loaded:
        return self.talker_engine(self.checkpoint), self.reading

    async def codec(self, name: str = "codec-0", max_resident: int = 16, **settings: object) -> CodecService:
        live = LiveSettings(CodecSettings(**settings), 1, max_resident)
        return await self._start(
            CodecService(
                self.connector(),
                lambda: self.codec_engine(self.checkpoint.load_codec_decoder(), max_resident),
                name,
                max_resident,
                live,
                metrics(),
            )
        )

    async def start(self, stage: str, name: str = "", **settings: object) -> Worker:
        """Starts a talker or a codec."""
        start = self.talker if stage == "talker" else self.codec
        return await start(name or f"{stage}-0", **settings)

    def worker(self, stage: str) -> Worker:
        """Returns the first talker or codec."""
        return next(worker for worker in self.workers if worker.stage == stage)

    async def _start(self, worker: Worker) -> Worker:
        self.workers.append(worker)
        await worker.start()
        return worker

    async def kill(self, worker: Worker) -> None:
        """Stops a worker like SIGKILL: it neither releases claims nor writes anything."""
        self.workers.remove(worker)
        worker.ownership.claims.clear()
        worker._closed = True
        await worker._tasks.cancel()
        await worker.engine_thread.close()
        await self.streams.kill(getattr(worker.connector, "_connector", worker.connector))

    async def close(self) -> None:
        for worker in self.workers:
            await worker.close()
        await self.streams.close()
        self._refresh.stop()


@contextlib.asynccontextmanager
async def pipeline(talkers: int = 1, codecs: int = 1, **options: object) -> AsyncIterator[Pipeline]:
    """Starts a pipeline with default settings. options: arguments of `Pipeline`."""
    stages = Pipeline(**options)
    try:
        for index in range(talkers):
            await stages.talker(f"talker-{index}")
        for index in range(codecs):
            await stages.codec(f"codec-{index}")
        yield stages
    finally:
        await stages.close()


def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


async def submit(connector: RedisConnector, item: SpeechRequest, reference: bytes | None = None) -> Ticket:
    return await connector.submit(item, GatewaySettings(max_queue=100, max_queue_seconds=600.0), reference)


async def receive(connector: RedisConnector, request_id: str, until_frames: int | None = None) -> ReceivedAudio:
    """Reads a request's audio to its end, or until `until_frames` frames have arrived."""
    received = ReceivedAudio()
    reader = connector.reader()
    reader.subscribe(request_id, StreamKind.AUDIO, STREAM_START)
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                events = await reader.read()
                assert events, "the connector was closed"
                for event in events:
                    if isinstance(event, Cancelled):
                        continue
                    if isinstance(event.entry, Audio):
                        before = received.chunks[-1] if received.chunks else 0
                        received.pcm += event.entry.pcm[-FAMILY.frame_bytes * (event.position.frames - before) :]
                        received.chunks.append(event.position.frames)
                        received.codecs += [event.entry.codec] * bool(event.entry.codec)
                        received.talkers += [event.entry.talker] * bool(event.entry.talker)
                        if until_frames is not None and event.position.frames >= until_frames:
                            return received
                    elif isinstance(event.entry, End):
                        received.end = event.entry
                        return received
    finally:
        await reader.close()


async def synthesize(connector: RedisConnector, item: SpeechRequest, reference: bytes | None = None) -> ReceivedAudio:
    """Submits a request, receives its audio and releases it."""
    ticket = await submit(connector, item, reference)
    received = await receive(connector, item.id)
    await connector.release(ticket)
    return received
