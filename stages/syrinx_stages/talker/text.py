"""The text of a request that arrives while it is spoken: what has arrived, and what the engine has of it."""

import math
from collections.abc import Iterator, Sequence

from syrinx_stages.connector.base import ConnectorError, StreamEntry
from syrinx_stages.contract.keys import STREAM_CREATED
from syrinx_stages.contract.messages import SpeechRequest, Text, TextEnd
from syrinx_stages.model.streamed_text import StreamedSegments, StreamedText
from syrinx_stages.normalization.reading import Reading, as_spoken
from syrinx_stages.normalization.segments import Divided
from syrinx_stages.talker.speech import OPEN

_UNLIMITED = 1 << 30


class RowText:
    """The text of one request. The prompt of its first segment has the first token, and every frame is followed by the
    next one. Other segments are spoken once they are complete."""

    def __init__(self, request: SpeechRequest, reading: Reading, tokens: StreamedText, lookahead: int) -> None:
        """tokens: those of no text. lookahead: see `TalkerEngine.text_lookahead`."""
        self.tokens = tokens
        """Those of the first segment."""
        self._request = request
        self._text = StreamedSegments(tokens, reading.divider(request), request.lexicon)
        self._lookahead = lookahead
        self.position = STREAM_CREATED
        """Of the last entry that was read."""
        self.max_frames = _UNLIMITED
        """With so many frames the first segment ends, whatever its text."""
        self._given = 0
        self._end_given = False

    def read(self, events: Sequence[StreamEntry]) -> None:
        """Adds what the request and its text stream have. The engine gets it with the prompt. Raises as `add`."""
        self._text.feed(self._request.text)
        for event in events:
            self.add(event)
        self._set_given()

    def add(self, event: StreamEntry) -> None:
        """Adds an entry of the text stream. Raises ConnectorError if text before it is missing."""
        match event.entry:
            case Text(text):
                # After a fail-over, an entry may begin with text that was read before.
                new = event.position.frames - self._text.characters
                if new > len(text):
                    raise ConnectorError(f"{new - len(text)} characters are missing before an entry")
                self._text.feed(text[len(text) - max(new, 0) :])
            case TextEnd():
                if event.position.frames != self._text.characters:
                    raise ConnectorError(f"the text ends at character {event.position.frames}, not here")
                self._text.end()
        self.position = max(self.position, event.position)

    def has(self, number: int) -> bool:
        """Returns whether a segment is complete, or the text is, without such a segment."""
        return self._text.ended or number < len(self._text.complete)

    def covers(self, number: int, frames: int) -> bool:
        """Returns whether the text so far has the segments before one, and allows so many frames of this one."""
        if number == 0:
            return frames <= self.frames
        return len(self._text.complete) >= number + (frames > 0)

    @property
    def first(self) -> Divided:
        """The first segment, once it is complete."""
        return self._text.complete[0] if self._text.complete else OPEN

    def segments(self, number: int) -> Iterator[Divided]:
        """Yields the segments from one on, as they are spoken. Ask for one only if the text `has` it."""
        if number == 0:
            yield OPEN
            number = 1
        while number < len(self._text.complete):
            yield as_spoken(self._text.complete[number], self._request)
            number += 1

    @property
    def frames(self) -> float:
        """Frames of the first segment that may exist so far."""
        return self._frames(len(self.tokens.ids), self.tokens.ended)

    @property
    def given_frames(self) -> float:
        """Frames that may exist by what the engine has."""
        return self._frames(self._given, self._end_given)

    def _frames(self, tokens: int, ended: bool) -> float:
        frames = max(tokens - self._lookahead, 0)
        return math.inf if ended or frames >= self.max_frames else frames

    def _set_given(self) -> None:
        self._given, self._end_given = len(self.tokens.ids), self.tokens.ended

    def take(self) -> tuple[Sequence[int], bool] | None:
        """Returns the tokens that the engine does not have, and whether its end is new; None if there is nothing."""
        tokens, ended = self.tokens.ids[self._given :], self.tokens.ended and not self._end_given
        self._set_given()
        return (tokens, ended) if tokens or ended else None
