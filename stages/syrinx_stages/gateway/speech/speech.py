"""The audio stream of one submitted request."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator

from msgspec import Struct

from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.frames import unpack_checksums
from syrinx_stages.contract.messages import Audio, End, EndReason, Segment
from syrinx_stages.contract.silence import LeadingSilenceTrimmer
from syrinx_stages.gateway.audio.encoders import AudioOptions, Encoder, encode
from syrinx_stages.gateway.audio.seam import Seam
from syrinx_stages.gateway.errors import ApiError, bad_request, internal_error, unavailable
from syrinx_stages.gateway.speech.listener import Listener
from syrinx_stages.gateway.speech.outcomes import StreamOutcome
from syrinx_stages.gateway.speech.submission import Submission
from syrinx_stages.runtime.clock import monotonic

TEXT_LEAD_FRAMES = 13
"""Frames that the text so far allows beyond those that the client has got: with fewer, a stall is for want of text."""
SEGMENT_SAMPLES = 1 << 32
"""Samples of an utterance that a client may continue are numbered as those of the stream, plus so many for each segment
before: a number says in which segment, or in the pause after which one, the client is."""
CHECK_SECONDS = 1.0
"""After this long without audio the gateway checks whether any can still arrive."""


class Chunk(Struct, frozen=True):
    """Audio for the client: PCM, not empty, and the request's frames up to its end."""

    pcm: bytes
    frames: int
    segment: Segment | None
    """The segment of the text that it is of."""

    @property
    def seconds(self) -> float:
        """Duration of the audio."""
        return len(self.pcm) / FAMILY.frame_bytes * FAMILY.frame_seconds


