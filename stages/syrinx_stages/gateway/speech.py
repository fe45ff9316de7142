"""The audio stream of one submitted request, and its metrics."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec import Struct

from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import Audio, End, EndReason, SpeechRequest
from syrinx_stages.contract.silence import LeadingSilenceTrimmer, first_audible
from syrinx_stages.gateway.client import count_audio, count_request
from syrinx_stages.gateway.errors import ApiError, bad_request, internal_error, unavailable
from syrinx_stages.gateway.fanout import Inbox
from syrinx_stages.gateway.outcomes import OutcomeTracker, StreamOutcome
from syrinx_stages.gateway.trace import SpeechSpan
from syrinx_stages.runtime.metrics import Metrics

CHECK_SECONDS = 1.0
"""After this long without audio the gateway checks whether any can still arrive."""


_DIGEST_BYTES = 8
"""Bytes of a frame's digest, by which audio that is generated again is compared with what the client has."""


class Resubmitted(Exception):
    """The request was submitted again: its audio is generated again from its first frame."""


class Chunk(Struct, frozen=True):
    """Audio for the client: PCM, not empty, and the request's frames up to its end."""

    pcm: bytes
    frames: int


class Playback:
    """Simulates a player that starts with the first delivered chunk and stalls whenever its buffer is empty.

    All times are seconds of one monotonic clock; `accepted` is when the request was accepted. `speed` is the speed at
    which the audio is played.
    """

    def __init__(self, accepted: float, speed: float = 1.0) -> None:
        self.accepted = accepted
        self._rate = speed * FAMILY.sample_rate
        """Samples played per second."""
        self.first_byte: float | None = None
        """Seconds from accepted to the first delivered byte."""
        self.ttfa: float | None = None
        """Seconds from accepted to the moment the player reaches the first audible sample, leading silence included."""
        self._plays_until: float | None = None

    def stall(self, now: float) -> float:
        """Returns the seconds that the buffer was empty up to `now` and that no earlier call has returned."""
        if self._plays_until is None:
            return 0.0
        stalled = max(0.0, now - self._plays_until)
        self._plays_until += stalled
        return stalled

    def deliver(self, now: float, pcm: bytes, offered: float | None = None) -> float:
        """Adds 16-bit mono PCM that was sent at `now`. Returns the same as `stall`.

        offered: when the gateway began to send it. A player that stalls from then until `now` stalls because the client
        did not read, which is not returned. None: at `now`.
        """
        stalled = self.stall(now if offered is None else offered)
        if self.first_byte is None:
            self.first_byte = now - self.accepted
        starts = now if self._plays_until is None else max(now, self._plays_until)
        if self.ttfa is None and (index := first_audible(pcm)) is not None:
            self.ttfa = starts + index / self._rate - self.accepted
        self._plays_until = starts + len(pcm) / 2 / self._rate
        return stalled


