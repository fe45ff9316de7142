"""A sentence of the corpus: how it is written, and in which language."""

from __future__ import annotations

import re
from typing import NamedTuple

from . import spoken, spoken_de

_SPOKEN = {"english": spoken.spoken, "german": spoken_de.spoken}
# Numbers are words when English is read out; those of German are left to espeak-ng.
_WORD = {"english": r"[a-z]+(?:'[a-z]+)*", "german": r"[a-zäöüßé]+(?:'[a-zäöüß]+)*|\d+"}


class Sentence(NamedTuple):
    """As people write it."""

    text: str
    language: str
    """`english` or `german`: the name that a checkpoint and a request know it by."""

    def spoken(self) -> str:
        """As it is read out, which is what espeak-ng is given."""
        return _SPOKEN[self.language](self.text)

    def words(self) -> tuple[str, ...]:
        """What is heard, in lower case: what tells two sentences of a language apart."""
        return tuple(re.findall(_WORD[self.language], self.spoken().lower()))
