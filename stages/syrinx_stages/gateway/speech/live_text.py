"""The text of an utterance that is spoken while it arrives: its tokens, and its way to the talker."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence

from syrinx_stages.connector.base import Behind, ConnectorError, Gone, StreamEntry
from syrinx_stages.contract import logs
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Segment, SpeechRequest, Text, TextEnd
from syrinx_stages.model.streamed_text import StreamedSegments, StreamedText
from syrinx_stages.model.tokenizer import Tokenizer
from syrinx_stages.normalization.durations import spoken_characters
from syrinx_stages.normalization.plain import has_words
from syrinx_stages.normalization.reading import Reading, as_spoken
from syrinx_stages.normalization.segments import Divided
from syrinx_stages.normalization.streamed import StreamedNormalizer
from syrinx_stages.runtime.clock import monotonic

log = logging.getLogger(__name__)

FIRST_TOKENS = 1
"""Tokens with which a request is submitted: the prompt has the first one."""
RETRY_SECONDS = 0.5
"""Pause before text is written again after the connector failed."""

Append = Callable[[str, Position, Sequence[StreamEntry]], Awaitable[Gone | Behind | None]]
"""`RedisConnector.append_text`."""


class LiveText:
    """The text of one utterance."""

    def __init__(self, request: SpeechRequest, reading: Reading, tokenizer: Tokenizer) -> None:
        """request: how the text is read; its own text has no effect."""
        self.request = request
        self.text = ""
        """As the client has written it."""
        self._allowed_at: float | None = None
        """When it first allowed a frame, in monotonic seconds; None before."""
        self._reading = reading
        self._first = StreamedText(tokenizer, request.languages)
        self._segments = StreamedSegments(self._first, reading.divider(request), request.lexicon)
        # The model reads the first segment with the reference audio, so nothing is spoken before its end.
        self._needs_end = request.has_reference and not request.x_vector_only
        self._startable = asyncio.Event()
        self._changed = asyncio.Event()
        self._written = STREAM_CREATED
        """Of the last entry in Redis, as far as is known."""
        self._beginning = 0
        """Characters that the request itself has."""
        self._lost = False
        """Redis has lost the request, or it was released."""

    @property
    def ended(self) -> bool:
        """Whether the text is complete."""
        return self._segments.ended

    @property
    def respelled(self) -> str:
        """The text as the lexicon respells it, as far as no further text can change that."""
        return self._segments.respelled.text

    @property
    def segments(self) -> Sequence[Divided]:
        """The segments that are complete, at their places in the respelled text."""
        return self._segments.complete

    def frames(self, segment: Segment | None) -> float:
        """Returns how many frames every talker can generate from the text so far, as far as the gateway knows.

        segment: that of the newest audio. Its text may be the last one: then its speech has some frames at least.
        """
        number, before = (0, 0) if segment is None else (segment.number, segment.frames)
        if self.ended or number + 1 < len(self.segments):
            return math.inf
        if number < len(self.segments):
            spoken = as_spoken(self.segments[number], self.request).text
            return before + self._reading.bounds(self.request, spoken).least
        # An engine may read the token after that of a frame.
        return max(len(self._first.ids) - 1, 0)

    def feed(self, piece: str) -> None:
        """Adds text."""
        self.text += piece
        self._segments.feed(piece)
        self._update()

    def end(self) -> None:
        """Ends the text."""
        self._segments.end()
        self._update()

    def _update(self) -> None:
        has_tokens = not self._needs_end and len(self._first.ids) >= FIRST_TOKENS and has_words(self.respelled)
        if self._first.ended or has_tokens:
            self._startable.set()
        if self._allowed_at is None and self.frames(None):
            self._allowed_at = monotonic()
        self._changed.set()

    def served_from(self, accepted: float) -> float:
        """Returns from when the service, and not the client's next word, makes a listener wait for the first audio."""
        return max(accepted, monotonic() if self._allowed_at is None else self._allowed_at)

    async def wait_startable(self) -> None:
        """Waits until a request with the text so far can be submitted."""
        await self._startable.wait()

    def place(self, number: int) -> tuple[int, int] | None:
        """Returns where a segment is in the text; None if its end is not known."""
        if number >= len(self.segments):
            return None
        piece = self.segments[number]
        (place,) = self._segments.respelled.places([(piece.start, piece.end)])
        return place

    def spoken_characters(self, frames: int, segment: Segment | None) -> int:
        """Returns up to which character of the text the first frames of its speech probably go.

        The model reads ahead of what it speaks, so that this follows from how long the speech of a text is. segment:
        that of the last frame.
        """
        number, before = (0, 0) if segment is None else (segment.number, segment.frames)
        respelled = self._segments.respelled
        start = self.segments[number - 1].end if number else 0
        end = self.segments[number].end if number < len(self.segments) else len(respelled.text)
        normalizer = StreamedNormalizer(self.request.languages)
        normalizer.feed(respelled.text[start:end])
        normalizer.end()
        durations, voice = self._reading.durations, self.request.voice
        spoken = spoken_characters(normalizer.spoken, durations, voice, frames - before)
        at = start + normalizer.written_end(spoken)
        return respelled.places([(at, at)])[0][1]

    # To the talker -----------------------------------------------------------------------------------------------

    def restart(self, beginning: int) -> None:
        """Writes the text after the first `beginning` characters, which the submitted request has."""
        self._beginning, self._written, self._lost = beginning, STREAM_CREATED, False
        self._changed.set()

    def restore(self, beginning: str, entries: Sequence[StreamEntry]) -> None:
        """Sets the text to that of a submitted request and of its text stream."""
        self.feed(beginning)
        self._beginning = len(beginning)
        for each in entries:
            if isinstance(each.entry, Text):
                self.feed(each.entry.text)
            elif isinstance(each.entry, TextEnd):
                self.end()
            self._written = each.position

    def check(self) -> None:
        """Checks that Redis has what was written, and writes it again otherwise."""
        self._changed.set()

    async def write(self, request_id: str, append: Append) -> None:
        """Writes what arrives to the text stream of a request, until cancelled.

        What arrives during a call goes into one entry, so that a talker gets it within two round trips.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._lost:
                continue
            entries = self._entries(request_id)
            try:
                outcome = await append(request_id, self._written, entries)
            except ConnectorError as error:
                log.warning(
                    "the text of request %s is not written: %s", request_id, error, extra=logs.of_request(request_id)
                )
                await asyncio.sleep(RETRY_SECONDS)
                self._changed.set()
                continue
            self._lost = isinstance(outcome, Gone)
            if isinstance(outcome, Behind):
                self._written = outcome.at
                self._changed.set()
            elif outcome is None and entries:
                self._written = entries[-1].position

    def _entries(self, request_id: str) -> list[StreamEntry]:
        """Returns the entries that the stream lacks."""
        if self._written.sequence == END_SEQUENCE:
            return []
        entries, start = [], max(self._written.frames, self._beginning)
        if len(self.text) > start:
            piece = Text(self.text[start:])
            entries.append(StreamEntry(request_id, StreamKind.TEXT, Position(len(self.text)), piece))
        if self.ended:
            at = Position(len(self.text), END_SEQUENCE)
            entries.append(StreamEntry(request_id, StreamKind.TEXT, at, TextEnd()))
        return entries
