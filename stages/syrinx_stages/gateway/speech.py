"""One request between submit and release, from its client's side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec import Struct

from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import Audio, End, EndReason, SpeechRequest
from syrinx_stages.contract.silence import LeadingSilenceTrimmer
from syrinx_stages.gateway.errors import ApiError, bad, failed, unavailable
from syrinx_stages.gateway.fanout import Inbox
from syrinx_stages.gateway.playback import Playback
from syrinx_stages.runtime.metrics import Metrics

QUIET_SECONDS = 2.0
"""After this long without audio the gateway asks whether any can be expected."""


class Chunk(Struct, frozen=True):
    """Audio for the client: PCM, not empty, and the request's frames so far with it."""

    pcm: bytes
    frames: int


class Speech:
    """Follows the audio, notes what the client was handed, and measures it.

    `tell` is called with the frames handed so far; `arrived` once, when nothing more will come from the stages;
    `unrecoverable` when it is quiet, with whether audio has come, to learn whether any can come at all.
    """

    def __init__(
        self,
        request: SpeechRequest,
        inbox: Inbox,
        accepted: float,
        stall_seconds: float,
        metrics: Metrics,
        report_playback: Callable[[str, int], None],
        arrived: Callable[[], None],
        unrecoverable: Callable[[str, bool], Awaitable[ApiError | None]],
    ) -> None:
        self.request = request
        self.frames = 0
        """Handed to the client so far, with those that were cut."""
        self.reason: EndReason | None = None
        """How the stages ended it; None while they have not."""
        self.outcome: EndReason = EndReason.CANCELLED
        """For the metrics: cancelled until delivered or failed."""
        self._inbox = inbox
        self._stall_seconds = stall_seconds
        self._metrics = metrics
        self._report_playback = report_playback
        self._arrived = arrived
        self._unrecoverable = unrecoverable
        self._leading = LeadingSilenceTrimmer()
        self._playback = Playback(accepted)
        self._waited = False
        """Playback has waited at least once."""
        self._served: tuple[str, str, str] | None = None

    async def audio(self) -> AsyncIterator[Chunk]:
        """The audio as it is made, without its leading silence; ends when all has arrived.

        Raises `ApiError`: 400 or 500 if a stage refused or failed, 503 if nothing arrived for the stall deadline or
        nothing can.
        """
        seen = 0
        while True:
            event = await self._next()
            if isinstance(event.entry, Audio):
                if self._served is None:
                    served = (self.request.task_type, event.entry.talker or "unknown", event.entry.codec or "unknown")
                    self._served = served
                seen = event.position.frames
                if pcm := self._leading.feed(event.entry.pcm):
                    yield Chunk(pcm, seen)
                else:
                    # As good as played: a talker that may not get ahead of its listener would wait for ever.
                    self._report_playback(self.request.id, seen)
            elif isinstance(event.entry, End):
                self._end(event.entry, seen)
                if pcm := self._leading.end():
                    yield Chunk(pcm, seen)
                return

    async def _next(self) -> StreamEntry:
        deadline = time.monotonic() + self._stall_seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(QUIET_SECONDS, left)):
                    return await self._inbox.get()
            except TimeoutError:
                self._still_waits()
                begun = self._served is not None
                if (unrecoverable := await self._unrecoverable(self.request.id, begun)) is not None:
                    self.outcome = EndReason.ERROR
                    raise unrecoverable from None
        self.outcome = EndReason.ERROR
        message = f"no stage has made anything of this request for {self._stall_seconds:.0f} seconds"
        raise unavailable(message, 5, "stalled")

    def _end(self, end: End, frames: int) -> None:
        self._arrived()
        if end.reason is EndReason.ERROR:
            self.outcome = EndReason.ERROR
            if end.param:
                prefix = f"{end.param}: "
                raise bad(end.param, end.message.removeprefix(prefix))
            raise failed(end.message or "a stage failed")
        if end.reason is EndReason.CANCELLED:
            raise unavailable("the request was cancelled by the server", 1, "cancelled")
        if not frames:
            self.outcome = EndReason.ERROR
            raise failed("the model ended this text before its first frame; try another seed")
        self.reason = end.reason

    def handed(self, chunk: Chunk) -> None:
        """The chunk's bytes are the transport's now. (Of a whole response: they are kept for it.)"""
        self.frames = chunk.frames
        self._report_playback(self.request.id, chunk.frames)
        if not self.request.live:
            return
        before = self._playback.first_byte, self._playback.ttfa
        waited = self._playback.deliver(time.monotonic(), chunk.pcm)
        if before[0] is None:
            self._metrics[m.LIVE_STREAMS].inc()
            self._metrics[m.FIRST_BYTE].labels(*self._labels).observe(self._playback.first_byte)
        if before[1] is None and self._playback.ttfa is not None:
            self._metrics[m.TTFA].labels(*self._labels).observe(self._playback.ttfa)
        if before[0] is None or waited:
            self._count_wait(waited)

    def _still_waits(self) -> None:
        """Nothing has come: a listener whose playback is dry waits, and counts even if nothing ever comes."""
        if waited := self._playback.wait(time.monotonic()):
            self._count_wait(waited)

    def _count_wait(self, seconds: float) -> None:
        """At once, while the settings that make it wait are in force; nothing too, so that a series begins at 0."""
        self._metrics[m.UNDERRUNS].labels(*self._labels).inc(seconds > 0 and not self._waited)
        self._metrics[m.UNDERRUN_SECONDS].labels(*self._labels).inc(seconds)
        self._waited = self._waited or seconds > 0

    def complete(self) -> None:
        """The client has everything."""
        assert self.reason is not None
        self.outcome = self.reason

    def account(self) -> None:
        """Counts the request; called once, when it is over."""
        self._metrics[m.REQUESTS].labels(self.request.task_type, self.outcome).inc()
        if self._playback.first_byte is not None:
            self._metrics[m.LIVE_STREAMS].dec()
        if self.reason is None:
            self._still_waits()
        if not self.frames:
            return
        heard = self.frames * FAMILY.frame_seconds - self._leading.withheld / FAMILY.sample_rate
        self._metrics[m.AUDIO_SECONDS].labels(*self._labels).inc(heard)
        if self.outcome in (EndReason.STOP, EndReason.LENGTH):
            seconds = time.monotonic() - self._playback.accepted
            self._metrics[m.REQUEST_SECONDS].labels(*self._labels).observe(seconds)

    @property
    def _labels(self) -> tuple[str, str, str]:
        """The replicas that began it answer for all of it: a takeover's pause is theirs."""
        assert self._served is not None
        return self._served
