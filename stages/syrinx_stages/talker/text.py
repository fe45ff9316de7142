"""The text of a request that arrives while it is spoken: what has arrived, and what the engine has of it."""

import math
from collections.abc import Sequence

from syrinx_stages.connector.base import ConnectorError, StreamEntry
from syrinx_stages.contract.keys import STREAM_CREATED
from syrinx_stages.contract.messages import Text, TextEnd
from syrinx_stages.model.streamed_text import StreamedText

_UNLIMITED = 1 << 30


class RowText:
    """The text of one request. The prompt has its first token, and every frame is followed by the next one."""

    def __init__(self, tokens: StreamedText, lookahead: int) -> None:
        """lookahead: see `TalkerEngine.text_lookahead`."""
        self.tokens = tokens
        self._lookahead = lookahead
        self.position = STREAM_CREATED
        """Of the last entry that was read."""
        self.written = ""
        """The text so far, as its client has written it."""
        self.max_frames = _UNLIMITED
        """With so many frames the request ends, whatever its text."""
        self._given = 0
        self._end_given = False

    def begin(self, text: str) -> None:
        """Adds the text that the request itself has."""
        self.written = text
        self.tokens.feed(text)

    def add(self, event: StreamEntry) -> None:
        """Adds an entry of the text stream. Raises ConnectorError if text before it is missing."""
        match event.entry:
            case Text(text):
                # After a fail-over, an entry may begin with text that was read before.
                new = event.position.frames - self.tokens.characters
                if new > len(text):
                    raise ConnectorError(f"{new - len(text)} characters are missing before an entry")
                piece = text[len(text) - max(new, 0) :]
                self.written += piece
                self.tokens.feed(piece)
            case TextEnd():
                if event.position.frames != self.tokens.characters:
                    raise ConnectorError(f"the text ends at character {event.position.frames}, not here")
                self.tokens.end()
        self.position = max(self.position, event.position)

    @property
    def frames(self) -> float:
        """Frames that may exist so far."""
        return self._frames(len(self.tokens.ids), self.tokens.ended)

    @property
    def given_frames(self) -> float:
        """Frames that may exist by what the engine has."""
        return self._frames(self._given, self._end_given)

    def _frames(self, tokens: int, ended: bool) -> float:
        frames = max(tokens - self._lookahead, 0)
        return math.inf if ended or frames >= self.max_frames else frames

    def set_given(self) -> None:
        """Records that the engine gets all text so far with the prompt."""
        self._given, self._end_given = len(self.tokens.ids), self.tokens.ended

    def take(self) -> tuple[Sequence[int], bool] | None:
        """Returns the tokens that the engine does not have, and whether its end is new; None if there is nothing."""
        tokens, ended = self.tokens.ids[self._given :], self.tokens.ended and not self._end_given
        self.set_given()
        return (tokens, ended) if tokens or ended else None
