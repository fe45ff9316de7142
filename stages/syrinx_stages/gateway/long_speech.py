"""Speaks a text in parts, one request of the data plane after the other, as one stream with one client."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import TypeVar

import numpy as np
from msgspec import Struct, structs

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import EndReason, SpeechRequest, TaskType
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.kept_voices import Cloned
from syrinx_stages.gateway.listener import Listener
from syrinx_stages.gateway.parts import MAX_SIZE, WHOLE_SIZE, divide
from syrinx_stages.gateway.request import ParsedRequest
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.speech import CHECK_SECONDS, Chunk, SpeechStream
from syrinx_stages.gateway.trace import SpeechSpan
from syrinx_stages.normalization.normalize import code_of, normalize
from syrinx_stages.runtime.clock import monotonic

PATIENCE_SECONDS = 60.0
"""How long a part that is not admitted is tried again. Meanwhile the client plays what it has."""
_RETRIED = ("queue_full", "redis_full", "unavailable")
"""Codes of the errors after which a part is tried again."""
_SEED_STEP = 0xD1B54A32D192ED03
_SEEDS = 1 << 63
_Result = TypeVar("_Result")
_FADE_SAMPLES = FAMILY.sample_rate // 200
"""Samples (5 ms) in which a pause fades from the last sample before it: a step would click."""


class PartRequest(Struct, frozen=True):
    """The request of a part."""

    request: SpeechRequest
    pause: float
    """Seconds of silence between this part and the next one."""


def part_requests(parsed: ParsedRequest) -> Iterator[PartRequest]:
    """Yields the requests of a text's parts. Seeds follow from that of the text; the first part has it."""
    request, languages = parsed.request, parsed.languages
    if request.task_type is TaskType.VOICE_DESIGN:
        # Each request would design another voice.
        yield PartRequest(structs.replace(request, text=normalize(request.text, languages)), 0.0)
        return
    single = parsed.single_sentences
    # Text that streams in is one utterance up to `MAX_SIZE`, and a request that reads it that way has the same audio.
    whole_size = WHOLE_SIZE if not single else 0 if request.non_streaming_text else MAX_SIZE
    code = code_of(request.text[:WHOLE_SIZE], languages or (request.language,))
    for number, part in enumerate(divide(request.text, whole_size, single_sentences=single, language=code)):
        own = request
        if number:
            seed = (request.seed + number * _SEED_STEP) % _SEEDS
            name = f"{request.id}-p{number}"
            own = structs.replace(request, id=name, seed=seed, accepted_at=time.time(), returns_voice=False)
        yield PartRequest(structs.replace(own, text=normalize(part.text, languages)), part.pause)


def within_limit(part: PartRequest, limit: int | None, frames: int) -> PartRequest | None:
    """Returns a part as it may follow so many frames of its text; None if the client's limit is reached."""
    if limit is None:
        return part
    if frames >= limit:
        return None
    return structs.replace(part, request=structs.replace(part.request, max_frames=limit - frames))


class Seam:
    """The silence between parts."""

    def __init__(self) -> None:
        self._last = 0
        """The last sample."""
        self._silent = 0
        """Silent samples at the end."""

    def add(self, pcm: bytes) -> None:
        """Records audio of a part."""
        samples = np.frombuffer(pcm, "<i2").astype(np.int32)
        audible = np.flatnonzero(np.abs(samples) >= AUDIBLE_PEAK)
        self._silent = len(samples) - 1 - int(audible[-1]) if len(audible) else self._silent + len(samples)
        self._last = int(samples[-1])

    def pause(self, seconds: float) -> bytes:
        """Returns the PCM that lengthens the silence at the end of a part to so many seconds."""
        missing = round(seconds * FAMILY.sample_rate) - self._silent
        pause = np.zeros(max(missing, _FADE_SAMPLES), "<i2")
        pause[:_FADE_SAMPLES] = np.linspace(self._last, 0, _FADE_SAMPLES)
        self._silent, self._last = 0, 0
        return pause.tobytes()


class _OpenPart(Struct, frozen=True):
    """A part whose audio has begun."""

    request: PartRequest
    stream: SpeechStream
    streams: contextlib.AsyncExitStack
    """Closes the stream."""
    chunks: AsyncIterator[Chunk]
    frames_before: int = 0
    """Frames of the parts before."""


