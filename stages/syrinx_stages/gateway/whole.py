"""Generates whole responses, each part of a text again with another seed if the model ran away."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator

from msgspec import Struct, structs

from syrinx_stages.contract.messages import EndReason, SpeechRequest
from syrinx_stages.gateway.encoders import FileEncoder
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.kept_voices import Cloned
from syrinx_stages.gateway.listener import Listener
from syrinx_stages.gateway.long_speech import (
    PartRequest,
    Seam,
    later_voice,
    part_requests,
    retry_admission,
    within_limit,
    worse,
)
from syrinx_stages.gateway.request import ParsedRequest
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.speech import SpeechStream
from syrinx_stages.gateway.trace import SpeechSpan

MAX_RETRIES = 2
"""Attempts after the first one. Of 200 clips about one runs away, so nearly none needs two."""
_SEED_STEP = 0x9E3779B97F4A7C15
_SEEDS = 1 << 63


class WholeSpeech(Struct, frozen=True):
    """A whole response."""

    file: list[bytes]
    """The parts of the encoded file."""
    seconds: float
    """Duration of the audio."""
    reason: EndReason
    """Why the speech ended; `RUNAWAY` if no attempt came to its end: the audio is the good part of the last one."""
    seed: int
    """The seed of this audio."""
    retries: int
    listener: Listener


class _Attempt(Struct, frozen=True):
    stream: SpeechStream
    pcm: list[bytes]
    retries: int


@contextlib.asynccontextmanager
async def open_whole(
    service: GatewayService,
    parsed: ParsedRequest,
    voice: Cloned | None,
    accepted: float,
    span: SpeechSpan | None = None,
) -> AsyncIterator[WholeSpeech]:
    """Yields the speech of a request, which is counted on exit. Arguments and errors are those of `open_stream`.

    A retry that is not admitted or fails is not an error: the good part of the attempt before is yielded.
    """
    file, seam = FileEncoder(parsed.audio), Seam()
    reason, retries, frames, seed = EndReason.STOP, 0, 0, parsed.request.seed
    with service.listen(parsed.request, accepted, parsed.audio.speed, span) as listener:
        previous: PartRequest | None = None
        for upcoming in part_requests(parsed):
            part = within_limit(upcoming, parsed.max_frames, frames)
            if part is None:
                reason = EndReason.LENGTH
                break
            if previous is None:
                attempt = await _speak(service, part.request, voice, listener, is_first=True)
                seed = attempt.stream.request.seed
            else:
                pause = seam.pause(previous.pause)
                listener.delivered(pause, 0, sent=False)
                await asyncio.to_thread(file.feed, [pause])
                speak = functools.partial(_speak, service, voice=later_voice(voice), listener=listener)
                attempt = await retry_admission(speak, part.request, listener)
            await asyncio.to_thread(_feed, file, seam, attempt.pcm)
            previous, retries, reason = part, retries + attempt.retries, worse(reason, attempt.stream.reason)
            if reason is EndReason.LENGTH:
                break
            frames += attempt.stream.generated_frames
        listener.reason = reason
        parts, seconds = await asyncio.to_thread(file.finish)
        yield WholeSpeech(parts, seconds, reason, seed, retries, listener)


def _feed(file: FileEncoder, seam: Seam, pcm: list[bytes]) -> None:
    for each in pcm:
        seam.add(each)
    file.feed(pcm)


async def _speak(
    service: GatewayService,
    request: SpeechRequest,
    voice: Cloned | None,
    listener: Listener,
    *,
    is_first: bool = False,
) -> _Attempt:
    """Returns the best attempt to speak a part of a text. `is_first`: see `GatewayService.open_part`."""
    best: _Attempt | None = None
    for retry in range(1 if _is_greedy(request) else MAX_RETRIES + 1):
        try:
            opening = service.open_part(_attempt(request, retry), voice, listener, is_first=is_first and best is None)
            async with opening as stream:
                pcm = await stream.collect()
        except ApiError:
            if best is None:
                raise
            break
        if best is not None:
            best.stream.discard()
        best = _Attempt(stream, pcm, retry)
        if stream.reason is not EndReason.RUNAWAY:
            break
    assert best is not None
    return best


def _attempt(request: SpeechRequest, retry: int) -> SpeechRequest:
    """Returns the request of an attempt, with an id and a seed that follow from the first one's."""
    if not retry:
        return request
    seed = (request.seed + retry * _SEED_STEP) % _SEEDS
    return structs.replace(request, id=f"{request.id}-{retry}", accepted_at=time.time(), seed=seed)


def _is_greedy(request: SpeechRequest) -> bool:
    """Returns whether every seed gives the same speech."""
    return request.sampling.temperature == 0 and request.sampling.residual_temperature == 0
