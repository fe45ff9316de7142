"""Respells, normalizes and tokenizes text that arrives in pieces. The tokens do not depend on how the text was cut."""

import unicodedata
from collections.abc import Mapping, Sequence

from syrinx_stages.model.tokenizer import AssistantIds, Tokenizer, WordIds
from syrinx_stages.normalization.lexicon import StreamedRespeller
from syrinx_stages.normalization.streamed import StreamedNormalizer

LONG_WORD = 64
"""Characters from which on a word that goes on is examined again only..."""
GROWTH = 1.25
"""...when it is this much longer: examining it takes milliseconds."""


class StreamedText:
    """The tokens of a growing text in its template, as far as no further text can change them.

    The pattern of the tokenizer matches from left to right, so the end of a text can change only its last match: a
    word continues, and a run of white space is divided differently before a word than at the end.

    Only this class knows the respelled and the normalized text: all characters that it takes and returns are those of
    the written one.
    """

    def __init__(self, tokenizer: Tokenizer, languages: Sequence[str] = (), lexicon: Mapping[str, str] = {}) -> None:
        """languages, lexicon: see `SpeechRequest`."""
        self.lexicon = dict(lexicon)
        self._tokenizer = tokenizer
        self._respeller = StreamedRespeller(lexicon)
        self._normalizer = StreamedNormalizer(languages)
        self._pending = tokenizer.TEMPLATE
        self._ids: list[int] = []
        """Tokens of the template and of the text."""
        self._starts: list[int] = []
        """For each of them: its start, in characters of the template and the normalized text."""
        self._consumed = 0
        """Characters before `_pending`."""
        self._examined = 0
        """Characters of `_pending` in which no word ends."""
        self.ended = False
        """The text is complete."""

    @property
    def languages(self) -> tuple[str, ...]:
        """In one of which the text is normalized."""
        return self._normalizer.languages

    @property
    def characters(self) -> int:
        """Characters of the text so far, including those without tokens yet."""
        return self._respeller.characters

    @property
    def spoken(self) -> str:
        """The respelled and normalized text, as far as no further text can change it."""
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
        self._add(self._normalizer.feed(self._respeller.feed(piece)))

    def _add(self, piece: str) -> None:
        if not piece:
            return
        goes_on = len(self._pending) > LONG_WORD and _goes_on(self._pending[-1], piece)
        self._pending += piece
        if not goes_on or len(self._pending) > GROWTH * self._examined:
            self._take(final=False)

    def end(self) -> None:
        """Ends the text: the rest of it gets its tokens."""
        self._pending += self._normalizer.feed(self._respeller.end()) + self._normalizer.end()
        self._take(final=True)
        self.ended = True

    def end_of(self, tokens: int) -> int:
        """Returns how many characters of the text its first tokens have."""
        following = len(self._ids) - len(self.ids) + tokens
        end = self._starts[following] if following < len(self._starts) else self._consumed
        return self.written_end(max(0, end - len(self._tokenizer.TEMPLATE)))

    def written_end(self, position: int) -> int:
        """Returns how many characters of the text the first ones of `spoken` come from."""
        return self._respeller.written_end(self._normalizer.written_end(position))

    def _take(self, final: bool) -> None:
        found = self._tokenizer.encode_words(self._pending)
        count = len(found.ids) if final else _num_stable(self._pending, found)
        if count:
            cut = len(self._pending) if final else found.starts[count]
            self._ids += found.ids[:count]
            self._starts += [self._consumed + start for start in found.starts[:count]]
            self._pending, self._consumed = self._pending[cut:], self._consumed + cut
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
