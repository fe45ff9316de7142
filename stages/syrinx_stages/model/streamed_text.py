"""Respells, divides, normalizes and tokenizes text that arrives in pieces. Nothing depends on how the text was cut."""

import unicodedata
from collections.abc import Mapping, Sequence

from syrinx_stages.model.tokenizer import AssistantIds, Tokenizer, WordIds
from syrinx_stages.normalization.lexicon import Respelled, StreamedRespeller
from syrinx_stages.normalization.plain import in_one_line
from syrinx_stages.normalization.segments import Divided, StreamedDivider
from syrinx_stages.normalization.streamed import StreamedNormalizer

LONG_WORD = 64
"""Characters from which on a word that goes on is examined again only..."""
GROWTH = 1.25
"""...when it is this much longer: examining it takes milliseconds."""


class StreamedSegments:
    """The segments of a growing text: the first one token by token, all others once they are complete.

    Positions of segments are characters of the respelled text.
    """

    def __init__(self, first: "StreamedText", divider: StreamedDivider, lexicon: Mapping[str, str] = {}) -> None:
        """first: becomes that of the first segment. lexicon: see `SpeechRequest`."""
        self.first = first
        self.ended = False
        """The text is complete."""
        self._respeller = StreamedRespeller(lexicon)
        self._divider = divider

    @property
    def characters(self) -> int:
        """Characters of the text so far, as it is written."""
        return self._respeller.characters

    @property
    def complete(self) -> Sequence[Divided]:
        """The segments that no further text can change, as they are written."""
        return self._divider.segments

    @property
    def respelled(self) -> Respelled:
        """The text so far, as far as no further text can change it."""
        return Respelled(self._divider.text, self._respeller.changes)

    def feed(self, piece: str) -> None:
        """Adds text. Raises ValueError for text with lone surrogates in the first segment, once its word ends."""
        self._add(self._divider.feed(self._respeller.feed(piece)))

    def end(self) -> None:
        """Ends the text."""
        self.ended = True
        self._add(self._divider.feed(self._respeller.end()) + self._divider.end())

    def _add(self, piece: str) -> None:
        # The model speaks sentences, without a pause at a line break.
        self.first.feed(in_one_line(piece))
        if not self.first.ended and (self.ended or self.complete):
            self.first.end()


class StreamedText:
    """The tokens of a growing text in its template, as far as no further text can change them.

    The pattern of the tokenizer matches from left to right, so the end of a text can change only its last match: a
    word continues, and a run of white space is divided differently before a word than at the end.
    """

    def __init__(self, tokenizer: Tokenizer, languages: Sequence[str] = ()) -> None:
        """languages: see `SpeechRequest`."""
        self._tokenizer = tokenizer
        self._normalizer = StreamedNormalizer(languages)
        self._pending = tokenizer.TEMPLATE
        self._ids: list[int] = []
        """Tokens of the template and of the text."""
        self._examined = 0
        """Characters of `_pending` in which no word ends."""
        self.ended = False
        """The text is complete."""

    @property
    def spoken(self) -> str:
        """The normalized text, as far as no further text can change it."""
        return self._normalizer.spoken

    @property
    def ids(self) -> Sequence[int]:
        """The tokens of the text."""
        return self._tokenizer.split_assistant(self._ids).text

    @property
    def assistant(self) -> AssistantIds:
        """The tokens of the template's start and of the text. The former are complete once the text has a token."""
        return self._tokenizer.split_assistant(self._ids)

    def feed(self, piece: str) -> None:
        """Adds text. Raises ValueError for text with lone surrogates, once its word ends."""
        self._add(self._normalizer.feed(piece))

    def _add(self, piece: str) -> None:
        if not piece:
            return
        goes_on = len(self._pending) > LONG_WORD and _goes_on(self._pending[-1], piece)
        self._pending += piece
        if not goes_on or len(self._pending) > GROWTH * self._examined:
            self._take(final=False)

    def end(self) -> None:
        """Ends the text: the rest of it gets its tokens."""
        self._pending += self._normalizer.end()
        self._take(final=True)
        self.ended = True

    def _take(self, final: bool) -> None:
        found = self._tokenizer.encode_words(self._pending)
        count = len(found.ids) if final else _num_stable(self._pending, found)
        if count:
            cut = len(self._pending) if final else found.starts[count]
            self._ids += found.ids[:count]
            self._pending = self._pending[cut:]
        self._examined = len(self._pending)


def _num_stable(text: str, found: WordIds) -> int:
    """Returns how many of the first tokens of `text` no further text can change."""
    solid = len(text.rstrip())
    for index in range(len(found.ids) - 1, 0, -1):
        start = found.starts[index]
        if found.words[index] != found.words[index - 1] and start <= solid and _is_boundary(text[start]):
            return index
    return 0


def _goes_on(last: str, piece: str) -> bool:
    """Returns whether a piece has only characters of the kind of the one before it: probably no word ends."""
    return piece.isalpha() if last.isalpha() else piece.isspace() if last.isspace() else not any(map(_is_word, piece))


def _is_word(character: str) -> bool:
    return character.isalnum() or character.isspace()


def _is_boundary(character: str) -> bool:
    """Returns whether a character never composes with the ones before it when the text is normalized (NFC)."""
    at = ord(character)
    is_vowel_or_final = 0x1160 <= at <= 0x11FF or 0xD7B0 <= at <= 0xD7FF or 0x16D60 <= at <= 0x16D6F
    return not is_vowel_or_final and unicodedata.category(character)[0] != "M"
