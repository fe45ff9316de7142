"""Divides a text into segments, which are spoken one after the other. Pure.

A segment has whole sentences, so that the model speaks it evenly and it begins and ends in silence.
"""

import heapq
import re
import unicodedata
from collections.abc import Iterator

from msgspec import Struct, structs
from sentencex import segment

from syrinx_stages.normalization.plain import begins_item, has_words, with_usual_spaces, without_marks
from syrinx_stages.normalization.sentences import CLAUSE_END, ends_in_abbreviation

_LONG_SIZE = 4
"""Size of a digit, or of a character of Chinese, Japanese or Korean: it is spoken about as long as four letters."""
_WIDE = "\u2e80"
"""The first character of the scripts of Chinese, Japanese and Korean."""
_ZERO_WIDTH_JOINER = "\u200d"
PARAGRAPH_SECONDS, SENTENCE_SECONDS, CLAUSE_SECONDS = 0.7, 0.4, 0.2
"""Silence after a segment, by what ends with it. Within a clause there is none."""

_LOOK_AHEAD = 40
"""Characters after a segment that tell whether its last period ends a sentence."""
_WRAPPED_LINE = 50
"""A line of so many characters that ends within a sentence goes on in the next one."""

_ITEM = re.compile(r"(?<!\S)(\d{1,3})[.)](?= \S)")
_PARAGRAPH = re.compile(r"\n(?=\s*\S)")
_LINE = re.compile(r"\n(?=.)", re.DOTALL)
_CLAUSE = re.compile(CLAUSE_END, re.DOTALL)
_SPACE = re.compile(r"\s(?=\S)")


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
        spoken = without_marks(text[start:end])
        if has_words(spoken):
            if found is not None:
                yield found
            first = end - len(text[start:end].lstrip())
            found = Divided(spoken, first, end, pause)
        elif found is not None:
            found = structs.replace(found, end=end, pause=max(found.pause, pause))
        start = end
    if found is not None:
        yield structs.replace(found, pause=0.0)


def _limit(text: str, start: int, size: int) -> int:
    """Returns the end of the longest text from `start` on that has at most a size."""
    for index in range(start, len(text)):
        size -= _LONG_SIZE if text[index] >= _WIDE or text[index].isdecimal() else 1
        if size < 0:
            return max(index, start + 1)
    return len(text)


def _items(text: str) -> dict[int, int]:
    """Returns where the numbers of lists are that are written in one line, "1. Milk 2. Bread", by their ends."""
    found: dict[int, int] = {}
    before: list[re.Match[str]] = []
    for item in _ITEM.finditer(text):
        if before and "\n" in text[before[-1].end() : item.start()]:
            before = []
        number, preceding = int(item[1]), text[max(0, item.start() - 2) : item.start()].rstrip(" ")[-1:]
        if before and number == len(before) + 1:
            before.append(item)
            found |= {each.end(): each.start() for each in before[-2:]}
        elif number == 1 and preceding in "\n.:;!?":
            before = [item]
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
    ends_paragraph = text[end - 1] == "\n" or _PARAGRAPH.match(text, end) is not None
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
