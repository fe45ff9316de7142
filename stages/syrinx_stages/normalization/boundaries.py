"""Finds where text that is still arriving can be divided so that no rule of `normalize` reads across. Pure.

Rules may look at the words before a number, which the normalizer has as context. So a boundary needs only that nothing
after it can change how the text before it is spoken: no unit, currency, month or other number follows a number there.
"""

import functools
import re
from collections.abc import Sequence

from syrinx_stages.normalization.languages import Words, languages
from syrinx_stages.normalization.normalize import HALF_OF_DAY, LETTERS, SPACE, either_of
from syrinx_stages.normalization.spoken_numbers import is_numeral

MAX_PIECE = 100
"""Characters after which a piece ends even where a rule may read across."""
_SPACES = SPACE.strip("[]")
_TRAILING = ".,;:!?…)]}\"”“»’'*"
"""Marks after a word that no rule reads."""
_SEPARATE = ',;!?…"“”„«»¿¡—'
"""Marks that end a piece, after a word or on their own."""
_WORD_ENDS = _SEPARATE + ")]’'"
"""Marks after a word that end a piece without waiting for a space."""
_WIDE_ENDS = "。，、；：！？「」『』【】《》…"
"""Full-width marks. They end a piece wherever they stand."""
_CLOSING = ".,;:!?…\"”“»’'"
"""Marks that end a number if a space follows."""
_TIMES = "x"
"""Between two numbers, or after one."""
_AFTER_NUMBERS = "-−–~〜～×(%％°"
"""Characters with which a number may continue after a space."""


@functools.cache
def boundaries(names: Sequence[str]) -> "Boundaries":
    """Returns the boundaries of text in one of the languages. `names` is a tuple."""
    return Boundaries([languages()[name] for name in names if name in languages()])


class Boundaries:
    """Where pieces of text end that is in one of some languages. Thread-safe."""

    def __init__(self, tables: Sequence[Words]) -> None:
        money = {symbol for words in tables for symbol in words.money}
        symbols = {symbol for words in tables for symbol in words.symbols}
        marks = {mark for words in tables for mark in words.marks}
        short = {each for words in tables for each in words.short}
        self._currencies = {symbol for symbol in money if len(symbol) == 1 and not symbol.isalpha()}
        self._goes_on = {*_AFTER_NUMBERS, *symbols, *self._currencies}
        self._triggers = {"&", ".", "/", *symbols, *self._currencies}
        following = {*short, *money, *_words_after_numbers(tables)}
        self._following = frozenset(following)
        self._max_following = max(map(len, following), default=0)
        between = either_of({_TIMES, *(words.hour_mark for words in tables if words.hour_mark)})
        after = rf"(?:{either_of(following)})(?![{LETTERS}])|(?:{between})(?=\d)|(?i:{HALF_OF_DAY})"
        self._follows = re.compile(after)
        before = rf"(?<![{LETTERS}])"
        self._ends_following = re.compile(rf"{before}(?:{either_of(following)})$")
        # Words that a number may follow, and which change with it.
        signs = rf"(?<![A-Z])(?:{either_of(money)})|[{re.escape(''.join(symbols))}]"
        self._opens = re.compile(rf"(?:{before}(?:{either_of(marks)})|{signs})$")
        self._special = re.compile(rf"{before}(?:{either_of(short | marks)})(?![{LETTERS}])")
        pairs = [each.split(" ", 1) for each in sorted(short) if " " in each]
        self._second = {first: second for first, second in pairs}
        self._dots_days = any("." in words.day_end or words.articles for words in tables)

    def is_plain(self, token: str) -> bool:
        """Returns whether no rule changes a word, whatever surrounds it."""
        core = token.rstrip(_TRAILING)
        if any(each in self._triggers or is_numeral(each) for each in core):
            return False
        return not (self._special.search(token) or self._opens.search(token) or self._first_of_two(token))

    def end(self, text: str, ended: bool) -> int | None:
        """Returns where the first piece of a text ends; None if that depends on further text.

        text: does not begin with a space. ended: no further text comes. A space after the piece belongs to it.
        """
        at, is_numeric = 0, False
        while True:
            end = self._token_end(text, at)
            if end is None and len(text) <= MAX_PIECE:
                return len(text) if ended else None
            if end is None or end >= MAX_PIECE:
                return at or MAX_PIECE
            if self._ends_alone(text, at, end - 1):
                return end
            is_numeric = is_numeric or any(map(is_numeral, text[at:end]))
            joins = self._joins(text[at:end], is_numeric, text, end, ended)
            if not joins:
                return None if joins is None else end + 1
            at = end + 1

    def _token_end(self, text: str, at: int) -> int | None:
        """Returns where the word or number at a position ends: at a space, or after a mark."""
        for index in range(at, min(len(text), MAX_PIECE + 1)):
            character = text[index]
            if character.isspace():
                return index
            if self._ends_alone(text, at, index):
                return index + 1
        return None

    def _ends_alone(self, text: str, at: int, index: int) -> bool:
        """Returns whether the character at `index` ends what begins at `at`, whatever comes after it."""
        character = text[index]
        if character in _WIDE_ENDS or (index == at and character in _SEPARATE):
            return True
        return character in _WORD_ENDS and index > at and text[index - 1].isalpha() and self.is_plain(text[at:index])

    def _joins(self, token: str, is_numeric: bool, text: str, end: int, ended: bool) -> bool | None:
        """Returns whether a rule may read across the space after a token; None if that depends on further text."""
        opens, second = self._opens.search(token) is not None, self._first_of_two(token)
        if text[end] not in _SPACES or not (is_numeric or opens or second):
            return False
        if end + 1 == len(text):
            return False if ended else None
        following = text[end + 1]
        if opens and (is_numeral(following) or following in self._currencies):
            return True
        if second and (found := _begins(text, end + 1, second, ended)) is not False:
            return found
        return is_numeric and self._continues(token, text, end + 1, ended)

    def _continues(self, token: str, text: str, at: int, ended: bool) -> bool | None:
        """Returns whether a number, or what belongs to it, may go on after a token and a space."""
        following = text[at]
        if self._dots_days and token[-1] == "." and token[-2:-1].isdecimal() and following.isupper():
            return True
        if token[-1] in _CLOSING and self._ends_following.search(token) is None:
            return False
        if is_numeral(following) or following in self._goes_on:
            return True
        window = text[at : at + self._max_following + 1]
        is_known = ended or len(window) > self._max_following or any(map(str.isspace, window))
        if not is_known and any(each.startswith(window) for each in (*self._following, *_HALVES)):
            return None
        return self._follows.match(window) is not None

    def _first_of_two(self, token: str) -> str | None:
        """Returns the second word of an abbreviation of two whose first one a token ends with."""
        return next((self._second[first] for first in self._second if token.endswith(first)), None)


_HALVES = [f"{letter}{dot}{m}" for letter in "apAP" for dot in ("", ".") for m in "mM"]


def _words_after_numbers(tables: Sequence[Words]) -> set[str]:
    """Returns the words that rules read together with a number before them."""
    found = {_TIMES}
    for words in tables:
        found |= {*words.units, *words.scales, *words.scale.split(), *words.months.split()}
        found |= {each for each in (words.hour_mark, words.after_time) if each}
    return found


def _begins(text: str, at: int, word: str, ended: bool) -> bool | None:
    """Returns whether a word is at a position; None if that depends on further text."""
    window = text[at : at + len(word)]
    return None if window != word and word.startswith(window) and not ended else window == word
