"""English text normalization: numbers, dates, times, money and abbreviations as words.

The talker learns from the written form, and espeak-ng reads the normalized one: it decides how the talker reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_SMALL = """
zero one two three four five six seven eight nine
ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
"""
_TEN = "zero ten twenty thirty forty fifty sixty seventy eighty ninety"
_MONTHS = "January February March April May June July August September October November December"
_ONES, _TENS, MONTHS = _SMALL.split(), _TEN.split(), _MONTHS.split()
_SCALES = ((1_000_000_000, "billion"), (1_000_000, "million"), (1_000, "thousand"), (100, "hundred"))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_MONEY = {"$": ("dollar", "cent"), "£": ("pound", "pence"), "€": ("euro", "cent")}
_UNITS = {
    "kg": "kilogram",
    "km": "kilometer",
    "cm": "centimeter",
    "mm": "millimeter",
    "lb": "pound",
    "ft": "foot",
    "mph": "mile per hour",
}
_ABBREVIATIONS = {
    "Dr.": "Doctor",
    "Mr.": "Mister",
    "Mrs.": "Missis",
    "Ms.": "Miss",
    "Prof.": "Professor",
    "Capt.": "Captain",
    "Gen.": "General",
    "Sgt.": "Sergeant",
    "Mt.": "Mount",
    "Ave.": "Avenue",
    "Rd.": "Road",
    "Dept.": "Department",
    "Jr.": "Junior",
    "Sr.": "Senior",
    "Inc.": "Incorporated",
    "Ltd.": "Limited",
    "Co.": "Company",
    "approx.": "approximately",
    "etc.": "et cetera",
    "e.g.": "for example",
    "i.e.": "that is",
    "vs.": "versus",
    "a.m.": "A M",
    "p.m.": "P M",
}


def cardinal(number: int) -> str:
    """Returns the words of a number: 42 as "forty two"."""
    for scale, name in _SCALES:
        if number >= scale:
            rest = number % scale
            return f"{cardinal(number // scale)} {name}" + (f" {cardinal(rest)}" if rest else "")
    if number < len(_ONES):
        return _ONES[number]
    return _TENS[number // 10] + (f" {_ONES[number % 10]}" if number % 10 else "")


def ordinal(number: int) -> str:
    """Returns the words of an ordinal: 42 as "forty second"."""
    *start, last = cardinal(number).split()
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return " ".join((*start, _ORDINALS.get(last, regular)))


def year(number: int) -> str:
    """Returns the words of a year: 1998 as "nineteen ninety eight"."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def digits(text: str) -> str:
    """Returns the digits of a text as words: "505" as "five zero five"."""
    return " ".join(_ONES[int(digit)] for digit in text if digit.isdigit())


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _money(found: re.Match[str]) -> str:
    sign, whole, part, scale = found.groups()
    name, small = _MONEY[sign]
    amount = _whole(whole)
    if scale:
        point = f" point {digits(part)}" if part else ""
        return f"{cardinal(amount)}{point} {scale} {name}s"
    words = f"{cardinal(amount)} {name}{'' if amount == 1 else 's'}"
    cents = int(part or 0)
    plural = "" if cents == 1 or small == "pence" else "s"
    return f"{words} and {cardinal(cents)} {small}{plural}" if cents else words


def _time(found: re.Match[str]) -> str:
    hour, minute = int(found[1]), int(found[2])
    if minute == 0:
        return f"{cardinal(hour)} o'clock" if not found[3] else f"{cardinal(hour)}{found[3]}"
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}{found[3] or ''}"


def _unit(found: re.Match[str]) -> str:
    first, _, rest = _UNITS[found[2]].partition(" ")
    name = {"foot": "feet"}.get(first, f"{first}s") if found[1] != "1" else first
    return f"{found[1]} {name}{' ' if rest else ''}{rest}"


def _date(day: str, month: str, number: str | None) -> str:
    return f"the {ordinal(int(day))} of {month}" + (f" {year(int(number))}" if number else "")


_MONTH = f"({'|'.join(MONTHS)})"
_YEAR = r"1[1-9]\d\d|20\d\d"
_NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"
_RULES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"\bSt\. (?=[A-Z])", lambda m: "Saint "),
    (r"(?<=[a-z] )St\.", lambda m: "Street"),
    (r"\bNo\. (?=\d)", lambda m: "number "),
    (rf"\b(\d{{1,2}}) {_MONTH}(?: (\d{{4}}))?\b", lambda m: _date(m[1], m[2], m[3])),
    (
        rf"\b{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?(?:, (\d{{4}}))?\b(?!:)",
        lambda m: f"{m[1]} {ordinal(int(m[2]))}" + (f", {year(int(m[3]))}" if m[3] else ""),
    ),
    (rf"([$£€])({_NUMBER})(?:\.(\d+))?(?: (million|billion|thousand))?", _money),
    (r"\b(\d{1,2}):(\d\d)\b( [AP] M)?", _time),
    (r"\b(\d{3})-(\d{4})\b", lambda m: f"{digits(m[1])}, {digits(m[2])}"),
    (rf"\b({_NUMBER}) (kg|km|cm|mm|lb|ft|mph)\b", _unit),
    (r"(?<=\d) ?%", lambda m: " percent"),
    (r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1]))),
    (
        rf"\b([Bb]etween) ({_YEAR}) and ({_YEAR})\b",
        lambda m: f"{m[1]} {year(int(m[2]))} and {year(int(m[3]))}",
    ),
    (
        rf"\b((?i:in|since|until|before|after|year|from|of|summer|winter|spring)) ({_YEAR})\b",
        lambda m: f"{m[1]} {year(int(m[2]))}",
    ),
    (r"\b(\d+)\.(\d+)\b", lambda m: f"{cardinal(int(m[1]))} point {digits(m[2])}"),
    (rf"(?<![\d.])(?:{_NUMBER})(?![\d])", lambda m: cardinal(_whole(m[0]))),
    (r"&", lambda m: "and"),
)
_COMPILED = tuple((re.compile(pattern), replace) for pattern, replace in _RULES)
_ABBREVIATION = re.compile("|".join(rf"(?<![\w.]){re.escape(short)}" for short in _ABBREVIATIONS))


def normalize(written: str) -> str:
    """Returns the spoken form of a text. The full stop of an abbreviation at the end of the sentence is kept."""
    ends = written.endswith(".") and any(written.endswith(short) for short in (*_ABBREVIATIONS, " St."))
    text = _ABBREVIATION.sub(lambda found: _ABBREVIATIONS[found[0]], written)
    for pattern, replace in _COMPILED:
        text = pattern.sub(replace, text)
    return f"{text}." if ends else text
