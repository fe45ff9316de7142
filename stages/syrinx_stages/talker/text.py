"""The text of a request that arrives while it is spoken: what has arrived, and what the engine has of it."""

import math
from collections.abc import Sequence

from syrinx_stages.connector.base import ConnectorError, StreamEntry
from syrinx_stages.contract.keys import STREAM_CREATED
from syrinx_stages.contract.messages import RunawayGuard, Text, TextEnd
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.talker.runaway import RunawayDetector, Signal

_UNLIMITED = 1 << 30


class RowText:
    """The text of one request. The prompt has its first token, and every frame is followed by the next one."""

    def __init__(self, tokens: StreamedText, beginning: str) -> None:
        self.tokens = tokens
        self.position = STREAM_CREATED
        """Of the last entry that was read."""
        self.guard: RunawayGuard | None = None
        """That of the whole text, once it has ended."""
        self.max_frames = _UNLIMITED
        """With so many frames the request ends, whatever its text."""
        self._given = 0
        self._end_given = False
        tokens.feed(beginning)

    def add(self, event: StreamEntry) -> None:
        """Adds an entry of the text stream. Raises ConnectorError if text before it is missing."""
        match event.entry:
            case Text(text):
                # After a fail-over, an entry may begin with text that was read before.
                new = event.position.frames - self.tokens.characters
                if new > len(text):
                    raise ConnectorError(f"{new - len(text)} characters are missing before an entry")
                self.tokens.feed(text[len(text) - max(new, 0) :])
            case TextEnd(guard):
                if event.position.frames != self.tokens.characters:
                    raise ConnectorError(f"the text ends at character {event.position.frames}, not here")
                self.tokens.end()
                self.guard = guard
        self.position = max(self.position, event.position)

    @property
    def rows(self) -> int:
        """Text rows so far: one for each token after the first, and one for the end."""
        return max(len(self.tokens.ids) - 1, 0) + self.tokens.ended

    @property
    def frames(self) -> float:
        """Frames that may exist so far: each needs the text token after it."""
        return self._frames(self.rows, self.tokens.ended)

    @property
    def given_frames(self) -> float:
        """Frames that may exist by what the engine has."""
        return self._frames(self._given - 1, self._end_given)

    def _frames(self, rows: int, ended: bool) -> float:
        return math.inf if ended or rows >= self.max_frames else rows

    def set_given(self) -> None:
        """Records that the engine gets all text so far with the prompt."""
        self._given, self._end_given = len(self.tokens.ids), self.tokens.ended

    def take(self) -> tuple[Sequence[int], bool] | None:
        """Returns the tokens that the engine does not have, and whether its end is new; None if there is nothing."""
        tokens, ended = self.tokens.ids[self._given :], self.tokens.ended and not self._end_given
        self.set_given()
        return (tokens, ended) if tokens or ended else None


class StreamedTextDetector:
    """A `RunawayDetector` of a text whose duration is not known before its end has reached the model.

    Until then every frame takes a token, so that the speech cannot be longer than the text. From then on the verdict is
    that of a detector which has known the guard from the first frame, however the text was cut.
    """

    def __init__(self) -> None:
        # A text may repeat itself, and so may its speech.
        self._detector = RunawayDetector(RunawayGuard(repeats=True))
        self._seen: list[bytes] = []
        self._end: tuple[int, RunawayGuard] | None = None
        self._good_frames = 1

    def set_end(self, rows: int, guard: RunawayGuard) -> None:
        """Sets the number of text rows and the guard of the whole text."""
        self._end = rows, guard

    @property
    def good_frames(self) -> int:
        """See `RunawayDetector`."""
        return max(self._good_frames, self._detector.good_frames)

    @property
    def is_suspicious(self) -> bool:
        """Whether the last frames are under suspicion."""
        return self.good_frames < self._detector.frames

    def add(self, frame: bytes) -> Signal | None:
        """Adds a frame. Returns what shows that the clip is a runaway, or None."""
        if self._detector.frames > len(self._seen):
            return self._detector.add(frame)
        self._seen.append(frame)
        if self._end is None or len(self._seen) < self._end[0]:
            return self._detector.add(frame)
        return self._restart(self._end[1])

    def _restart(self, guard: RunawayGuard) -> Signal | None:
        """Replaces the detector by one that knows the guard."""
        self._good_frames = self.good_frames
        self._detector = RunawayDetector(guard)
        signals = [self._detector.add(frame) for frame in self._seen]
        self._seen.clear()
        return next((signal for signal in signals if signal is not None), None)
