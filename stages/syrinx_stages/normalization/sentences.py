"""Divides text that arrives in pieces into sentences or clauses. Pure: the result does not depend on the pieces."""

import re
from enum import StrEnum

from syrinx_stages.normalization.plain import has_words

_CLOSING = "\"'”’»›)\\]」』）】》"
SENTENCE_END = rf"[.!?…]++[{_CLOSING}]*+(?=\s)|[。！？｡।॥؟۔]++[{_CLOSING}]*+(?=.)|\n(?=.)"
CLAUSE_END = rf"[,;:—]++[{_CLOSING}]*+(?=\s)|[，；：、،؛]++[{_CLOSING}]*+(?=.)"
_MARKS = "".join(set(".!?…。！？｡।॥؟۔\n,;:—，；：、،؛") | set(_CLOSING.replace("\\", "")))
"""What an end of a sentence or clause consists of."""
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"'“‘])(?:[A-HJ-Z]|(?i:Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|vs|Nr|approx|dept|fig|e\.g|i\.e|z\.B|d\.h|bzw"
    r"|(?:im|vom|zum|beim|dem|den|des|der|das) \d{1,3}))\.$"
)
"""A period after these ends no sentence. The last ones are German ordinals: "im 21. Stock"."""
_MAX_ABBREVIATION = 10
"""Characters of the longest one, with the period and the character before."""


def ends_in_abbreviation(text: str, end: int) -> bool:
    """Returns whether the period before `end` is that of an abbreviation, which ends no sentence."""
    return _ABBREVIATION.search(text[max(0, end - _MAX_ABBREVIATION) : end]) is not None


class Granularity(StrEnum):
    """What is spoken at once."""

    NONE = "none"
    """All text up to `input.done`."""
    SENTENCE = "sentence"
    CLAUSE = "clause"


_PATTERNS = {
    Granularity.SENTENCE: re.compile(SENTENCE_END, re.DOTALL),
    Granularity.CLAUSE: re.compile(f"{SENTENCE_END}|{CLAUSE_END}", re.DOTALL),
}


class SentenceSplitter:
    """Returns each sentence with words once the character after it is known."""

    def __init__(self, granularity: Granularity) -> None:
        self._pattern = _PATTERNS.get(granularity)
        self._reset("")

    def _reset(self, text: str) -> None:
        self._text = text
        self._searched = 0
        """Characters before which no sentence ends."""
        self._has_word = False
        """Whether these have a letter or a digit."""

    @property
    def pending(self) -> str:
        """Text that is not part of a sentence yet."""
        return self._text

    def feed(self, piece: str) -> list[str]:
        """Adds text. Returns what is to be spoken and complete now, without surrounding white space."""
        self._text += piece
        sentences = []
        while (end := self._next_end()) is not None:
            sentences.append(self._text[:end].strip())
            self._reset(self._text[end:])
        return [each for each in sentences if has_words(each)]

    def flush(self) -> list[str]:
        """Returns the rest of the text, if there is anything to speak in it."""
        rest = self._text.strip()
        self._reset("")
        return [rest] if has_words(rest) else []

    def _next_end(self) -> int | None:
        """Returns where the first sentence ends. Marks without a word belong to the sentence after them."""
        if self._pattern is None:
            return None
        for found in self._pattern.finditer(self._text, self._searched):
            end = found.end()
            self._has_word = self._has_word or any(map(str.isalnum, self._text[self._searched : end]))
            if self._has_word and not ends_in_abbreviation(self._text, end):
                return end
            self._searched = end
        # Text that is still to come completes only an end that begins in the last marks.
        searched = max(self._searched, len(self._text.rstrip(_MARKS)))
        self._has_word = self._has_word or any(map(str.isalnum, self._text[self._searched : searched]))
        self._searched = searched
        return None
