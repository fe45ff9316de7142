"""Normalizes text that arrives in pieces. The result does not depend on how the text was cut. Pure."""

import bisect
import re
from collections.abc import Sequence

from msgspec import Struct

from syrinx_stages.normalization.boundaries import MAX_PIECE, boundaries
from syrinx_stages.normalization.growing import Growing
from syrinx_stages.normalization.languages import detect, languages
from syrinx_stages.normalization.normalize import normalize, with_typed_quotes

_WINDOW = 2 * MAX_PIECE
"""Characters that decide where a piece ends, at most."""
_DETECTED = 400
"""Characters up to a piece's end by which its language is detected."""
_CONTEXT = re.compile(r"(?:\S+\s+){0,2}\S*\Z")
"""The words before a piece that rules look at, such as a month before a year."""
_MAX_CONTEXT = 64


class _Span(Struct, frozen=True):
    """A part of the text, as it is written and as it is spoken."""

    spoken_start: int
    start: int
    end: int
    is_changed: bool


class StreamedNormalizer(Growing):
    """The spoken form of a growing text.

    Text is divided where no rule reads across, see `boundaries`. A piece is normalized with the words before it as
    context, which themselves stay.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        """names: the languages, in one of which the text is, as in `normalize`. Without them, nothing is changed."""
        super().__init__()
        self.languages = tuple(names)
        self._boundaries = boundaries(self.languages) if set(names) & set(languages()) else None
        self.spoken = ""
        """The text so far, as it is spoken."""
        self._heard = ""
        """The last `_DETECTED` characters before `_pending`."""
        self._spans: list[_Span] = []

    def written_end(self, position: int) -> int:
        """Returns how many characters of the written text the first ones of the spoken text come from.

        Within what is changed, those up to its end.
        """
        index = bisect.bisect_right(self._spans, position, key=lambda span: span.spoken_start) - 1
        if index < 0:
            return 0
        span = self._spans[index]
        offset = position - span.spoken_start
        return min(span.start + offset, span.end) if not (span.is_changed and offset) else span.end

    def _take(self, ended: bool) -> str:
        before = len(self.spoken)
        while self._pending and (end := self._next(ended)) is not None:
            self._add(self._pending[:end])
        return self.spoken[before:]

    def _next(self, ended: bool) -> int | None:
        """Returns where the next piece ends; None if that depends on further text."""
        if self._boundaries is None:
            return len(self._pending)
        if spaces := len(self._pending) - len(self._pending.lstrip()):
            return spaces
        window = self._pending[:_WINDOW]
        return self._boundaries.end(window, ended and len(window) == len(self._pending))

    def _add(self, piece: str) -> None:
        """Moves a piece from the pending to the spoken text."""
        text = piece.rstrip()
        spaces = piece[len(text) :]
        self._heard = (self._heard + piece)[-_DETECTED:]
        spoken = text
        if self._boundaries is not None and text and not self._boundaries.is_plain(text):
            spoken = self._normalized(text).rstrip() if spaces else self._normalized(text)
        self._append(text, spoken if self._boundaries is None else with_typed_quotes(spoken))
        self._append(spaces, spaces)

    def _normalized(self, piece: str) -> str:
        """Returns a piece as it is spoken after the text before it."""
        found = _CONTEXT.search(self.spoken[-_MAX_CONTEXT:])
        context = found[0] if found else ""
        language = [name for name in (detect(self._heard, self.languages),) if name is not None]
        kept = context.rstrip()
        whole = normalize(context + piece, language)
        rest = whole.removeprefix(kept) if whole.startswith(kept) else normalize(piece, language)
        return rest.lstrip() if context != kept else rest

    def _append(self, written: str, spoken: str) -> None:
        if not written:
            return
        is_changed, last = written != spoken, self._spans[-1] if self._spans else None
        start = self._consumed
        self._consume(len(written))
        if last is not None and not (is_changed or last.is_changed):
            self._spans[-1] = _Span(last.spoken_start, last.start, self._consumed, False)
        else:
            self._spans.append(_Span(len(self.spoken), start, self._consumed, is_changed))
        self.spoken += spoken


def normalize_streamed(text: str, names: Sequence[str]) -> str:
    """Returns the spoken form of a text as a `StreamedNormalizer` has it."""
    normalizer = StreamedNormalizer(names)
    normalizer.feed(text)
    normalizer.end()
    return normalizer.spoken
