"""Divides a long text into parts that are spoken one after the other. Pure.

A part has whole sentences, so that the model speaks them evenly and the codec begins and ends in silence.
"""

import heapq
import re
import unicodedata
from collections.abc import Iterator

from msgspec import Struct, structs
from sentencex import segment

from syrinx_stages.gateway.sentences import CLAUSE_END, ends_in_abbreviation

WHOLE_SIZE = 1_200
"""Size of a text that a model speaks as a whole, as the official package does, in letters: about 80 seconds, half of
what a request may have by default."""
MAX_SIZE = 300
"""Size of a part, in letters: about 20 seconds of speech."""
_MIN_SIZE = MAX_SIZE // 3
"""Size from which on a part may end with a paragraph that more sentences follow, or within a sentence."""
_LONG_SIZE = 4
"""Size of a digit, or of a character of Chinese, Japanese or Korean: it is spoken about as long as four letters."""
_WIDE = "\u2e80"
"""The first character of the scripts of Chinese, Japanese and Korean."""
_ZERO_WIDTH_JOINER = "\u200d"
PARAGRAPH_SECONDS, SENTENCE_SECONDS, CLAUSE_SECONDS = 0.7, 0.4, 0.2
"""Silence after a part, by what ends with it. Within a clause there is none."""

_LOOK_AHEAD = 40
"""Characters after a part that tell whether its last period ends a sentence."""

_PARAGRAPH = re.compile(r"\n(?=\s*\S)")
_LINE = re.compile(r"\n(?=.)", re.DOTALL)
_CLAUSE = re.compile(CLAUSE_END, re.DOTALL)
_SPACE = re.compile(r"\s(?=\S)")


class Part(Struct, frozen=True):
    """A part of a text."""

    text: str
    pause: float = 0.0
    """Seconds of silence between this part and the next one."""


def divide(
    text: str, whole_size: int = MAX_SIZE, *, single_sentences: bool = False, language: str = "en"
) -> Iterator[Part]:
    """Yields the parts of a text, each when it is asked for. A text of at most `whole_size` is not changed.

    single_sentences: a part of a longer text has one sentence. language: the text's code, such as en.

    A sentence that does not fit is divided at clauses, else between words; a word that does not, between characters.
    What has neither letters nor digits is left out.
    """
    if _limit(text, 0, whole_size) == len(text):
        yield Part(text)
        return
    start, part = 0, None
    while start < len(text):
        end, pause = _next_end(text, start, single_sentences, language)
        piece, start = text[start:end].strip(), end
        if not any(map(str.isalnum, piece)):
            part = part and structs.replace(part, pause=max(part.pause, pause))
            continue
        if part is not None:
            yield part
        part = Part(piece, pause)
    yield structs.replace(part, pause=0.0) if part else Part(text[: _limit(text, 0)])


def _limit(text: str, start: int, size: int = MAX_SIZE) -> int:
    """Returns the end of the longest text from `start` on that has at most a size."""
    for index in range(start, len(text)):
        size -= _LONG_SIZE if text[index] >= _WIDE or text[index].isdecimal() else 1
        if size < 0:
            return max(index, start + 1)
    return len(text)


def _next_end(text: str, start: int, single_sentences: bool, language: str) -> tuple[int, float]:
    """Returns the end of the part that begins at `start`, and the pause after it."""
    limit = _limit(text, start)
    if single_sentences and (end := next(_sentence_ends(text, start, limit, language), None)):
        return end, _sentence_pause(text, end)
    if limit == len(text):
        return limit, 0.0
    least = _limit(text, start, _MIN_SIZE)
    if end := _last(_PARAGRAPH, text, least, limit):
        return end, PARAGRAPH_SECONDS
    if end := max(_sentence_ends(text, start, limit, language), default=None):
        return end, _sentence_pause(text, end)
    if end := _last(_CLAUSE, text, least, limit):
        return end, CLAUSE_SECONDS
    return _last(_SPACE, text, least, limit) or _last_character(text, least, limit), 0.0


def _sentence_pause(text: str, end: int) -> float:
    ends_paragraph = text[end - 1] == "\n" or _PARAGRAPH.match(text, end) is not None
    return PARAGRAPH_SECONDS if ends_paragraph else SENTENCE_SECONDS


def _sentence_ends(text: str, start: int, limit: int, language: str) -> Iterator[int]:
    """Yields the ends of sentences and lines up to `limit`, in order."""
    return heapq.merge(_ends(_LINE, text, start, limit), _segments(text, start, limit, language))


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
