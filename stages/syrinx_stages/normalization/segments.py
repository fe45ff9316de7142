"""Divides a text into segments, which are spoken one after the other. Pure.

A segment has whole sentences, so that the model speaks it evenly and it begins and ends in silence. `divide` chooses
the last good end within a size, and `StreamedDivider`, whose text is spoken while it arrives, the first one.
"""

import heapq
import re
import unicodedata
from collections.abc import Iterator, Sequence

from msgspec import Struct, structs
from sentencex import segment

from syrinx_stages.normalization.growing import Growing
from syrinx_stages.normalization.normalize import code_of
from syrinx_stages.normalization.plain import begins_item, has_words, with_usual_spaces, without_marks
from syrinx_stages.normalization.sentences import CLAUSE_END, SENTENCE_END, ends_in_abbreviation

_LONG_SIZE = 4
"""Size of a digit, or of a character of Chinese, Japanese or Korean: it is spoken about as long as four letters."""
_WIDE = "\u2e80"
"""The first character of the scripts of Chinese, Japanese and Korean."""
_ZERO_WIDTH_JOINER = "\u200d"
PARAGRAPH_SECONDS, SENTENCE_SECONDS, CLAUSE_SECONDS = 0.7, 0.4, 0.2
"""Silence after a segment, by what ends with it. Within a clause there is none."""

_LOOK_AHEAD = 40
"""Characters after a segment that tell whether its last period ends a sentence."""
_NEXT_WORD = re.compile(rf"\s*+(?:[{_WIDE}-\U0010ffff]|[^\s{_WIDE}-\U0010ffff]++)\s*+\S")
"""What of these `StreamedDivider` waits for, at most: the next word, and that it has ended."""
_DETECTED = 400
"""Characters up to there by which it detects the language."""
_WRAPPED_LINE = 50
"""A line of so many characters that ends within a sentence goes on in the next one."""

_ITEM = re.compile(r"(?<!\S)(\d{1,3})[.)](?= \S)")
_PARAGRAPH = re.compile(r"\n(?=\s*\S)")
_PARAGRAPH_AFTER = re.compile(r"\s*\n\s*\S")
_LINE = re.compile(r"\n(?=.)", re.DOTALL)
_SENTENCE = re.compile(SENTENCE_END, re.DOTALL)
_CLAUSE = re.compile(CLAUSE_END, re.DOTALL)
_SPACE = re.compile(r"\s(?=\S)")
_MAX_MARKS = 8
"""Characters of an end that `StreamedDivider` looks at."""


class Divided(Struct, frozen=True):
    """A segment of a text, without what nobody says."""

    text: str
    start: int
    end: int
    """Its characters in the whole text; the next one begins at `end`."""
    pause: float = 0.0
    """Seconds of silence between it and the next one; 0 after the last one."""


def divide(
    text: str, size: int, *, single_sentences: bool = False, language: str = "en", start: int = 0
) -> Iterator[Divided]:
    """Yields the segments of a text from a character on, each when it is asked for.

    size: of a segment, at most, in letters. single_sentences: a segment has one sentence. language: the text's code,
    such as en.

    A sentence that does not fit is divided at clauses, else between words; a word that does not, between characters.
    What has neither letters nor digits is left out.
    """
    text, found = with_usual_spaces(text), None
    items = _items(text)
    while start < len(text):
        end, pause = _next_end(text, start, size, single_sentences, language, items)
        if (piece := _piece(text, start, end, pause)) is not None:
            if found is not None:
                yield found
            found = piece
        elif found is not None:
            found = structs.replace(found, end=end, pause=max(found.pause, pause))
        start = end
    if found is not None:
        yield structs.replace(found, pause=0.0)


