"""How long the speech of a text is: at least, usually and at most, by what the text consists of. Pure."""

import bisect
import math
import re
import unicodedata
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

_MARKS = '.,;:!?…—–()"“”„«»。，、；：！？'
"""What may surround a word."""
_PAUSE = re.compile(r"[.,;:!?…]+(?!\w)|[—–()]+|[。，、；：！？]+|\n+")
_WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")
_SPOKEN_UNIT = re.compile(r"[\u2e80-\uffff]|[^\s\u2e80-\uffff]+")
"""A word with its marks, or an ideograph."""
_SHORT_REPEATS = re.compile(r"(\w{1,4}?)\1{3}")
_IDEOGRAPHS = 0x2E80
"""The first character of the scripts of Chinese, Japanese and Korean."""
MAX_PHRASE = 8
"""Words of a phrase whose repetition is noticed."""
_REPEATED_PHRASE = re.compile(rf"\b(\w++(?: \w++){{0,{MAX_PHRASE - 1}}}) \1\b")

Frames = Annotated[float, Meta(ge=0, le=1000)]
Factor = Annotated[float, Meta(gt=0, le=10)]


class Durations(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The frames that each constituent of a text adds, and by how much speech may differ from their sum.

    The defaults are wide enough for the official voices in ten languages, by public recordings.
    """

    text: Frames = 6.0
    letter: Frames = 0.75
    """Of an ordinary word."""
    word: Frames = 0.6
    pause: Frames = 4.0
    digit: Frames = 5.0
    symbol: Frames = 4.0
    """Or a letter that may be spelled."""
    ideograph: Frames = 3.0
    """Or kana or hangul."""
    voices: dict[str, Factor] = {}
    """Durations of voices, relative to those above."""
    shortest: Annotated[float, Meta(ge=0, le=1)] = 0.4
    longest: Annotated[float, Meta(ge=1, le=10)] = 2.2
    """Of the expected frames..."""
    early: Frames = 3.0
    late: Frames = 5.0
    """...and so many square roots of them fewer or more: the deviations of words are independent."""


class Bounds(Struct, frozen=True):
    """Frames of a text's speech."""

    expected: int
    least: int
    most: int

    @property
    def usual(self) -> int:
        """Returns the frames that healthy speech hardly exceeds."""
        return self.expected + (self.most - self.expected) // 3


class Counts(Struct, frozen=True):
    """What a text consists of."""

    letter: int = 0
    word: int = 0
    pause: int = 0
    digit: int = 0
    symbol: int = 0
    ideograph: int = 0


def counts_of(text: str) -> Counts:
    """Returns what a text consists of. Marks that combine with letters, as macOS writes those of ü, take no time."""
    if not text.isascii():
        text = "".join(filter(_takes_time, unicodedata.normalize("NFC", text)))
    letters = words = digits = symbols = ideographs = 0
    for token in text.split():
        core = token.strip(_MARKS)
        wide = 0 if core.isascii() else sum(ord(each) >= _IDEOGRAPHS for each in core)
        decimal = sum(map(str.isdecimal, core))
        ideographs, digits = ideographs + wide, digits + decimal
        if _WORD.fullmatch(core) and not wide and not (len(core) > 1 and core.isupper()):
            letters, words = letters + len(core), words + 1
        else:
            symbols += len(core) - wide - decimal
    # A closing mark is a pause that nobody hears.
    pauses = len(_PAUSE.findall(text.strip().rstrip(_MARKS)))
    return Counts(letters, words, pauses, digits, symbols, ideographs)


def _takes_time(character: str) -> bool:
    return not unicodedata.category(character).startswith("M")


def bounds(text: str, durations: Durations, voice: str | None = None) -> Bounds:
    """Returns how many frames the speech of a text has. `voice`: a speaker of the checkpoint."""
    counts = msgspec.structs.asdict(counts_of(text))
    frames = durations.text + sum(getattr(durations, name) * count for name, count in counts.items())
    frames *= durations.voices.get(voice or "", 1.0)
    least = max(1, math.floor(frames * durations.shortest - durations.early * math.sqrt(frames)))
    return Bounds(round(frames), least, math.ceil(frames * durations.longest + durations.late * math.sqrt(frames)))


def spoken_characters(text: str, durations: Durations, voice: str | None, frames: int) -> int:
    """Returns up to which character of a text the first `frames` probably go: the end of a word, or 0."""
    ends = [unit.end() for unit in _SPOKEN_UNIT.finditer(text)]
    spoken = bisect.bisect_right(ends, frames, key=lambda end: bounds(text[:end], durations, voice).expected)
    return ends[spoken - 1] if spoken else 0


def repeats_itself(text: str) -> bool:
    """Returns whether a phrase or a part of a word follows itself."""
    plain = unicodedata.normalize("NFKC", text).lower()
    words = " ".join(re.findall(r"\w+", plain))
    return _REPEATED_PHRASE.search(words) is not None or _SHORT_REPEATS.search(plain) is not None
