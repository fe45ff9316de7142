"""Keeps an uploaded voice: a talker prepares it and speaks a frame with it, so that a kept voice is one that works."""

import asyncio
import time

from msgspec import structs

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import PreparedVoice, SpeechRequest, TaskType, encode
from syrinx_stages.gateway.cells.monitor import CONNECTOR_SECONDS
from syrinx_stages.gateway.clients.client import voice_owner
from syrinx_stages.gateway.errors import ApiError, internal_error
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.voices.kept_voices import Cloned
from syrinx_stages.gateway.voices.reference import FIELD
from syrinx_stages.gateway.voices.voices import KeptVoice, Upload, new_voice_id
from syrinx_stages.runtime.clock import monotonic

_TEXT = "Hello."
"""What a talker begins to speak with a new voice."""


async def keep_voice(service: GatewayService, upload: Upload, request_id: str, client: str) -> KeptVoice:
    """Prepares and keeps a voice. It is admitted and counted like a request for a file.

    Raises `ApiError`: as `GatewayService.open_stream` and `KeptVoices.keep`, 400 or 413 for an unusable sample.
    """
    await service.voices.check(upload.name)
    voice = KeptVoice(
        id=new_voice_id(),
        owner=voice_owner(),
        name=upload.name,
        created_at=int(time.time()),
        consent=upload.consent,
        transcript=upload.transcript,
        description=upload.description,
    )
    request = SpeechRequest(
        id=request_id,
        accepted_at=time.time(),
        text=_TEXT,
        task_type=TaskType.BASE,
        has_reference=True,
        reference_text=upload.transcript,
        x_vector_only=voice.x_vector_only,
        non_streaming_text=False,
        max_frames=1,
        client=client,
        live=False,
    )
    try:
        if upload.embedding is not None:
            prepared = PreparedVoice(upload.embedding)
            source = encode(prepared)
            await _speak(service, structs.replace(request, reference_prepared=True), Cloned(source))
        else:
            assert upload.sample is not None
            pcm = await service.decode_audio(upload.sample.data)
            prepared = await _prepare(service, request, pcm)
            voice = structs.replace(
                voice,
                seconds=round(len(pcm) / 4 / FAMILY.sample_rate, 3),
                media_type=upload.sample.media_type,
                file_size=len(upload.sample.data),
                keeps_samples=len(pcm) < len(upload.sample.data),
            )
            source = pcm if voice.keeps_samples else upload.sample.data
    except ApiError as error:
        # A prompt that is too long has a long transcript.
        names = {FIELD: upload.sample_field, "input": "ref_text"}
        raise error if error.param not in names else error.renamed(names[error.param]) from None
    await service.voices.keep(voice, source, prepared)
    return voice


async def _prepare(service: GatewayService, request: SpeechRequest, pcm: bytes) -> PreparedVoice:
    """Returns what a talker has prepared of the sample."""
    published: asyncio.Future[PreparedVoice | None] = asyncio.get_running_loop().create_future()

    async def on_prepared(voice: PreparedVoice | None) -> None:
        if not published.done():
            published.set_result(voice)

    await _speak(service, structs.replace(request, returns_voice=True), Cloned(pcm, on_prepared))
    try:
        async with asyncio.timeout(CONNECTOR_SECONDS):
            prepared = await published
    except TimeoutError:
        prepared = None
    if prepared is None:
        raise internal_error("the voice was prepared, and lost before it was kept; send it again")
    return prepared


async def _speak(service: GatewayService, request: SpeechRequest, voice: Cloned) -> None:
    async with service.open_stream(request, voice, monotonic()) as stream:
        await stream.collect()
        stream.listener.complete()