class StreamedDivider(Growing):
    """Divides a growing text. What becomes of it is the text of the first segment, as it is written.

    A segment ends with the first sentence that makes it a third of the size long, else with a clause, else between
    words, the closer to the size the more readily. Whether it ends somewhere depends on the text up to there and on
    the next word.
    """

    def __init__(self, size: int, *, single_sentences: bool = False, languages: Sequence[str] = ("english",)) -> None:
        """languages: in one of which the text is. The others: see `divide`."""
        super().__init__()
        self.segments: list[Divided] = []
        """Those that are complete."""
        self.text = ""
        """All text so far."""
        self._size, self._languages = size, languages
        self._least = 1 if single_sentences else max(1, size // 3)
        """Size from which on a segment may end with a sentence."""
        self._returned = 0
        """Characters of the first segment."""
        self._start = self._end = 0
        """The segment that is not complete, up to where it may end."""
        self._length = 0
        """Its size."""

    def _take(self, ended: bool) -> str:
        self.text += with_usual_spaces(self._pending)
        self._consume(len(self._pending))
        while self._end < len(self.text):
            known = self._known(ended)
            if known is None:
                break
            if (pause := self._pause(known)) is not None:
                self._close(pause)
            self._length += _size_of(self.text[self._end])
            self._end += 1
        if ended:
            self._close(0.0)
        end = self.segments[0].end if self.segments else self._end
        start, self._returned = self._returned, end
        return self.text[start:end]

    def _known(self, ended: bool) -> int | None:
        """Returns up to where the text decides whether the segment ends here; None if that depends on further text."""
        end = self._end
        if self._length < self._least or not self._may_end_sentence():
            return end + 1
        if (found := _NEXT_WORD.match(self.text, end, end + _LOOK_AHEAD)) is not None:
            return found.end()
        is_known = ended or len(self.text) >= end + _LOOK_AHEAD
        return min(len(self.text), end + _LOOK_AHEAD) if is_known else None

    def _may_end_sentence(self) -> bool:
        """Returns whether a sentence, a line or an item of a list may end here."""
        before, after = self.text[self._end - 1 : self._end], self.text[self._end]
        if before.isspace():
            return before == "\n" or after.isdecimal()
        return after == "\n" or self._ends(_SENTENCE)

    def _pause(self, known: int) -> float | None:
        """Returns the pause after the segment if it ends here; None if it goes on. known: see `_known`."""
        text, start, end = self.text, self._start, self._end
        if self._length >= self._least and self._may_end_sentence():
            so_far = text[:known]
            code = code_of(so_far[-_DETECTED:], self._languages)
            items = _items(so_far, text.rfind("\n", 0, end) + 1, least=1)
            if end in _sentence_ends(so_far, start, end, code, items):
                return _sentence_pause(so_far, end)
        if 3 * self._length >= 2 * self._size and self._ends(_CLAUSE):
            return CLAUSE_SECONDS
        if 6 * self._length >= 5 * self._size and self._ends(_SPACE):
            return 0.0
        return 0.0 if self._length >= self._size and not _is_within_character(text, end) else None

    def _ends(self, pattern: re.Pattern[str]) -> bool:
        """Returns whether what a pattern finds ends here, and is no abbreviation."""
        return self._end in _ends(pattern, self.text, max(self._start, self._end - _MAX_MARKS), self._end)

    def _close(self, pause: float) -> None:
        """Ends the segment here. What has neither letters nor digits is left out, after the first one."""
        if (piece := _piece(self.text, self._start, self._end, pause)) is not None:
            self.segments.append(piece)
        self._start, self._length = self._end, 0


def _piece(text: str, start: int, end: int, pause: float) -> Divided | None:
    """Returns a part of a text as a segment; None if there is nothing to say in it."""
    spoken = without_marks(text[start:end])
    return Divided(spoken, end - len(text[start:end].lstrip()), end, pause) if has_words(spoken) else None


def _size_of(character: str) -> int:
    return _LONG_SIZE if character >= _WIDE or character.isdecimal() else 1


def _limit(text: str, start: int, size: int) -> int:
    """Returns the end of the longest text from `start` on that has at most a size."""
    for index in range(start, len(text)):
        size -= _size_of(text[index])
        if size < 0:
            return max(index, start + 1)
    return len(text)


def _items(text: str, start: int = 0, least: int = 2) -> dict[int, int]:
    """Returns where the numbers of lists are that are written in one line, "1. Milk 2. Bread", by their ends.

    least: items of a list.
    """
    found: dict[int, int] = {}
    before: list[re.Match[str]] = []
    for item in _ITEM.finditer(text, start):
        if before and "\n" in text[before[-1].end() : item.start()]:
            before = []
        number, preceding = int(item[1]), text[max(0, item.start() - 2) : item.start()].rstrip(" ")[-1:]
        if before and number == len(before) + 1:
            before.append(item)
        elif number == 1 and preceding in "\n.:;!?":
            before = [item]
        else:
            continue
        if len(before) >= least:
            found |= {each.end(): each.start() for each in before[-least:]}
    return found


def _next_end(
    text: str, start: int, size: int, single_sentences: bool, language: str, items: dict[int, int]
) -> tuple[int, float]:
    """Returns the end of the segment that begins at `start`, and the pause after it."""
    limit = _limit(text, start, size)
    if single_sentences and (end := next(_sentence_ends(text, start, limit, language, items), None)):
        return end, _sentence_pause(text, end)
    if limit == len(text):
        return limit, 0.0
    # From this size on a segment may end with a paragraph that more sentences follow, or within a sentence.
    least = _limit(text, start, size // 3)
    if end := _last(_PARAGRAPH, text, least, limit):
        return end, PARAGRAPH_SECONDS
    if end := max(_sentence_ends(text, start, limit, language, items), default=None):
        return end, _sentence_pause(text, end)
    if end := _last(_CLAUSE, text, least, limit):
        return end, CLAUSE_SECONDS
    return _last(_SPACE, text, least, limit) or _last_character(text, least, limit), 0.0


def _sentence_pause(text: str, end: int) -> float:
    ends_paragraph = text[end - 1] == "\n" or _PARAGRAPH_AFTER.match(text, end) is not None
    return PARAGRAPH_SECONDS if ends_paragraph else SENTENCE_SECONDS


def _sentence_ends(text: str, start: int, limit: int, language: str, items: dict[int, int]) -> Iterator[int]:
    """Yields the ends of sentences, lines and items up to `limit`, in order."""
    lines = (end for end in _ends(_LINE, text, start, limit) if not _is_wrapped(text, start, end))
    sentences = (end for end in _segments(text, start, limit, language) if end not in items)
    return heapq.merge(lines, sentences, (each for each in items.values() if start < each <= limit))


def _is_wrapped(text: str, start: int, end: int) -> bool:
    """Returns whether a line break is only there because the line was full."""
    line = text[max(start, text.rfind("\n", 0, end - 1) + 1) : end - 1].strip()
    following = text[end : end + _WRAPPED_LINE].lstrip(" ")
    if not line or following[:1] in ("", "\n") or begins_item(line) or begins_item(following):
        return False
    goes_on = line[-1].isalnum() or line[-1] in ",;-"
    return goes_on and (following[0].islower() or len(line) >= _WRAPPED_LINE)


def _segments(text: str, start: int, limit: int, language: str) -> Iterator[int]:
    # The library sees no more than a part: with long texts of Chinese its time grows with the square.
    last = min(limit + _LOOK_AHEAD, len(text))
    next_start = start
    for sentence in segment(language, text[start:last]):
        end, next_start = next_start + len(sentence.rstrip()), next_start + len(sentence)
        if end <= limit and next_start < last and _is_sentence(text, start, end):
            yield end


def _is_sentence(text: str, start: int, end: int) -> bool:
    """Returns whether a piece is one: not only the number of an item, no abbreviation, no part of a word."""
    is_between_words = text[end].isspace() or text[end - 1] >= _WIDE
    return is_between_words and any(map(str.isalpha, text[start:end])) and not ends_in_abbreviation(text, end)


def _last(pattern: re.Pattern[str], text: str, first: int, limit: int) -> int | None:
    """Returns the last end from `first` to `limit` that a pattern finds, and no abbreviation."""
    return max(_ends(pattern, text, first, limit), default=None)


def _ends(pattern: re.Pattern[str], text: str, first: int, limit: int) -> Iterator[int]:
    """Yields the ends from `first` to `limit` that a pattern finds, without those of abbreviations."""
    for found in pattern.finditer(text, first, min(limit + 1, len(text))):
        end = found.end()
        if end <= limit and not ends_in_abbreviation(text, end - text[end - 1].isspace()):
            yield end


def _last_character(text: str, first: int, limit: int) -> int:
    """Returns the last end from `first` to `limit` that is not within a word, else not within a character."""
    ends = [end for end in range(limit, first, -1) if not _is_within_character(text, end)]
    return next((end for end in ends if not _is_within_word(text, end)), ends[0] if ends else limit)


def _is_within_character(text: str, end: int) -> bool:
    joined = _ZERO_WIDTH_JOINER in text[end - 1 : end + 1]
    return joined or unicodedata.category(text[end]).startswith("M")


def _is_within_word(text: str, end: int) -> bool:
    return all(each.isalnum() and each < _WIDE for each in text[end - 1 : end + 1])
