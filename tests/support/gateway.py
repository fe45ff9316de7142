"""A real gateway on a loopback port, with scripted stages."""

import asyncio
import contextlib
import io
import json
import shutil
import wave
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from prometheus_client import CollectorRegistry

from support.http_server import serve
from support.process import StageProcess
from support.streams import Streams, redis_url
from support.waiting import DEADLINE, until
from syrinx_stages.connector.base import Append, Claim, Fence
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Audio, End, EndReason, SpeechRequest
from syrinx_stages.contract.settings import GatewaySettings, StageConfig
from syrinx_stages.contract.stages import Stage
from syrinx_stages.gateway.http.api import create_app
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.model.describe import checkpoint_directory
from syrinx_stages.runtime.telemetry.metrics import Metrics

SERVED = {"task_type": "CustomVoice"}
"""Metric labels of the scripted stages."""


def tone(frames: int) -> bytes:
    """PCM of the first `frames` frames of the scripted audio."""
    time = np.arange(frames * FAMILY.samples_per_frame) / FAMILY.sample_rate
    return (8000 * np.sin(2 * np.pi * 220 * time)).astype("<i2").tobytes()


def pcm_of(wav: bytes) -> bytes:
    """The samples of a WAV file, or of a stream of one."""
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getnchannels(), file.getframerate()) == (1, FAMILY.sample_rate)
        return file.readframes(10**7)


def events(body: bytes) -> list[dict[str, Any]]:
    """The server-sent events of a response."""
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@dataclass
class Script:
    """How the stages serve a request."""

    frames: int = 10
    silent: int = 0
    """How many of these, at the start, are silent."""
    chunk: int = 2
    end: End | None = field(default_factory=lambda: End(EndReason.STOP))
    """None: the stream never ends."""
    pause_after: int | None = None
    """Waits for `go` after this many frames."""
    go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pcm(self) -> bytes:
        """The whole audio."""
        return bytes(self.silent * FAMILY.frame_bytes) + tone(self.frames)[self.silent * FAMILY.frame_bytes :]


class Stages:
    """One talker that only claims, and one codec that writes the script's audio."""

    def __init__(self, streams: Streams) -> None:
        self.script = Script()
        self.seen: list[SpeechRequest] = []
        self.references: list[bytes | None] = []
        self._last: dict[tuple[str, Fence], Position] = {}
        self.written: dict[str, int] = {}
        """Frames written, by request."""
        self._connector = streams.connector()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Stages":
        self._spawn(self._talk())
        self._spawn(self._decode())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Stops both replicas; may be called twice."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
        await self._connector.close()

    def _spawn(self, work) -> None:
        self._tasks.add(asyncio.create_task(work))

    async def _talk(self) -> None:
        consumer = self._connector.consumer(Stage.TALKER, "talker-0")
        while True:
            await consumer.take_over(0)
            for claim in await consumer.claim(100):
                await consumer.finish(claim.entry_id)

    async def _decode(self) -> None:
        consumer = self._connector.consumer(Stage.CODEC, "codec-0")
        while True:
            await consumer.take_over(0)
            for claim in await consumer.claim(100):
                self.seen.append(claim.request)
                self.references.append(await self._connector.reference(claim.request.id))
                self._spawn(self._speak(claim, self.script))

    async def _speak(self, claim: Claim, script: Script) -> None:
        pcm, step = script.pcm, script.chunk * FAMILY.frame_bytes
        frames = 0
        for start in range(0, len(pcm), step):
            if script.pause_after is not None and frames >= script.pause_after:
                await script.go.wait()
            frames = min(frames + script.chunk, script.frames)
            first = {"talker": "talker-0", "codec": "codec-0"} if start == 0 else {}
            if not await self._write(claim, Position(frames), Audio(pcm[start : start + step], **first)):
                return
            self.written[claim.request.id] = frames
        if script.end is not None:
            await self._write(claim, Position(frames, END_SEQUENCE), script.end, finishes=claim.entry_id)

    async def _write(self, claim: Claim, at: Position, entry: Audio | End, finishes: str | None = None) -> bool:
        after = self._last.get((claim.request.id, claim.fence), STREAM_CREATED)
        self._last[claim.request.id, claim.fence] = at
        append = Append(claim.request.id, StreamKind.AUDIO, at, entry, claim.fence, after, finishes)
        return await self._connector.append([append]) == [None]


