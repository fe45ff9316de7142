"""Respells words of a text: how a client or an operator wants them to be pronounced. Pure."""

import bisect
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from syrinx_stages.normalization.growing import Growing

_WIDE = "\u2e80"
"""The first character of the scripts of Chinese, Japanese and Korean, which do not separate words."""
_WORD = rf"[^\W{_WIDE}-\U0010ffff]"
"""What `_is_word` is true of, as a pattern."""
_WINDOW = 4096
"""Characters that are searched at once, because a search holds the interpreter's lock."""


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
    changes: Sequence[Change] = ()

    def places(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns where ranges of the new text are in the former one: of words that were replaced, the whole."""
        return [(_former(self.changes, start), _former(self.changes, end)) for start, end in ranges]


def respell(text: str, lexicon: Mapping[str, str]) -> Respelled:
    """Returns a text in which the whole words of a lexicon are replaced, each once.

    An entry in lower case matches in any case, another one only as it is written. The longest one wins. White space
    within an entry matches any.
    """
    if not lexicon:
        return Respelled(text)
    respeller = StreamedRespeller(lexicon)
    pieces = [respeller.feed(text[start : start + _WINDOW]) for start in range(0, len(text), _WINDOW)]
    pieces.append(respeller.end())
    return Respelled("".join(pieces), respeller.changes)


class StreamedRespeller(Growing):
    """A growing text with the replacements of `respell`."""

    def __init__(self, lexicon: Mapping[str, str]) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self._words = _compile(tuple(lexicon.items())) if lexicon else None
        self._before = ""
        """The character before `_pending`."""
        self._length = 0
        """Of the new text."""

    def _take(self, ended: bool) -> str:
        if self._words is None:
            return self._move(self._pending, self._pending)
        text = self._before + self._pending
        position, pieces, known = len(self._before), list[str](), -1
        while True:
            if known < position:
                known = len(text) if ended else self._words.known(text, position)
            found = self._words.pattern.search(text, position)
            if found is None or found.start() >= known:
                pieces.append(self._move(text[position:known], text[position:known]))
                return "".join(pieces)
            pieces.append(self._move(text[position : found.start()], text[position : found.start()]))
            start = self._length
            pieces.append(self._move(found[0], self._words.respelling(found[0])))
            self.changes.append(Change(start, self._length, self._consumed))
            position = found.end()

    def _move(self, written: str, new: str) -> str:
        """Moves the beginning of the pending text to the new one, and returns what it becomes."""
        self._before = written[-1:] or self._before
        self._consume(len(written))
        self._length += len(new)
        return new


def _former(changes: Sequence[Change], index: int) -> int:
    number = bisect.bisect_left(changes, index, key=lambda change: change.start)
    if number == 0:
        return index
    change = changes[number - 1]
    return change.former_end + max(0, index - change.end)


class _Word(Struct, frozen=True):
    """An entry of a lexicon."""

    text: str
    """Its white space is single spaces."""
    pattern: re.Pattern[str]
    """Matches it, also within a word."""

    def may_begin(self, text: str, start: int, size: int) -> bool:
        """Returns whether further text decides if it is at `start`. size: characters from there on, see `_sizes`."""
        if size > len(self.text) or (size == len(self.text) and not _is_word(self.text[-1])):
            return False
        if start and _is_word(self.text[0]) and _is_word(text[start - 1]):
            return False
        return bool(self.pattern.match(text[start:] + self.text[size:]))


class _Words(Struct, frozen=True):
    """A lexicon."""

    words: Mapping[str, Sequence[_Word]]
    """By their first characters, see `_letter`."""
    longest: int
    """Characters of an entry, at most."""
    pattern: re.Pattern[str]
    """Matches any, the longest first."""
    respellings: Mapping[str, str]

    def respelling(self, found: str) -> str:
        """Returns what a match is replaced by."""
        words = " ".join(found.split())
        return self.respellings.get(words) or self.respellings.get(words.lower()) or found

    def known(self, text: str, start: int) -> int:
        """Returns the first character from `start` on of which further text decides whether an entry begins there."""
        known = len(text)
        for position, size in _sizes(text, start):
            if size > self.longest:
                break
            if any(word.may_begin(text, position, size) for word in self.words.get(_letter(text[position]), ())):
                known = position
        return known


def _sizes(text: str, start: int) -> Iterable[tuple[int, int]]:
    """Yields the positions of a text, the last one first, and how many characters follow: white space is one."""
    size = 0
    for position in range(len(text) - 1, start - 1, -1):
        size += not (text[position].isspace() and text[position + 1 : position + 2].isspace())
        yield position, size


@functools.lru_cache(64)
def _compile(items: tuple[tuple[str, str], ...]) -> _Words:
    entries = {" ".join(word.split()): respelling for word, respelling in items}
    longest_first = sorted(entries, key=lambda word: (-len(word), word.lower() == word))
    # A lookbehind of its own for each entry would be tried at each character.
    whole = "|".join(_whole(word) for word in longest_first if _is_word(word[0]))
    free = "|".join(_whole(word) for word in longest_first if not _is_word(word[0]))
    alternatives = [pattern for pattern in (whole and rf"(?<!{_WORD})(?:{whole})", free) if pattern]
    words: defaultdict[str, list[_Word]] = defaultdict(list)
    for word in entries:
        words[_letter(word[0])].append(_Word(word, re.compile(_anywhere(word))))
    return _Words(dict(words), max(map(len, entries)), re.compile("|".join(alternatives)), entries)


def _whole(word: str) -> str:
    return _anywhere(word) + (f"(?!{_WORD})" if _is_word(word[-1]) else "")


def _anywhere(word: str) -> str:
    pattern = r"\s+".join(map(re.escape, word.split(" ")))
    return f"(?i:{pattern})" if word == word.lower() else pattern


def _letter(character: str) -> str:
    """Returns the same for all characters that match each other in any case."""
    return character.casefold()[:1]


def _is_word(character: str) -> bool:
    """Returns whether no word may begin or end between two such characters."""
    return character < _WIDE and (character.isalnum() or character == "_")
