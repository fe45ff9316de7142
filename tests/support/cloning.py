"""A gateway with a talker and a codec of a small Base checkpoint, all within the test's process."""

import contextlib
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import ClassVar

import httpx
import numpy as np
import soundfile
from prometheus_client import CollectorRegistry

from support.gateway import client_of, gateway_service
from support.stages import Pipeline
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.prompt import Prepared

TRANSCRIPT = "Okay. Yeah."


def sample(seed: int = 0, seconds: float = 1.6, subtype: str = "PCM_16") -> bytes:
    """A WAV file with a tone of rising pitch, another one for each seed."""
    time = np.arange(int(seconds * FAMILY.sample_rate)) / FAMILY.sample_rate
    tone = 0.25 * np.sin(2 * np.pi * (200 + 40 * seed + 150 * time) * time)
    out = io.BytesIO()
    soundfile.write(out, tone, FAMILY.sample_rate, format="WAV", subtype=subtype)
    return out.getvalue()


@dataclass
class Cloning:
    """A running gateway and its stages."""

    http: httpx.AsyncClient
    service: GatewayService
    stages: Pipeline
    registry: CollectorRegistry

    def counted(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values of a counter by these labels."""
        [family] = [each for each in self.registry.collect() if each.name == name]
        samples = [each for each in family.samples if each.name == f"{name}_total"]
        return {tuple(each.labels[label] for label in labels): each.value for each in samples}

    async def upload(self, name: str, file: bytes | None = None, **fields: object) -> httpx.Response:
        """Uploads a voice. A field of None is left out; `headers` are those of the request."""
        headers = fields.pop("headers", None)
        form = {"name": name, "consent": "cons_1", "ref_text": TRANSCRIPT, **fields}
        files = {} if "speaker_embedding" in fields else {"audio_sample": ("a.wav", file or sample(), "audio/wav")}
        data = {key: value for key, value in form.items() if value is not None}
        # httpx sends fields in `data` URL-encoded if there is no file.
        parts = files | {key: (None, value) for key, value in data.items()}
        return await self.http.post("/v1/audio/voices", files=parts, headers=headers)

    async def say(self, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
        """Sends one request for ten frames of PCM and reads the whole response."""
        body = {"input": "Hello.", "response_format": "pcm", "max_new_tokens": 10, "seed": 3, **fields}
        return await self.http.post("/v1/audio/speech", json=body, headers=headers)


class RecordingEngine(EagerTalkerEngine):
    """Records the requests whose reference audio it encodes. Each test derives a class of its own from it."""

    encoded: ClassVar[list[str]]

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        if request.encodes_reference:
            self.encoded.append(request.id)
        return super().prepare(request, codes, reference)


@contextlib.asynccontextmanager
async def stages_of(checkpoint: Checkpoint, keys: Keys | None = None) -> AsyncIterator[Pipeline]:
    """Runs a talker and a codec, in the streams of `keys` if given."""
    engine = type("Engine", (RecordingEngine,), {"encoded": []})
    stages = Pipeline(checkpoint=checkpoint, talker_engine=engine)
    stages.streams.keys = keys or stages.streams.keys
    try:
        await stages.talker()
        await stages.codec()
        yield stages
    finally:
        # They do not expire.
        for key in stages.streams.raw.scan_iter(match=f"{{{stages.streams.keys.pipeline}:voices:*"):
            stages.streams.raw.delete(key)
        await stages.close()


@contextlib.asynccontextmanager
async def gateway_of(stages: Pipeline, **config: object) -> AsyncIterator[Cloning]:
    """Runs a gateway of these stages."""
    keys = stages.streams.keys
    own = {"pipeline": keys.pipeline, "generation": keys.generation, "model": str(stages.checkpoint.directory)}
    async with (
        gateway_service([stages.connector()], **own, **config) as (service, registry),
        client_of(service) as http,
    ):
        yield Cloning(http, service, stages, registry)
