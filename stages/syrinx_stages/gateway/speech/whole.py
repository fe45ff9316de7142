"""Generates whole responses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from msgspec import Struct

from syrinx_stages.gateway.audio.encoders import FileEncoder
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.speech.request import ParsedRequest
from syrinx_stages.gateway.speech.speech import SpeechStream
from syrinx_stages.gateway.speech.trace import SpeechSpan
from syrinx_stages.gateway.voices.kept_voices import Cloned


class WholeSpeech(Struct, frozen=True):
    """A whole response."""

    file: list[bytes]
    """The pieces of the encoded file."""
    seconds: float
    """Duration of the audio."""
    stream: SpeechStream


@contextlib.asynccontextmanager
async def open_whole(
    service: GatewayService,
    parsed: ParsedRequest,
    voice: Cloned | None,
    accepted: float,
    span: SpeechSpan | None = None,
) -> AsyncIterator[WholeSpeech]:
    """Yields the speech of a request, which is counted on exit. Arguments and errors are those of `open_stream`."""
    async with service.open_stream(parsed.request, voice, accepted, parsed.audio.speed, span) as stream:
        pcm = await stream.collect()

        def encoded() -> tuple[list[bytes], float]:
            file = FileEncoder(parsed.audio)
            file.feed(pcm)
            return file.finish()

        yield WholeSpeech(*await asyncio.to_thread(encoded), stream)
