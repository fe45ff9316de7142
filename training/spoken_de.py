"""How written German is read out, where espeak-ng reads it otherwise than people do.

Numbers by themselves it reads well; what is put right is ordinals, dates, times, money, years, units, abbreviations.
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
_COUNTED = ("Platz", "Mal", "Stock", "Etage", "Klasse", "Geburtstag", "Kapitel", "Tag", "Woche", "Jahrhundert")
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
    """42 as "zweiundvierzig", below 100."""
    if number < len(_ONES):
        return "eins" if number == 1 else _ONES[number]
    ten, one = _TENS[number // 10 - 2], number % 10
    return f"{_ONES[one]}und{ten}" if one else ten


def ordinal(number: int) -> str:
    """42 as "zweiundvierzigste", below 100."""
    return _ORDINALS.get(number, f"{cardinal(number)}{'te' if number < 20 else 'ste'}")


def year(number: int) -> str:
    """1998 as "neunzehnhundertachtundneunzig", from 1100 to 1999."""
    return f"{cardinal(number // 100)}hundert{cardinal(number % 100) if number % 100 else ''}"


def _ordered(found: re.Match[str]) -> str:
    """After a nominative's article "dritte", after anything else "dritten"."""
    before, article, number, noun = found.groups(default="")
    nominative = article and not re.fullmatch(_PREPOSITIONS, before.strip().lower())
    return f"{before}{article}{ordinal(int(number))}{'' if nominative else 'n'} {noun}"


def _counted(number: str) -> str:
    """As it stands before a noun that is not feminine: 1 as "ein", others as they are."""
    return "ein" if number == "1" else number


def _time(found: re.Match[str]) -> str:
    minute = int(found[2])
    return f"{_counted(str(int(found[1])))} Uhr{f' {minute}' if minute else ''}"


def _money(found: re.Match[str]) -> str:
    cents = int(found[2] or 0)
    return f"{_counted(found[1])} Euro{f' {cents}' if cents else ''}"


_NUMBER = r"\d{1,3}(?:\.\d{3})+|\d+"
_RULES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"(?<=[A-Za-zäöüß])str\.", lambda m: "straße"),
    (r"\bStr\.", lambda m: "Straße"),
    (
        r"\b(\d{1,2})\.(0?[1-9]|1[0-2])\.(\d{4})\b",
        lambda m: f"{m[1]}. {MONTHS[int(m[2]) - 1]} {m[3]}",
    ),
    (rf"(?:(\b\w+ )?\b([Dd]er |[Dd]ie |[Dd]as ))?\b(\d{{1,2}})\. ({'|'.join((*MONTHS, *_COUNTED))})\b", _ordered),
    (r"\b(\d{1,2}):(\d\d)(?: Uhr)?\b", _time),
    (r"\b(\d{1,2})\.(\d\d) Uhr\b", _time),
    (r"\b1 Uhr\b", lambda m: "ein Uhr"),
    (rf"\b({_NUMBER})(?:,(\d\d))? ?(?:€|Euro\b)", _money),
    (r"(?<=\d) ?(km/h|kg|km|cm|mm|m|°C|Mio\.|Mrd\.)(?!\w)", lambda m: f" {_UNITS[m[1]]}"),
    (r"(?<![\d.,])1[1-9]\d\d(?![\d.,]*\d)", lambda m: year(int(m[0]))),
    (r"€", lambda m: "Euro"),
    (r"&", lambda m: "und"),
)
_COMPILED = tuple((re.compile(pattern), say) for pattern, say in _RULES)
_SHORT = re.compile("|".join(rf"(?<![\w.]){re.escape(short)}" for short in _ABBREVIATIONS))


def spoken(written: str) -> str:
    """The text as espeak-ng is given it. An abbreviation's full stop that also ends the sentence is kept."""
    ends = written.endswith((*_ABBREVIATIONS, "str.", "Str.", "Mio.", "Mrd."))
    text = _SHORT.sub(lambda found: _ABBREVIATIONS[found[0]], written)
    for pattern, say in _COMPILED:
        text = pattern.sub(say, text)
    return f"{text}." if ends else text