class SpeechStream:
    """Yields a request's audio, and tracks what its client has received."""

    def __init__(self, submission: Submission, listener: Listener, stall_seconds: float, first_sample: int = 0) -> None:
        """first_sample: number of the first sample to yield, if the client has those before: see `SEGMENT_SAMPLES`."""
        self._submission = submission
        number, self._sample = divmod(first_sample, SEGMENT_SAMPLES)
        self._first_frame, offset = divmod(self._sample, FAMILY.samples_per_frame)
        self._skipped_bytes = 2 * offset
        """Of the first frame, which the client has."""
        self.listener = listener
        listener.frames = self._first_frame
        self.end: End
        """How the stages ended the stream; set with the end of its audio."""
        self.segment = Segment(number, 0, 0) if first_sample else None
        """The segment of the text whose audio arrives; None before the first one. Its place is known once it begins."""
        self._seam = Seam()
        self._queue = submission.audio
        self._stall_seconds = stall_seconds
        self._trimmer = LeadingSilenceTrimmer(trimmed=first_sample > 0)
        self._first_sample = first_sample
        self._hashes = array("q", bytes(8 * self._first_frame))
        """Of the frames that were passed to the trimmer: what is generated again is compared with them."""
        self._collected: list[bytes] = []

    @property
    def offset(self) -> int:
        """Number of the first sample that is yielded; known with the first chunk."""
        return self._first_sample or self._trimmer.withheld

    @property
    def segment_offset(self) -> int:
        """Number of the first sample of the segment whose first chunk was yielded."""
        assert self.segment is not None
        first = self.segment.frames * FAMILY.samples_per_frame + self._trimmer.withheld
        return self.segment.number * SEGMENT_SAMPLES + first

    async def encoded(self, options: AudioOptions) -> AsyncIterator[tuple[bytes, Chunk | None]]:
        """Yields what can be sent of the audio, each with the chunk that completes it; None for the encoder's rest.

        Counts as delivered when the caller asks for more. Encodes outside the event loop unless that would take longer.
        Raises as `audio`.
        """
        encoder = Encoder(options)
        async for chunk in self.audio():
            data = encoder.feed(chunk.pcm) if options.cheap else await asyncio.to_thread(encoder.feed, chunk.pcm)
            if data:
                self.listener.offer()
                yield data, chunk
            self.delivered(chunk, sent=bool(data))
        if rest := encoder.finish() if options.cheap else await asyncio.to_thread(encoder.finish):
            self.listener.offer()
            yield rest, None
            self.listener.flushed()

    async def file(self, options: AudioOptions) -> tuple[list[bytes], float]:
        """Returns the parts of a whole response and its duration in seconds. Raises as `audio`."""
        return await asyncio.to_thread(encode, await self.collect(), options)

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
        frames, checksum = self._first_frame, None
        while True:
            if (event := await self._next()) is None:
                frames, checksum = self._restart(), None
            elif isinstance(event.entry, Audio):
                if (segment := event.entry.segment) is not None and self._is_next(segment):
                    for pcm in self._begin(segment):
                        yield Chunk(pcm, frames, self.segment)
                    self.segment, frames = segment, min(frames, segment.frames)
                self._submission.started = True
                if self.listener.served_by is None:
                    replicas = event.entry.talker or "unknown", event.entry.codec or "unknown"
                    self.listener.served_by = replicas
                pcm = self._beyond(frames, event.entry.pcm, event.position.frames)
                if 0 < frames == self._first_frame and len(pcm) < len(event.entry.pcm):
                    self._seam.add(event.entry.pcm[: len(event.entry.pcm) - len(pcm)])
                new = self._unseen(frames, pcm)
                checksum = self._checked(checksum, frames, event.entry, event.position.frames)
                frames = max(frames, event.position.frames)
                if pcm := self._skip(self._trimmer.feed(new)):
                    yield Chunk(pcm, frames, self.segment)
                else:
                    # Trimmed frames count as played: a talker at its lead limit would wait for them forever.
                    self._submission.report(frames, self.segment)
            elif isinstance(event.entry, End):
                self._end(event.entry, frames, event.position.frames, checksum)
                if pcm := self._trimmer.end():
                    yield Chunk(pcm, frames, self.segment)
                return

    def _restart(self) -> int:
        """Prepares for the audio of a request that was submitted again. Returns how many frames were before it."""
        if self.listener.may_have_audio:
            return max(self._first_frame, 0 if self.segment is None else self.segment.frames)
        self.listener.discard()
        self._trimmer, self.segment = LeadingSilenceTrimmer(), None
        del self._hashes[:]
        self._collected.clear()
        return 0

    def _is_next(self, segment: Segment) -> bool:
        """Returns whether a segment has not begun before."""
        if self.segment is not None and segment.number == self.segment.number:
            self.segment = segment
        return self.segment is None or segment.number > self.segment.number

    def _begin(self, segment: Segment) -> Iterator[bytes]:
        """Yields what the client lacks before a segment: the rest of the one before, and a pause."""
        before = self.segment
        if before is not None:
            if rest := self._trimmer.end():
                self._seam.add(rest)
                yield rest
            pause = self._seam.pause(self._submission.pause_after(before))
            heard = max(0, self._sample - segment.frames * FAMILY.samples_per_frame)
            if heard:
                # The client has part of the pause, and nothing of the segment.
                self._skipped_bytes = 0
                del self._hashes[segment.frames :]
            if 2 * heard < len(pause):
                yield pause[2 * heard :]
            self._trimmer = LeadingSilenceTrimmer()

    async def _next(self) -> StreamEntry | None:
        """Returns the next entry; None if the request was submitted again instead."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        began = monotonic()
        while (left := began + self._stall_seconds - monotonic()) > 0:
            if self._waits_for_text():
                began = monotonic()
            try:
                async with asyncio.timeout(min(CHECK_SECONDS, left)):
                    return await self._queue.get()
            except TimeoutError:
                self.listener.record_ongoing_stall()
            try:
                if await self._submission.check(monotonic() - began, self.segment):
                    return None
            except ApiError:
                self.listener.outcome = EndReason.ERROR
                raise
        self.listener.outcome = EndReason.ERROR
        message = f"no stage has made progress for {self._stall_seconds:.0f} seconds"
        if (full := self._submission.storage_full()) is not None:
            raise unavailable(f"{message}: {full}", 5, "redis_full")
        raise unavailable(message, 5, "stalled")

    def _skip(self, pcm: bytes) -> bytes:
        """Returns PCM without what the client has of its first frame."""
        if pcm:
            self._seam.add(pcm)
        count = min(self._skipped_bytes, len(pcm))
        self._skipped_bytes -= count
        return pcm[count:]

    def _waits_for_text(self) -> bool:
        """Returns whether the client has all frames that the text so far allows."""
        allowed = self._submission.text_frames(self.segment)
        return allowed is not None and allowed <= self.listener.frames

    def _beyond(self, frames: int, pcm: bytes, last: int) -> bytes:
        """Returns the PCM of an entry after `frames`; `last` is its last frame. Raises 500 if frames are missing.

        Entries overlap if Redis has lost the end of a stream and another codec continued it with other chunks.
        """
        first = last - len(pcm) // FAMILY.frame_bytes
        if self._first_frame and frames == self._first_frame < first:
            self.listener.outcome = EndReason.ERROR
            message = f"the audio after sample {self._first_sample} is no longer kept; send the text again"
            raise ApiError(410, message, param="audio_offset", code="audio_expired")
        self._require(frames, first)
        return pcm[(frames - first) * FAMILY.frame_bytes :]

    def _checked(self, checksum: int | None, frames: int, audio: Audio, last: int) -> int | None:
        """Returns the checksum of the codes of all audio so far, after an entry whose last frame is `last`.

        `checksum` is that of the first `frames` frames; None if it is unknown. Raises 503 if the entry was decoded
        after other frames: Redis has lost the codes, and they were generated again differently.
        """
        checksums = unpack_checksums(audio.checksums)
        if not checksums or last < frames:
            return checksum
        if checksum not in (None, checksums[frames - last - 1]):
            raise self._lost()
        return checksums[-1]

    def _unseen(self, first: int, pcm: bytes) -> bytes:
        """Returns the PCM of frames that were not received before; `first` is the number of frames before it.

        Raises 503 if frames that were received before a resubmission differ now.
        """
        size = FAMILY.frame_bytes
        hashes = array("q", (hash(pcm[start : start + size]) for start in range(0, len(pcm), size)))
        known = self._hashes[first : first + len(hashes)]
        if hashes[: len(known)] != known:
            raise self._lost()
        self._hashes += hashes[len(known) :]
        return pcm[len(known) * size :]

    def _lost(self) -> ApiError:
        self.listener.outcome = EndReason.ERROR
        message = "Redis has lost this request, and its audio differs when it is generated again; send it again"
        return unavailable(message, 1, "request_lost")

    def _require(self, frames: int, expected: int) -> None:
        """Raises 500 unless all frames up to `expected` are among the first `frames`."""
        if frames < expected:
            self.listener.outcome = EndReason.ERROR
            raise internal_error(f"the audio of frames {frames + 1} to {expected} is missing")

    def _end(self, end: End, frames: int, expected: int, checksum: int | None) -> None:
        self._submission.generated()
        if end.reason is EndReason.ERROR:
            self.listener.outcome = EndReason.ERROR
            if end.param:
                # The client's fault is not an error of the service, whose rate alerts.
                self.listener.outcome = EndReason.REFUSED
                self.listener.tracker.settle(StreamOutcome.VOID)
                raise bad_request(end.param, end.message.removeprefix(f"{end.param}: "))
            if end.retry_after:
                raise unavailable(end.message, end.retry_after, "stage_failed")
            raise internal_error(end.message or "a stage failed")
        if end.reason is EndReason.REFUSED:
            self.listener.outcome = EndReason.REFUSED
            raise self._submission.refusal(end.message)
        if end.reason is EndReason.CANCELLED:
            self.listener.tracker.settle(StreamOutcome.FAILED)
            because = f": {end.message}" if end.message else ""
            raise unavailable(f"the request was cancelled by the server{because}", 1, "cancelled")
        self._require(frames, expected)
        if frames < len(self._hashes) or checksum not in (None, end.checksum):
            raise self._lost()
        if not frames:
            self.listener.outcome = EndReason.ERROR
            raise internal_error("the model ended this text before its first frame; try another seed")
        self.end = end
        self.listener.reason = end.reason
        self.listener.tracker.generated(end.reason)

    def delivered(self, chunk: Chunk, *, sent: bool = True) -> None:
        """Records that a chunk was passed to the transport, or added to a whole response. `sent`: see `Listener`."""
        self._submission.report(chunk.frames, chunk.segment)
        self.listener.delivered(chunk.pcm, chunk.frames, sent=sent)
        if (allowed := self._submission.text_frames(chunk.segment)) is not None:
            self.listener.lacks_text = allowed - chunk.frames < TEXT_LEAD_FRAMES
