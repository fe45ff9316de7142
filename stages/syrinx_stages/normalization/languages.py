"""The languages in which numbers and the like are read: `languages.toml`, and how a text's language is found. Pure."""

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files

from msgspec import Struct, convert

_SCRIPTS = {
    "japanese": re.compile("[\u3040-\u30ff]"),
    "korean": re.compile("[\uac00-\ud7af]"),
    # Japanese has its characters, too.
    "chinese": re.compile("[\u4e00-\u9fff]"),
    "russian": re.compile("[\u0400-\u04ff]"),
}
"""Characters of the languages that have a script of their own, in the order in which they are looked for."""


class Words(Struct, frozen=True, forbid_unknown_fields=True, rename={"and_": "and"}):
    """A language of `languages.toml`, which explains the fields."""

    code: str
    names: tuple[str, ...]
    marks: dict[str, str]
    dot: str
    slash: str
    at: str
    dash: str
    underscore: str
    ampersand: str
    ratio: str
    by: str
    times: tuple[str, ...]
    symbols: dict[str, str]
    common: str = ""
    space: str = " "
    cardinal: str | None = None
    other_cardinal: str = "spellout-cardinal-feminine"
    point: str = ""
    decimal: str = "."
    group: str = ","
    one: str | None = None
    minus: str = ""
    to: str = ""
    and_: str = ""
    percent: tuple[str, ...] = ()
    hour: tuple[str, ...] = ()
    time: str | None = None
    hour_mark: str = ""
    zero_minute: str = ""
    after_time: str = ""
    date: str | None = None
    month_first: bool = False
    months: str = ""
    ordinal_day: bool = False
    day_end: str = ""
    ordinals: dict[str, str] = {}
    dative: str = ""
    articles: str = ""
    years: str = ""
    year: str = ""
    year_mark: str = ""
    version: str = ""
    fraction: str = "{n} {d}"
    mixed: str = ""
    over: str = ""
    fractions: tuple[str, ...] = ()
    powers: dict[str, str] = {}
    power: str = ""
    scale: str = ""
    scales: dict[str, str] = {}
    money: dict[str, tuple[str, ...]] = {}
    units: dict[str, tuple[str, ...]] = {}
    short: dict[str, str] = {}


@functools.cache
def languages() -> dict[str, Words]:
    """Returns the words of all supported languages, by name."""
    table = tomllib.loads(files(__package__).joinpath("languages.toml").read_text("utf-8"))
    return convert(table, dict[str, Words])


def name_of(language: str) -> str | None:
    """Returns the name of a language by its code or a name, also with a region (`en-US`, `English (US)`); or None."""
    names = _names()
    return names.get(language.lower()) or names.get(re.split(r"[-_ (]", language.lower())[0])


@functools.cache
def _names() -> dict[str, str]:
    return {each: name for name, words in languages().items() for each in (name, words.code, *words.names)}


@functools.cache
def _common(name: str) -> frozenset[str]:
    return frozenset(languages()[name].common.split())


def detect(text: str, names: Sequence[str]) -> str | None:
    """Returns the one of the languages `names` that a text is in, None without languages."""
    if len(names) == 1:
        return names[0]
    for name, script in _SCRIPTS.items():
        if name in names and script.search(text):
            return name
    counts = Counter(re.findall(r"[^\W\d_]+", text.lower()))
    known = [name for name in names if name in languages() and name not in _SCRIPTS]
    scores = {name: sum(counts[word] for word in _common(name) & counts.keys()) for name in known}
    return max(known, key=scores.__getitem__, default=None)