class LongSpeech:
    """The audio of a text in parts: what `SpeechStream` is for one request. A context manager.

    The next part is submitted when all audio of the current one has arrived, so that at most two are in flight and what
    waits is bounded by the lead limit of two streams.
    """

    def __init__(
        self, service: GatewayService, parsed: ParsedRequest, voice: Cloned | None, listener: Listener
    ) -> None:
        self.listener = listener
        self._service = service
        self._requests = part_requests(parsed)
        self._limit = parsed.max_frames
        self._voice = voice
        self._part: _OpenPart
        """The part that is being delivered."""
        self._next: asyncio.Task[_OpenPart | None] | None = None
        """Opens the part after it; None if the client's limit is reached."""

    async def __aenter__(self) -> "LongSpeech":
        """Submits the first part. Raises 503 if it is not admitted."""
        request = next(self._requests)
        streams = contextlib.AsyncExitStack()
        part = self._service.open_part(request.request, self._voice, self.listener, is_first=True)
        stream = await streams.enter_async_context(part)
        self._part = _OpenPart(request, stream, streams, stream.audio())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._next is not None:
                self._next.cancel()
                with contextlib.suppress(asyncio.CancelledError, ApiError):
                    if (part := await self._next) is not None:
                        await part.streams.aclose()
        finally:
            await self._part.streams.__aexit__(kind, error, traceback)

    async def audio(self) -> AsyncIterator[Chunk]:
        """Yields the audio as it is generated. Raises as `SpeechStream.audio`."""
        seam, reason = Seam(), EndReason.STOP
        while True:
            upcoming = next(self._requests, None)
            if upcoming is not None:
                self._next = asyncio.create_task(self._prepare(upcoming, self._part))
            async for chunk in self._part.chunks:
                yield chunk
                if upcoming is not None:
                    seam.add(chunk.pcm)
            reason = worse(reason, self._part.stream.reason)
            frames = self._part.frames_before + self._part.stream.generated_frames
            if upcoming is not None and within_limit(upcoming, self._limit, frames) is None:
                reason = EndReason.LENGTH
            if upcoming is None or reason is EndReason.LENGTH:
                self.listener.reason = reason
                return
            self.listener.reason = None
            yield Chunk(seam.pause(self._part.request.pause), self._part.stream.frames)
            await self._advance()

    def delivered(self, chunk: Chunk, *, sent: bool = True) -> None:
        """As `SpeechStream.delivered`."""
        self._part.stream.delivered(chunk, sent=sent)

    async def _prepare(self, upcoming: PartRequest, current: _OpenPart) -> _OpenPart | None:
        """Opens the next part when the current one has arrived, and waits for its audio. Raises `ApiError`.

        Returns None if the client's limit is reached.
        """
        frames = current.frames_before + await current.stream.wait_complete()
        part = within_limit(upcoming, self._limit, frames)
        if part is None:
            return None

        async def attempt(request: SpeechRequest) -> _OpenPart:
            async with contextlib.AsyncExitStack() as streams:
                opening = self._service.open_part(request, later_voice(self._voice), self.listener)
                stream = await streams.enter_async_context(opening)
                audio = stream.audio()
                first = await anext(audio)
                return _OpenPart(part, stream, streams.pop_all(), _chain(first, audio), frames)

        return await retry_admission(attempt, part.request, self.listener)

    async def _advance(self) -> None:
        """Goes on to the next part, and waits for it."""
        assert self._next is not None
        while not self._next.done():
            await asyncio.wait((self._next,), timeout=CHECK_SECONDS)
            self.listener.record_ongoing_stall()
        part, self._next = self._next.result(), None
        assert part is not None
        await self._part.streams.aclose()
        self._part = part


def worse(reason: EndReason, last: EndReason | None) -> EndReason:
    """Returns why speech ended whose parts so far ended for `reason`, and whose last part for `last`."""
    return reason if last is EndReason.STOP or last is None else last


async def retry_admission(
    attempt: Callable[[SpeechRequest], Awaitable[_Result]], request: SpeechRequest, listener: Listener
) -> _Result:
    """Returns the result of an attempt to serve a part of a text that has begun, again while it is not admitted.

    Raises `ApiError`.
    """
    end = monotonic() + PATIENCE_SECONDS
    for number in itertools.count():
        own = structs.replace(request, id=f"{request.id}-a{number}") if number else request
        try:
            return await attempt(own)
        except ApiError as error:
            wait = error.retry_after
            if error.code not in _RETRIED or wait is None or monotonic() + wait > end:
                listener.outcome = EndReason.ERROR
                raise
        listener.outcome = EndReason.CANCELLED
        await asyncio.sleep(wait)
    raise AssertionError


def later_voice(voice: Cloned | None) -> Cloned | None:
    """Returns what a part after the first one clones: the first one has prepared what is to be kept."""
    return None if voice is None else Cloned(voice.data)


async def _chain(first: Chunk, rest: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    yield first
    async for chunk in rest:
        yield chunk


@contextlib.asynccontextmanager
async def open_speech(
    service: GatewayService,
    parsed: ParsedRequest,
    voice: Cloned | None,
    accepted: float,
    span: SpeechSpan | None = None,
) -> AsyncIterator[LongSpeech]:
    """Submits the text of a request in parts, yields its speech, and releases what is left of it on exit.

    Arguments and errors are those of `GatewayService.open_stream`.
    """
    with service.listen(parsed.request, accepted, parsed.audio.speed, span) as listener:
        async with LongSpeech(service, parsed, voice, listener) as speech:
            yield speech
