"""Text normalization: numbers, dates, times, money, units and abbreviations as words, for espeak-ng.

The talker learns from the written form, and espeak-ng reads the normalized one: it decides how the talker reads.
English numbers are spelled out. Of German, only what espeak-ng reads differently from people is changed.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

TEXT_DIRECTORY = Path(__file__).parents[1] / "text"
_WORDS = json.loads((TEXT_DIRECTORY / "words.json").read_text("utf-8"))
_EN, _DE = _WORDS["english"], _WORDS["german"]
MONTHS: dict[str, list[str]] = {language: words["months"] for language, words in _WORDS.items()}
_SCALES = ((1_000_000_000, "billion"), (1_000_000, "million"), (1_000, "thousand"), (100, "hundred"))

_Rule = tuple[str, Callable[[re.Match[str]], str]]


def _normalizer(language: str, rules: Sequence[_Rule]) -> Callable[[str], str]:
    abbreviations: dict[str, str] = _WORDS[language]["abbreviations"]
    abbreviation = re.compile("|".join(rf"(?<![\w.]){re.escape(short)}" for short in abbreviations))
    compiled = [(re.compile(pattern), replace) for pattern, replace in rules]

    def normalize(written: str) -> str:
        # The full stop of an abbreviation at the end of the sentence is kept.
        ends = written.endswith((*abbreviations, *_WORDS[language]["sentence_ends"]))
        text = abbreviation.sub(lambda found: abbreviations[found[0]], written)
        for pattern, replace in compiled:
            text = pattern.sub(replace, text)
        return f"{text}." if ends else text

    return normalize


def _cardinal(number: int) -> str:
    for scale, name in _SCALES:
        if number >= scale:
            rest = number % scale
            return f"{_cardinal(number // scale)} {name}" + (f" {_cardinal(rest)}" if rest else "")
    if number < 20:
        return str(_EN["ones"][number])
    return f"{_EN['tens'][number // 10 - 2]} {_EN['ones'][number % 10] if number % 10 else ''}".rstrip()


def _ordinal(number: int | str) -> str:
    *start, last = _cardinal(int(number)).split()
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return " ".join((*start, _EN["ordinals"].get(last, regular)))


def _year(number: int | str) -> str:
    """Returns 1998 as "nineteen ninety eight"."""
    century, rest = divmod(int(number), 100)
    if century % 10 == 0 and rest < 10:
        return _cardinal(int(number))
    if rest == 0:
        return f"{_cardinal(century)} hundred"
    return f"{_cardinal(century)} {'oh ' if rest < 10 else ''}{_cardinal(rest)}"


def _digits(text: str) -> str:
    return " ".join(_EN["ones"][int(digit)] for digit in text)


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _money(found: re.Match[str]) -> str:
    sign, whole, part, scale = found.groups()
    one, many, one_cent, many_cents = _EN["money"][sign]
    amount, cents = _whole(whole), int(part or 0)
    if scale:
        return f"{_cardinal(amount)}{f' point {_digits(part)}' if part else ''} {scale} {many}"
    words = f"{_cardinal(amount)} {one if amount == 1 else many}"
    return f"{words} and {_cardinal(cents)} {one_cent if cents == 1 else many_cents}" if cents else words


def _time(found: re.Match[str]) -> str:
    hour, minute = int(found[1]), int(found[2])
    if minute == 0:
        return _cardinal(hour) + (found[3] or " o'clock")
    return f"{_cardinal(hour)} {'oh ' if minute < 10 else ''}{_cardinal(minute)}{found[3] or ''}"


_MONTH = f"({'|'.join(MONTHS['english'])})"
_YEAR = r"1[1-9]\d\d|20\d\d"
_NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"
_BEFORE_YEARS = "in|since|until|before|after|year|from|of|summer|winter|spring"
_ENGLISH: tuple[_Rule, ...] = (
    (r"\bSt\. (?=[A-Z])", lambda m: "Saint "),
    (r"(?<=[a-z] )St\.", lambda m: "Street"),
    (r"\bNo\. (?=\d)", lambda m: "number "),
    (
        rf"\b(\d{{1,2}}) {_MONTH}(?: (\d{{4}}))?\b",
        lambda m: f"the {_ordinal(m[1])} of {m[2]}" + (f" {_year(m[3])}" if m[3] else ""),
    ),
    (
        rf"\b{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?(?:, (\d{{4}}))?\b(?!:)",
        lambda m: f"{m[1]} {_ordinal(m[2])}" + (f", {_year(m[3])}" if m[3] else ""),
    ),
    (rf"([$£€])({_NUMBER})(?:\.(\d+))?(?: (million|billion|thousand))?", _money),
    (r"\b(\d{1,2}):(\d\d)\b( [AP] M)?", _time),
    (r"\b(\d{3})-(\d{4})\b", lambda m: f"{_digits(m[1])}, {_digits(m[2])}"),
    (rf"\b({_NUMBER}) ({'|'.join(_EN['units'])})\b", lambda m: f"{m[1]} {_EN['units'][m[2]][m[1] != '1']}"),
    (r"(?<=\d) ?%", lambda m: " percent"),
    (r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: _ordinal(m[1])),
    (rf"\b([Bb]etween) ({_YEAR}) and ({_YEAR})\b", lambda m: f"{m[1]} {_year(m[2])} and {_year(m[3])}"),
    (rf"\b((?i:{_BEFORE_YEARS})) ({_YEAR})\b", lambda m: f"{m[1]} {_year(m[2])}"),
    (r"\b(\d+)\.(\d+)\b", lambda m: f"{_cardinal(int(m[1]))} point {_digits(m[2])}"),
    (rf"(?<![\d.])(?:{_NUMBER})(?![\d])", lambda m: _cardinal(_whole(m[0]))),
    (r"&", lambda m: "and"),
)


def _german_cardinal(number: int) -> str:
    """Returns the word of a number below 100: 42 as "zweiundvierzig"."""
    if number < 20:
        return "eins" if number == 1 else str(_DE["ones"][number])
    ten, one = _DE["tens"][number // 10 - 2], number % 10
    return f"{_DE['ones'][one]}und{ten}" if one else str(ten)


def _german_year(number: int) -> str:
    """Returns the word of a year from 1100 to 1999: 1998 as "neunzehnhundertachtundneunzig"."""
    return f"{_german_cardinal(number // 100)}hundert{_german_cardinal(number % 100) if number % 100 else ''}"


def _german_ordinal(found: re.Match[str]) -> str:
    """Returns "dritte" after an article in the nominative, "dritten" otherwise."""
    before, article, digits, noun = found.groups(default="")
    regular = f"{_german_cardinal(int(digits))}{'te' if int(digits) < 20 else 'ste'}"
    nominative = article and before.strip().lower() not in _DE["prepositions"]
    return f"{before}{article}{_DE['ordinals'].get(str(int(digits)), regular)}{'' if nominative else 'n'} {noun}"


def _with_unit(number: str, unit: str, rest: str | None) -> str:
    """Returns a number, a masculine or neuter unit and the number of its parts: "ein Euro 50"."""
    return f"{'ein' if number == '1' else number} {unit}" + (f" {int(rest)}" if rest and int(rest) else "")


_GERMAN_NUMBER = r"\d{1,3}(?:\.\d{3})+|\d+"
_NOUNS = "|".join((*MONTHS["german"], *_DE["nouns_with_ordinals"]))
_GERMAN: tuple[_Rule, ...] = (
    (r"(?<=[A-Za-zäöüß])str\.", lambda m: "straße"),
    (r"\bStr\.", lambda m: "Straße"),
    (r"\b(\d{1,2})\.(0?[1-9]|1[0-2])\.(\d{4})\b", lambda m: f"{m[1]}. {MONTHS['german'][int(m[2]) - 1]} {m[3]}"),
    (rf"(?:(\b\w+ )?\b([Dd]er |[Dd]ie |[Dd]as ))?\b(\d{{1,2}})\. ({_NOUNS})\b", _german_ordinal),
    (r"\b(\d{1,2}):(\d\d)(?: Uhr)?\b", lambda m: _with_unit(str(int(m[1])), "Uhr", m[2])),
    (r"\b(\d{1,2})\.(\d\d) Uhr\b", lambda m: _with_unit(str(int(m[1])), "Uhr", m[2])),
    (r"\b1 Uhr\b", lambda m: "ein Uhr"),
    (rf"\b({_GERMAN_NUMBER})(?:,(\d\d))? ?(?:€|Euro\b)", lambda m: _with_unit(m[1], "Euro", m[2])),
    (rf"(?<=\d) ?({'|'.join(map(re.escape, _DE['units']))})(?!\w)", lambda m: f" {_DE['units'][m[1]]}"),
    (r"(?<![\d.,])1[1-9]\d\d(?![\d.,]*\d)", lambda m: _german_year(int(m[0]))),
    (r"€", lambda m: "Euro"),
    (r"&", lambda m: "und"),
)
NORMALIZERS = {"english": _normalizer("english", _ENGLISH), "german": _normalizer("german", _GERMAN)}
"""Convert the written form of a language to the spoken one."""