@dataclass
class Gateway:
    """A running gateway and its stages."""

    url: str
    service: GatewayService
    stages: Stages
    streams: Streams
    registry: CollectorRegistry
    http: httpx.AsyncClient

    async def say(self, **fields: object) -> httpx.Response:
        """Sends one request and reads the whole response."""
        return await self.http.post("/v1/audio/speech", json={"input": "Hello.", **fields})

    async def begin(self, script: Script, **fields: object) -> asyncio.Task[httpx.Response]:
        """Sends a request, and returns when a codec that serves it by the script has claimed it."""
        number, self.stages.script = len(self.stages.seen), script
        call = asyncio.create_task(self.say(**fields))
        await until(lambda: len(self.stages.seen) > number, "the request is claimed")
        return call

    async def without_stages(self) -> None:
        """Returns when the gateway has seen both stages and they have left."""
        await until(lambda: self.service.ready() is None, "both stages were seen")
        await self.stages.leave()

    async def live(self) -> None:
        """Waits until a client has got audio of a stream."""
        await until(lambda: self.metric("syrinx_live_streams"), "the stream is live")

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value; 0 if it does not exist yet."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def requests(self, outcome: str, task_type: str = "CustomVoice") -> float:
        """How many requests ended like that."""
        return self.metric("syrinx_requests_total", task_type=task_type, outcome=outcome)

    async def counted(self, outcome: str, number: int = 1) -> None:
        """Waits until so many requests ended like that."""
        await until(lambda: self.requests(outcome) == number, f"{number} is {outcome}")


def base_checkpoint(directory: Path) -> str:
    """Writes the files of a Base checkpoint that a gateway reads, derived from the bundled checkpoint."""
    bundled = checkpoint_directory("bundled")
    shutil.copytree(bundled, directory, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    config = json.loads((bundled / "config.json").read_text())
    hidden = config["talker_config"]["hidden_size"]
    config |= {"tts_model_type": "base", "speaker_encoder_config": {"enc_dim": hidden}}
    config["talker_config"]["spk_id"] = config["talker_config"]["spk_is_dialect"] = None
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


@contextlib.asynccontextmanager
async def gateway_service(
    connectors: Sequence[RedisConnector], stall_seconds: float = DEADLINE, **config: object
) -> AsyncIterator[tuple[GatewayService, CollectorRegistry]]:
    """Runs the service of a gateway, by default of the bundled checkpoint, and gives its metrics."""
    defaults = {"pipeline": "p", "generation": "g", "replica": "gateway-0", "model": "bundled"}
    # A busy machine is no reason to refuse requests.
    defaults |= {"gateway": GatewaySettings(max_queue_seconds=600.0)}
    registry = CollectorRegistry()
    service = GatewayService(StageConfig(**{**defaults, **config}), connectors, Metrics(registry), stall_seconds)
    await service.start()
    try:
        yield service, registry
    finally:
        await service.close()


@contextlib.asynccontextmanager
async def gateway_process(
    directory: Path, environment: Mapping[str, str] | None = None, **options: object
) -> AsyncIterator[tuple[StageProcess, Stages, httpx.AsyncClient]]:
    """Runs a gateway as a process, which is ready, with scripted stages. `options` are those of `StageProcess`."""
    streams = Streams()
    own = {"REDIS_URL": redis_url(), "REDIS_PASSWORD": "", **(environment or {})}
    options |= {"pipeline": streams.keys.pipeline, "generation": streams.keys.generation}
    try:
        async with Stages(streams) as stages:
            with StageProcess("gateway", directory, None, environment=own, **options) as process:
                await asyncio.to_thread(lambda: process.started().ready())
                async with httpx.AsyncClient(base_url=process.line["url"], timeout=DEADLINE, trust_env=False) as http:
                    yield process, stages, http
    finally:
        await streams.close()


@contextlib.asynccontextmanager
async def client_of(service: GatewayService) -> AsyncIterator[httpx.AsyncClient]:
    """Serves a gateway on a loopback port to a client, and drains it."""
    async with serve(create_app(service)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE, trust_env=False) as http:
            yield http
        await service.drain(DEADLINE)


@contextlib.asynccontextmanager
async def gateway(
    stall_seconds: float = DEADLINE, streams: Streams | None = None, **config: object
) -> AsyncIterator[Gateway]:
    """Runs a gateway with scripted stages."""
    streams = streams or Streams()
    try:
        async with gateway_service([streams.connector()], stall_seconds, **config) as (service, registry):
            async with Stages(streams) as stages, client_of(service) as http:
                yield Gateway(str(http.base_url).rstrip("/"), service, stages, streams, registry, http)
            await service.close()
            assert len(streams) == 0, "a request was not released"
    finally:
        await streams.close()
