"""German text normalization, where espeak-ng does not read the text as people do.

It reads plain numbers well; normalized are ordinals, dates, times, money, years, units and abbreviations.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_SMALL = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf"
_TEENS = "dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
_TEN = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
_ONES, _TENS = (*_SMALL.split(), *_TEENS.split()), _TEN.split()
_ORDINALS = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}
_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
MONTHS = _MONTHS.split()
_NOUNS_WITH_ORDINALS = (
    "Platz",
    "Mal",
    "Stock",
    "Etage",
    "Klasse",
    "Geburtstag",
    "Kapitel",
    "Tag",
    "Woche",
    "Jahrhundert",
)
_PREPOSITIONS = "an|auf|aus|bei|in|mit|nach|seit|von|vor|zu"
_UNITS = {
    "km/h": "Kilometer pro Stunde",
    "kg": "Kilogramm",
    "km": "Kilometer",
    "cm": "Zentimeter",
    "mm": "Millimeter",
    "m": "Meter",
    "°C": "Grad Celsius",
    "Mio.": "Millionen",
    "Mrd.": "Milliarden",
}
_ABBREVIATIONS = {
    "z. B.": "zum Beispiel",
    "z.B.": "zum Beispiel",
    "d. h.": "das heißt",
    "d.h.": "das heißt",
    "u. a.": "unter anderem",
    "usw.": "und so weiter",
    "bzw.": "beziehungsweise",
    "ca.": "zirka",
    "vgl.": "vergleiche",
    "evtl.": "eventuell",
    "Dr.": "Doktor",
    "Prof.": "Professor",
    "Hr.": "Herr",
    "Nr.": "Nummer",
    "St.": "Sankt",
}


def cardinal(number: int) -> str:
    """Returns the word of a number below 100: 42 as "zweiundvierzig"."""
    if number < len(_ONES):
        return "eins" if number == 1 else _ONES[number]
    ten, one = _TENS[number // 10 - 2], number % 10
    return f"{_ONES[one]}und{ten}" if one else ten


def ordinal(number: int) -> str:
    """Returns the word of an ordinal below 100: 42 as "zweiundvierzigste"."""
    return _ORDINALS.get(number, f"{cardinal(number)}{'te' if number < 20 else 'ste'}")


def year(number: int) -> str:
    """Returns the word of a year from 1100 to 1999: 1998 as "neunzehnhundertachtundneunzig"."""
    return f"{cardinal(number // 100)}hundert{cardinal(number % 100) if number % 100 else ''}"


def _inflected_ordinal(found: re.Match[str]) -> str:
    """Returns "dritte" after an article in the nominative, "dritten" otherwise."""
    before, article, number, noun = found.groups(default="")
    nominative = article and not re.fullmatch(_PREPOSITIONS, before.strip().lower())
    return f"{before}{article}{ordinal(int(number))}{'' if nominative else 'n'} {noun}"


def _before_noun(number: str) -> str:
    """Returns a number before a masculine or neuter noun: "ein" for 1, the others unchanged."""
    return "ein" if number == "1" else number


def _time(found: re.Match[str]) -> str:
    minute = int(found[2])
    return f"{_before_noun(str(int(found[1])))} Uhr{f' {minute}' if minute else ''}"


def _money(found: re.Match[str]) -> str:
    cents = int(found[2] or 0)
    return f"{_before_noun(found[1])} Euro{f' {cents}' if cents else ''}"


_NUMBER = r"\d{1,3}(?:\.\d{3})+|\d+"
_RULES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"(?<=[A-Za-zäöüß])str\.", lambda m: "straße"),
    (r"\bStr\.", lambda m: "Straße"),
    (
        r"\b(\d{1,2})\.(0?[1-9]|1[0-2])\.(\d{4})\b",
        lambda m: f"{m[1]}. {MONTHS[int(m[2]) - 1]} {m[3]}",
    ),
    (
        rf"(?:(\b\w+ )?\b([Dd]er |[Dd]ie |[Dd]as ))?\b(\d{{1,2}})\. ({'|'.join((*MONTHS, *_NOUNS_WITH_ORDINALS))})\b",
        _inflected_ordinal,
    ),
    (r"\b(\d{1,2}):(\d\d)(?: Uhr)?\b", _time),
    (r"\b(\d{1,2})\.(\d\d) Uhr\b", _time),
    (r"\b1 Uhr\b", lambda m: "ein Uhr"),
    (rf"\b({_NUMBER})(?:,(\d\d))? ?(?:€|Euro\b)", _money),
    (r"(?<=\d) ?(km/h|kg|km|cm|mm|m|°C|Mio\.|Mrd\.)(?!\w)", lambda m: f" {_UNITS[m[1]]}"),
    (r"(?<![\d.,])1[1-9]\d\d(?![\d.,]*\d)", lambda m: year(int(m[0]))),
    (r"€", lambda m: "Euro"),
    (r"&", lambda m: "und"),
)
_COMPILED = tuple((re.compile(pattern), replace) for pattern, replace in _RULES)
_ABBREVIATION = re.compile("|".join(rf"(?<![\w.]){re.escape(short)}" for short in _ABBREVIATIONS))


def normalize(written: str) -> str:
    """Returns the text for espeak-ng. The full stop of an abbreviation at the end of the sentence is kept."""
    ends = written.endswith((*_ABBREVIATIONS, "str.", "Str.", "Mio.", "Mrd."))
    text = _ABBREVIATION.sub(lambda found: _ABBREVIATIONS[found[0]], written)
    for pattern, replace in _COMPILED:
        text = pattern.sub(replace, text)
    return f"{text}." if ends else text
