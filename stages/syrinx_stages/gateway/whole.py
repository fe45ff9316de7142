"""Generates whole responses, again with another seed if the model ran away."""

import contextlib
import time
from collections.abc import AsyncIterator

from msgspec import Struct, structs

from syrinx_stages.contract.messages import EndReason, SpeechRequest
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.kept_voices import Cloned
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.speech import SpeechStream
from syrinx_stages.gateway.trace import SpeechSpan

MAX_RETRIES = 2
"""Attempts after the first one. Of 200 clips about one runs away, so nearly none needs two."""
_SEED_STEP = 0x9E3779B97F4A7C15
_SEEDS = 1 << 63


class WholeSpeech(Struct, frozen=True):
    """The audio of a whole response."""

    stream: SpeechStream
    """Of the last attempt."""
    pcm: list[bytes]
    retries: int

    @property
    def reason(self) -> EndReason:
        """Why the speech ended; `RUNAWAY` if no attempt came to its end: the audio is the good part of the last one."""
        assert self.stream.reason is not None
        return self.stream.reason

    @property
    def seed(self) -> int:
        """The seed of this audio."""
        return self.stream.request.seed


@contextlib.asynccontextmanager
async def open_whole(
    service: GatewayService,
    request: SpeechRequest,
    voice: Cloned | None,
    accepted: float,
    speed: float = 1.0,
    span: SpeechSpan | None = None,
) -> AsyncIterator[WholeSpeech]:
    """Yields the speech of a request; its stream is open meanwhile. Arguments and errors are those of `open_stream`.

    A retry that is not admitted or fails is not an error: the good part of the attempt before is yielded.
    """
    async with contextlib.AsyncExitStack() as streams:
        best: WholeSpeech | None = None
        for retry in range(1 if _is_greedy(request) else MAX_RETRIES + 1):
            attempt = service.open_stream(_attempt(request, retry), voice, accepted, speed, span)
            try:
                stream = await streams.enter_async_context(attempt)
                pcm = await stream.collect()
            except ApiError:
                if best is None:
                    raise
                break
            if best is not None:
                best.stream.discard()
            best = WholeSpeech(stream, pcm, retry)
            if best.reason is not EndReason.RUNAWAY:
                break
        assert best is not None
        yield best


def _attempt(request: SpeechRequest, retry: int) -> SpeechRequest:
    """Returns the request of an attempt, with an id and a seed that follow from the first one's."""
    if not retry:
        return request
    seed = (request.seed + retry * _SEED_STEP) % _SEEDS
    return structs.replace(request, id=f"{request.id}-{retry}", accepted_at=time.time(), seed=seed)


def _is_greedy(request: SpeechRequest) -> bool:
    """Returns whether every seed gives the same speech."""
    return request.sampling.temperature == 0 and request.sampling.residual_temperature == 0
