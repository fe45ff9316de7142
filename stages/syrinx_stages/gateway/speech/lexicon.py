"""Respells words of a text: how a client or an operator wants them to be pronounced. Pure."""

import bisect
import functools
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

_WIDE = "\u2e80"
"""The first character of the scripts of Chinese, Japanese and Korean, which do not separate words."""
_WINDOW, _OVERLAP = 4096, 512
"""Characters that are searched at once, because a search holds the interpreter's lock, and those of them in which no
entry is looked for: what follows the window could belong to it."""


class Change(Struct, frozen=True):
    """A part of a text that was replaced."""

    start: int
    end: int
    """Its characters in the new text."""
    former_end: int
    """Where it ended in the former one."""


class Respelled(Struct, frozen=True):
    """A text with replacements, in the order of their places."""

    text: str
    changes: tuple[Change, ...] = ()

    def places(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns where ranges of the new text are in the former one: of words that were replaced, the whole."""
        return [(self._place(start), self._place(end)) for start, end in ranges]

    def _place(self, index: int) -> int:
        number = bisect.bisect_left(self.changes, index, key=lambda change: change.start)
        if number == 0:
            return index
        change = self.changes[number - 1]
        return change.former_end + max(0, index - change.end)


def respell(text: str, lexicon: Mapping[str, str]) -> Respelled:
    """Returns a text in which the whole words of a lexicon are replaced, each once.

    An entry in lower case matches in any case, another one only as it is written. The longest one wins. White space
    within an entry matches any.
    """
    if not lexicon:
        return Respelled(text)
    pattern, entries = _compile(tuple(lexicon.items()))

    pieces: list[str] = []
    changes: list[Change] = []
    position = length = 0
    while position < len(text):
        end = min(position + _WINDOW, len(text))
        last = end if end == len(text) else end - _OVERLAP
        for found in pattern.finditer(text, position, end):
            if found.start() >= last:
                break
            words = " ".join(found[0].split())
            new = entries.get(words) or entries.get(words.lower()) or found[0]
            pieces += text[position : found.start()], new
            start = length + found.start() - position
            position, length = found.end(), start + len(new)
            changes.append(Change(start, length, position))
        if position < last:
            pieces.append(text[position:last])
            position, length = last, length + last - position
    return Respelled("".join(pieces), tuple(changes))


@functools.lru_cache(64)
def _compile(items: tuple[tuple[str, str], ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    entries = {" ".join(word.split()): respelling for word, respelling in items}
    longest_first = sorted(entries, key=lambda word: (-len(word), word.lower() == word))
    # A lookbehind of its own for each entry would be tried at each character.
    whole = "|".join(_entry(word) for word in longest_first if not _is_free(word[0]))
    free = "|".join(_entry(word) for word in longest_first if _is_free(word[0]))
    alternatives = [pattern for pattern in (whole and rf"(?<!\w)(?:{whole})", free) if pattern]
    return re.compile("|".join(alternatives)), entries


def _entry(word: str) -> str:
    pattern = r"\s+".join(map(re.escape, word.split(" ")))
    if word == word.lower():
        pattern = f"(?i:{pattern})"
    return pattern if _is_free(word[-1]) else pattern + r"(?!\w)"


def _is_free(character: str) -> bool:
    """Returns whether a word may begin or end within a run of letters here."""
    return character >= _WIDE or not (character.isalnum() or character == "_")