class SpeechStream:
    """Yields a request's audio, tracks what the client has received, and records metrics.

    `report_playback(request_id, frames)` is called whenever the client's playback position is known to have advanced.
    `on_end()` is called once, when the stages have ended the stream. `check()` is called after `CHECK_SECONDS` without
    audio; it raises `ApiError` if no more audio can arrive, and `Resubmitted`. `storage_full()` returns why no stage
    can write audio, or None.
    `refusal(message)` returns the error of a request that was refused after it had been queued.
    """

    def __init__(
        self,
        request: SpeechRequest,
        inbox: Inbox,
        accepted: float,
        speed: float,
        stall_seconds: float,
        metrics: Metrics,
        tracker: OutcomeTracker,
        report_playback: Callable[[str, int], None],
        on_end: Callable[[], None],
        check: Callable[[], Awaitable[None]],
        storage_full: Callable[[], str | None],
        refusal: Callable[[str], ApiError],
        span: SpeechSpan | None = None,
    ) -> None:
        self.request = request
        self.frames = 0
        """Frames delivered to the client so far, trimmed silence included."""
        self.reason: EndReason | None = None
        """Why the stages ended the stream; None until they do."""
        self.generated_frames = 0
        """Frames that the stages have generated; known with `reason`."""
        self.outcome: EndReason = EndReason.CANCELLED
        """For the metrics: cancelled until delivered or failed."""
        self._inbox = inbox
        self._stall_seconds = stall_seconds
        self._metrics = metrics
        self._tracker = tracker
        self._report_playback = report_playback
        self._on_end = on_end
        self._check = check
        self._storage_full = storage_full
        self._refusal = refusal
        self._span = span
        self._trimmer = LeadingSilenceTrimmer()
        self._digests = bytearray()
        """Of the frames that were passed to the trimmer."""
        self._collected: list[bytes] = []
        self._playback = Playback(accepted, speed)
        self._withheld = bytearray()
        """PCM of which the client has nothing yet: an encoder returns some input late."""
        self._offered: float | None = None
        """When the gateway began to send what the client has not accepted yet, in monotonic seconds; None if nothing
        is being sent."""
        self._stalled = False
        """Playback has stalled at least once."""
        self._labels: tuple[str, str, str] | None = None
        """Task type, talker and codec of the first audio: a pause during a takeover counts against that talker and
        codec."""

    @property
    def started(self) -> bool:
        """Whether audio has arrived."""
        return self._labels is not None

    @property
    def sent(self) -> bool:
        """Whether the client may have received audio. A whole response is sent when it is complete."""
        return self.request.live and self.frames > 0

    async def collect(self) -> list[bytes]:
        """Returns the PCM of a whole response, chunk by chunk. Raises as `audio`."""
        async for chunk in self.audio():
            self._collected.append(chunk.pcm)
            self.delivered(chunk)
            # Chunks that have arrived together would otherwise hold the event loop.
            await asyncio.sleep(0)
        return self._collected

    async def audio(self) -> AsyncIterator[Chunk]:
        """Yields the audio as it is generated, without its leading silence.

        After a resubmission a client that has audio gets what follows it, if it is generated again identically.

        Raises `ApiError`: 400, 500 or 503 if a stage refused the request or failed, 503 if it waited too long for a
        talker, if nothing came for the stall timeout or nothing can arrive.
        """
        while True:
            try:
                async for chunk in self._audio():
                    yield chunk
                return
            except Resubmitted:
                if not self.sent:
                    self.frames, self._labels = 0, None
                    self._trimmer = LeadingSilenceTrimmer()
                    self._digests.clear()
                    self._collected.clear()

    async def _audio(self) -> AsyncIterator[Chunk]:
        """Yields the audio of one submission."""
        frames = 0
        while True:
            event = await self._next()
            if isinstance(event.entry, Audio):
                if self._labels is None:
                    replicas = event.entry.talker or "unknown", event.entry.codec or "unknown"
                    self._labels = (self.request.task_type, *replicas)
                new = self._unseen(frames, self._beyond(frames, event.entry.pcm, event.position.frames))
                frames = max(frames, event.position.frames)
                if pcm := self._trimmer.feed(new):
                    yield Chunk(pcm, frames)
                else:
                    # Trimmed frames count as played: a talker at its lead limit would wait for them forever.
                    self._report_playback(self.request.id, frames)
            elif isinstance(event.entry, End):
                self._end(event.entry, frames, event.position.frames)
                if pcm := self._trimmer.end():
                    yield Chunk(pcm, frames)
                return

    async def _next(self) -> StreamEntry:
        deadline = time.monotonic() + self._stall_seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(CHECK_SECONDS, left)):
                    return await self._inbox.get()
            except TimeoutError:
                self._record_ongoing_stall()
            try:
                await self._check()
            except ApiError:
                self.outcome = EndReason.ERROR
                raise
        self.outcome = EndReason.ERROR
        message = f"no stage has made progress for {self._stall_seconds:.0f} seconds"
        if (full := self._storage_full()) is not None:
            raise unavailable(f"{message}: {full}", 5, "redis_full")
        raise unavailable(message, 5, "stalled")

    def _beyond(self, frames: int, pcm: bytes, last: int) -> bytes:
        """Returns the PCM of an entry after `frames`; `last` is its last frame. Raises 500 if frames are missing.

        Entries overlap if Redis has lost the end of a stream and another codec continued it with other chunks.
        """
        first = last - len(pcm) // FAMILY.frame_bytes
        self._require(frames, first)
        return pcm[(frames - first) * FAMILY.frame_bytes :]

    def _unseen(self, first: int, pcm: bytes) -> bytes:
        """Returns the PCM of frames that were not received before; `first` is the number of frames before it.

        Raises 503 if frames that were received before a resubmission differ now.
        """
        frames = (pcm[start : start + FAMILY.frame_bytes] for start in range(0, len(pcm), FAMILY.frame_bytes))
        digests = b"".join(hashlib.blake2b(frame, digest_size=_DIGEST_BYTES).digest() for frame in frames)
        known = self._digests[_DIGEST_BYTES * first :][: len(digests)]
        if not digests.startswith(known):
            raise self._lost()
        self._digests += digests[len(known) :]
        return pcm[len(known) // _DIGEST_BYTES * FAMILY.frame_bytes :]

    def _lost(self) -> ApiError:
        self.outcome = EndReason.ERROR
        message = "Redis has lost this request, and its audio differs when it is generated again; send it again"
        return unavailable(message, 1, "request_lost")

    def _require(self, frames: int, expected: int) -> None:
        """Raises 500 unless all frames up to `expected` are among the first `frames`."""
        if frames < expected:
            self.outcome = EndReason.ERROR
            raise internal_error(f"the audio of frames {frames + 1} to {expected} is missing")

    def _end(self, end: End, frames: int, expected: int) -> None:
        self._on_end()
        if end.reason is EndReason.ERROR:
            self.outcome = EndReason.ERROR
            if end.param:
                # The client's fault is not an error of the service, whose rate alerts.
                self.outcome = EndReason.REFUSED
                self._tracker.settle(StreamOutcome.VOID)
                raise bad_request(end.param, end.message.removeprefix(f"{end.param}: "))
            if end.retry_after:
                raise unavailable(end.message, end.retry_after, "stage_failed")
            raise internal_error(end.message or "a stage failed")
        if end.reason is EndReason.REFUSED:
            self.outcome = EndReason.REFUSED
            raise self._refusal(end.message)
        if end.reason is EndReason.CANCELLED:
            self._tracker.settle(StreamOutcome.FAILED)
            raise unavailable("the request was cancelled by the server", 1, "cancelled")
        self._require(frames, expected)
        if frames < len(self._digests) // _DIGEST_BYTES:
            raise self._lost()
        if not frames:
            self.outcome = EndReason.ERROR
            raise internal_error("the model ended this text before its first frame; try another seed")
        self.reason, self.generated_frames = end.reason, frames
        self._tracker.generated(end.reason)

    def offer(self) -> None:
        """Records that the gateway begins to send data to the client, which may not accept it at once."""
        self._offered = time.monotonic()

    def delivered(self, chunk: Chunk, *, sent: bool = True) -> None:
        """Records that a chunk was passed to the transport, or added to a whole response.

        sent: whether any data was. What an encoder withholds is played with the next data.
        """
        self.frames = chunk.frames
        self._report_playback(self.request.id, chunk.frames)
        if self.request.live:
            self._withheld += chunk.pcm
            if sent:
                self.flushed()

    def flushed(self) -> None:
        """Records that the data of all chunks was passed to the transport."""
        offered, self._offered = self._offered, None
        if self._withheld:
            pcm = bytes(self._withheld)
            self._withheld.clear()
            self._play(pcm, offered)

    def _play(self, pcm: bytes, offered: float | None) -> None:
        playback, labels = self._playback, self._served_by()
        first, before_ttfa = playback.first_byte is None, playback.ttfa is None
        stalled = playback.deliver(time.monotonic(), pcm, offered)
        if first:
            self._metrics[m.LIVE_STREAMS].inc()
            assert playback.first_byte is not None
            self._metrics[m.FIRST_BYTE].labels(*labels).observe(playback.first_byte)
            if self._span is not None:
                self._span.set_first_byte(self.request, playback.first_byte)
        if before_ttfa and playback.ttfa is not None:
            exemplar = None if self._span is None else self._span.exemplar
            self._metrics[m.TTFA].labels(*labels).observe(playback.ttfa, exemplar)
            self._tracker.heard(playback.ttfa)
        if first or stalled:
            self._record_stall(stalled)

    def _record_ongoing_stall(self) -> None:
        """Records the stall of a player whose buffer is empty, even if no audio follows."""
        if stalled := self._playback.stall(time.monotonic() if self._offered is None else self._offered):
            self._record_stall(stalled)

    def _record_stall(self, seconds: float) -> None:
        """Records a stall while the settings that caused it are in force; 0 seconds creates the series at 0."""
        labels = self._served_by()
        self._metrics[m.UNDERRUNS].labels(*labels).inc(seconds > 0 and not self._stalled)
        self._metrics[m.UNDERRUN_SECONDS].labels(*labels).inc(seconds)
        if seconds > 0:
            self._stalled = True
            self._tracker.settle(StreamOutcome.INTERRUPTED)

    def complete(self) -> None:
        """Records that the client has received everything."""
        assert self.reason is not None
        self.outcome = self.reason

    def discard(self) -> None:
        """Records that the client receives nothing of this audio, because another attempt replaces it."""
        self.complete()
        self.frames = 0

    def record_outcome(self) -> None:
        """Counts the request. Call it once, when the request is over."""
        if self._span is not None:
            self._span.set_outcome(self.outcome, self.frames, self._labels)
        count_request(self._metrics, self.request.task_type, self.outcome)
        if self._playback.first_byte is not None:
            self._metrics[m.LIVE_STREAMS].dec()
        if self.reason is None:
            self._record_ongoing_stall()
        self._tracker.ended(self.outcome)
        if not self.frames:
            return
        seconds = self.frames * FAMILY.frame_seconds - self._trimmer.withheld / FAMILY.sample_rate
        self._metrics[m.AUDIO_SECONDS].labels(*self._served_by()).inc(seconds)
        count_audio(self._metrics, seconds)
        if self.outcome in (EndReason.STOP, EndReason.LENGTH, EndReason.RUNAWAY):
            elapsed = time.monotonic() - self._playback.accepted
            self._metrics[m.REQUEST_SECONDS].labels(*self._served_by()).observe(elapsed)

    def _served_by(self) -> tuple[str, str, str]:
        assert self._labels is not None
        return self._labels
