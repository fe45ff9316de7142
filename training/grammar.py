"""Draws random sentences from a grammar file per language, with numbers in the language's written form."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from .normalize import MONTHS, TEXT_DIRECTORY


class Grammar:
    """Draws sentences of a language."""

    def __init__(self, language: str, rng: random.Random, dictionary: list[str]) -> None:
        """dictionary: options of `{word}`; the grammar's nouns if empty."""
        file, nouns, number_generators = _LANGUAGES[language]
        self._rng = rng
        self._options = _read_grammar((TEXT_DIRECTORY / file).read_text("utf-8"))
        self._options["word"] = dictionary or self._options[nouns]
        self._numbers = number_generators(rng)

    def sentence(self) -> str:
        """Returns a sentence without its initial capital."""
        text = "{sentence}"
        while "{" in text:
            text = re.sub(r"\{(\w+)\}", lambda found: self._draw(found[1]), text)
        return text

    def _draw(self, name: str) -> str:
        number = self._numbers.get(name)
        return number() if number else self._rng.choice(self._options[name])


def _read_grammar(text: str) -> dict[str, list[str]]:
    """Returns the options of each name."""
    options: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if found := re.match(r"(\w+):(?: (.*))?$", line):
            name, line = found[1], found[2] or ""
            options[name] = []
        options[name] += [option.strip() for option in line.split("|") if option.strip()]
    return options


_Numbers = dict[str, Callable[[], str]]
"""Generators of numbers, by their name in the grammar."""


def _english(rng: random.Random) -> _Numbers:
    integer, choice, months = rng.randint, rng.choice, MONTHS["english"]

    def money() -> str:
        amount = choice([str(integer(1, 20)), str(integer(1, 99)), str(integer(100, 999)), f"{integer(1000, 9999):,}"])
        return choice("$$$£€") + amount + (f".{integer(1, 99):02}" if len(amount) < 4 and rng.random() < 0.6 else "")

    def decimals() -> str:
        return str(integer(1, 99)) + choice(["", f".{integer(1, 9)}"])

    def date() -> str:
        day, month, year = integer(1, 28), choice(months), integer(1700, 2039)
        return choice([f"{day} {month} {year}", f"{month} {day}, {year}"])

    return {
        "int": lambda: str(choice([integer(0, 20), integer(0, 100), integer(100, 999)])),
        "small": lambda: str(integer(1, 20)),
        "bigint": lambda: f"{choice([integer(1, 99) * 100, integer(1000, 99_999), integer(1, 99) * 100_000]):,}",
        "money": money,
        "bigmoney": lambda: f"{choice('$£€')}{decimals()} {choice(['million', 'billion'])}",
        "date": date,
        "shortdate": lambda: choice([f"{integer(1, 31)} {choice(months)}", f"{choice(months)} {integer(1, 31)}"]),
        "year": lambda: str(choice([integer(1800, 2039), integer(1100, 1999)])),
        "time": lambda: f"{integer(1, 12)}:{choice([integer(0, 59), choice([0, 15, 30, 45])]):02}",
        "percent": lambda: f"{decimals()}%",
        "decimal": lambda: f"{integer(0, 20)}.{integer(1, 99)}",
        "ordinal": lambda: _ordinal(integer(1, 31)),
        "phone": lambda: f"{integer(200, 999)}-{integer(0, 9999):04}",
        "digitrow": lambda: " ".join(str(integer(0, 9)) for _ in range(integer(3, 8))),
    }


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _german(rng: random.Random) -> _Numbers:
    integer, choice, months = rng.randint, rng.choice, MONTHS["german"]

    def decimals() -> str:
        return str(integer(2, 99)) + choice(["", f",{integer(1, 9)}"])

    def money() -> str:
        amount = choice(
            [str(integer(1, 20)), str(integer(1, 99)), str(integer(100, 999)), _group_digits(integer(1000, 9999))]
        )
        cents = f",{integer(1, 99):02}" if len(amount) < 4 and rng.random() < 0.6 else ""
        return f"{amount}{cents} {choice(['Euro', '€'])}"

    def time() -> str:
        hour, minute = integer(0, 23), choice([integer(0, 59), choice([0, 15, 30, 45])])
        return choice([f"{hour}:{minute:02} Uhr", f"{hour}:{minute:02} Uhr", f"{hour}.{minute:02} Uhr", f"{hour} Uhr"])

    def date() -> str:
        day, month, year = integer(1, 28), integer(1, 12), integer(1700, 2039)
        return choice([f"{day}. {months[month - 1]} {year}", f"{day:02}.{month:02}.{year}"])

    return {
        "int": lambda: str(choice([integer(2, 20), integer(2, 100), integer(100, 999)])),
        "small": lambda: str(integer(2, 20)),
        "bigint": lambda: _group_digits(
            choice([integer(1, 99) * 100, integer(1000, 99_999), integer(1, 99) * 100_000])
        ),
        "money": money,
        "bigmoney": lambda: f"{decimals()} {choice(['Millionen Euro', 'Milliarden Euro', 'Mio. €'])}",
        "date": date,
        "shortdate": lambda: f"{integer(1, 31)}. {choice(months)}",
        "year": lambda: str(choice([integer(1800, 2039), integer(1100, 1999)])),
        "time": time,
        "percent": lambda: f"{decimals()} {choice(['%', 'Prozent'])}",
        "decimal": lambda: f"{integer(0, 20)},{integer(1, 99)}",
        "ordinal": lambda: f"{integer(1, 31)}.",
        "digitrow": lambda: " ".join(str(integer(0, 9)) for _ in range(integer(3, 8))),
    }


def _group_digits(number: int) -> str:
    return f"{number:,}".replace(",", ".")


_LANGUAGES = {"english": ("grammar.txt", "nouns1", _english), "german": ("grammar_de.txt", "n", _german)}
"""The grammar file, the name of its nouns, and the number generators."""
