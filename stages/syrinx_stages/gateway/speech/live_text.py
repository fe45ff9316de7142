"""The text of an utterance that is spoken while it arrives: its tokens, and its way to the talker."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence

from syrinx_stages.connector.base import Behind, ConnectorError, Gone, StreamEntry
from syrinx_stages.contract import logs
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Text, TextEnd
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.normalization.durations import Durations, spoken_characters
from syrinx_stages.normalization.plain import has_words
from syrinx_stages.runtime.clock import monotonic

log = logging.getLogger(__name__)

FIRST_TOKENS = 1
"""Tokens with which a request is submitted: the prompt has the first one."""
RETRY_SECONDS = 0.5
"""Pause before text is written again after the connector failed."""

Append = Callable[[str, Position, Sequence[StreamEntry]], Awaitable[Gone | Behind | None]]
"""`RedisConnector.append_text`."""


class LiveText:
    """The text of one utterance.

    needs_end: the model reads the text with the reference audio, so nothing is spoken before the text has ended.
    """

    def __init__(self, tokens: StreamedText, needs_end: bool) -> None:
        self.text = ""
        """As the client has written it."""
        self._allowed_at: float | None = None
        """When it first allowed a frame, in monotonic seconds; None before."""
        self._tokens = tokens
        self._needs_end = needs_end
        self._startable = asyncio.Event()
        self._changed = asyncio.Event()
        self._written = STREAM_CREATED
        """Of the last entry in Redis, as far as is known."""
        self._beginning = 0
        """Characters that the request itself has."""
        self._lost = False
        """Redis has lost the request, or it was released."""

    @property
    def lexicon(self) -> dict[str, str]:
        """See `SpeechRequest`."""
        return self._tokens.lexicon

    @property
    def ended(self) -> bool:
        """Whether the text is complete."""
        return self._tokens.ended

    @property
    def frames(self) -> float:
        """Frames that every engine can generate from the text so far: one may read the token after that of a frame."""
        return math.inf if self.ended else max(len(self._tokens.ids) - 1, 0)

    def feed(self, piece: str) -> None:
        """Adds text."""
        self.text += piece
        self._tokens.feed(piece)
        self._update()

    def end(self) -> None:
        """Ends the text."""
        self._tokens.end()
        self._update()

    def _update(self) -> None:
        has_tokens = not self._needs_end and len(self._tokens.ids) >= FIRST_TOKENS and has_words(self.text)
        if self.ended or has_tokens:
            self._startable.set()
        if self._allowed_at is None and self.frames:
            self._allowed_at = monotonic()
        self._changed.set()

    def served_from(self, accepted: float) -> float:
        """Returns from when the service, and not the client's next word, makes a listener wait for the first audio."""
        return max(accepted, monotonic() if self._allowed_at is None else self._allowed_at)

    async def wait_startable(self) -> None:
        """Waits until a request with the text so far can be submitted."""
        await self._startable.wait()

    def spoken_characters(self, frames: int, durations: Durations, voice: str | None) -> int:
        """Returns up to which character of the text the first frames of its speech probably go.

        The model reads ahead of what it speaks, a token with each frame, so that this follows from how long the speech
        of a text is. voice: a speaker of the checkpoint.
        """
        if not frames:
            return 0
        spoken = spoken_characters(self._tokens.spoken, durations, voice, frames)
        return min(self._tokens.written_end(spoken), self._tokens.end_of(frames))

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
