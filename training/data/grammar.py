"""Draws random sentences from a grammar file per language, with numbers in the language's written form."""

import random
import re
from collections.abc import Callable

from training.data.normalize import MONTHS, TEXT_DIRECTORY

_LANGUAGES = {"english": ("grammar.txt", "nouns1"), "german": ("grammar_de.txt", "n")}
"""The grammar file, and the name of its nouns."""


class Grammar:
    """Draws sentences of a language."""

    def __init__(self, language: str, rng: random.Random, dictionary: list[str]) -> None:
        """dictionary: options of `{word}`; the grammar's nouns if empty."""
        file, nouns = _LANGUAGES[language]
        self.language = language
        self._rng = rng
        self._options = _read_grammar((TEXT_DIRECTORY / file).read_text("utf-8"))
        self._options["word"] = dictionary or self._options[nouns]
        self._numbers = _number_generators(language, rng)

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


def _number_generators(language: str, rng: random.Random) -> dict[str, Callable[[], str]]:
    integer, choice, months, english = rng.randint, rng.choice, MONTHS[language], language == "english"
    # German inflects "1".
    point, comma, lowest, lowest_small = (".", ",", 0, 1) if english else (",", ".", 2, 2)

    def grouped(number: int) -> str:
        return f"{number:,}".replace(",", comma)

    def decimals() -> str:
        return str(integer(lowest_small, 99)) + choice(["", f"{point}{integer(1, 9)}"])

    def amount() -> str:
        return choice([*map(str, (integer(1, 20), integer(1, 99), integer(100, 999))), grouped(integer(1000, 9999))])

    def cents(amount: str) -> str:
        return f"{point}{integer(1, 99):02}" if len(amount) < 4 and rng.random() < 0.6 else ""

    def minute() -> int:
        return choice([integer(0, 59), choice([0, 15, 30, 45])])

    def english_money() -> str:
        whole = amount()
        return choice("$$$£€") + whole + cents(whole)

    def english_date() -> str:
        day, month, year = integer(1, 28), choice(months), integer(1700, 2039)
        return choice([f"{day} {month} {year}", f"{month} {day}, {year}"])

    def english_ordinal() -> str:
        number = integer(1, 31)
        return f"{number}{'th' if 10 < number < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"

    def german_money() -> str:
        whole = amount()
        return f"{whole}{cents(whole)} {choice(['Euro', '€'])}"

    def german_date() -> str:
        day, month, year = integer(1, 28), integer(1, 12), integer(1700, 2039)
        return choice([f"{day}. {months[month - 1]} {year}", f"{day:02}.{month:02}.{year}"])

    def german_time() -> str:
        hour, past = integer(0, 23), minute()
        return choice([f"{hour}:{past:02} Uhr", f"{hour}:{past:02} Uhr", f"{hour}.{past:02} Uhr", f"{hour} Uhr"])

    both = {
        "int": lambda: str(choice([integer(lowest, 20), integer(lowest, 100), integer(100, 999)])),
        "small": lambda: str(integer(lowest_small, 20)),
        "bigint": lambda: grouped(choice([integer(1, 99) * 100, integer(1000, 99_999), integer(1, 99) * 100_000])),
        "year": lambda: str(choice([integer(1800, 2039), integer(1100, 1999)])),
        "decimal": lambda: f"{integer(0, 20)}{point}{integer(1, 99)}",
        "digitrow": lambda: " ".join(str(integer(0, 9)) for _ in range(integer(3, 8))),
    }
    if english:
        return both | {
            "money": english_money,
            "bigmoney": lambda: f"{choice('$£€')}{decimals()} {choice(['million', 'billion'])}",
            "date": english_date,
            "shortdate": lambda: choice([f"{integer(1, 31)} {choice(months)}", f"{choice(months)} {integer(1, 31)}"]),
            "time": lambda: f"{integer(1, 12)}:{minute():02}",
            "percent": lambda: f"{decimals()}%",
            "ordinal": english_ordinal,
            "phone": lambda: f"{integer(200, 999)}-{integer(0, 9999):04}",
        }
    return both | {
        "money": german_money,
        "bigmoney": lambda: f"{decimals()} {choice(['Millionen Euro', 'Milliarden Euro', 'Mio. €'])}",
        "date": german_date,
        "shortdate": lambda: f"{integer(1, 31)}. {choice(months)}",
        "time": german_time,
        "percent": lambda: f"{decimals()} {choice(['%', 'Prozent'])}",
        "ordinal": lambda: f"{integer(1, 31)}.",
    }
