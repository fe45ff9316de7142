"""How numbers are spoken in one language: integers, decimals, digits, years, fractions, and what is counted. Pure."""

import functools
import re
import unicodedata
from fractions import Fraction

from unicode_rbnf import FormatPurpose, RbnfEngine

from syrinx_stages.normalization.languages import Words

MAX_DIGITS = 15
"""Longer numbers, and those that begin with 0, are read digit by digit."""
_MAX_CODE_DIGITS = 4
"""Longer numbers within words, such as those of a flight or a product, are read digit by digit."""
_SOFT_HYPHEN = "\u00ad"
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"
_IDEOGRAPHIC_ZERO = "〇"
"""Chinese and Japanese write it in the names of numbers, as the other characters for digits, which are letters."""
_MAX_DENOMINATOR = 1000
"""Of numerals; the largest one is 320."""
_YEARS = range(1100, 2100)
_PLURAL_END = re.compile("y$")


class SpokenNumbers:
    """The numbers of one language. Thread-safe."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._engine = RbnfEngine.for_language(words.code)
        # A name takes up to a millisecond, and a text may consist of digits.
        self.spell = functools.lru_cache(maxsize=4096)(self._spell)

    def _spell(self, number: int, purpose: FormatPurpose = FormatPurpose.CARDINAL, rules: str | None = None) -> str:
        """Returns the name of a number, by a rule set of CLDR if `rules` is one that the language has."""
        found = self._engine.format_number(number, purpose)
        return found.text_by_ruleset.get(rules or "", found.text).replace(_SOFT_HYPHEN, "")

    def digits(self, digits: str) -> str:
        """Returns the digits one by one."""
        return self._words.space.join(self.cardinal(int(digit)) for digit in digits)

    def cardinal(self, number: int) -> str:
        """Returns the name of an integer."""
        return self.spell(number, rules=self._words.cardinal)

    def code(self, digits: str) -> str:
        """Returns the digits of a word, such as A4 or B1204."""
        return self.digits(digits) if digits[0] == "0" or len(digits) > _MAX_CODE_DIGITS else self.integer(digits)

    def integer(self, digits: str) -> str:
        """Returns the name of an integer, or its digits: see `MAX_DIGITS`."""
        reads_digits = len(digits) > MAX_DIGITS or (len(digits) > 1 and digits[0] == "0")
        return self.digits(digits) if reads_digits else self.cardinal(int(digits))

    def number(self, written: str) -> tuple[str, int | None]:
        """Returns how a number is spoken, and its value if it is an integer of at most `MAX_DIGITS`."""
        words = self._words
        integer, _, decimals = written.partition(words.decimal)
        digits = re.sub(r"\D", "", integer)
        spoken = self.integer(digits)
        if decimals:
            return words.space.join((spoken, words.point, self.digits(decimals))), None
        return spoken, int(digits) if len(digits) <= MAX_DIGITS else None

    def value(self, written: str) -> float:
        """Returns the value of a number."""
        integer, _, decimals = written.partition(self._words.decimal)
        return float(re.sub(r"\D", "", integer) + "." + (decimals or "0"))

    def counted(self, written: str, forms: tuple[str, ...]) -> str:
        """Returns a number with what it counts, in the form that belongs to it."""
        spoken, value = self.number(written)
        if value == 1 and self._words.one:
            spoken = self._words.one
        form = forms[_form(value, len(forms))]
        if "{" not in form:
            return self._words.space.join((spoken, form))
        return form.format(n=spoken, f=self.agreeing(value, spoken))

    def agreeing(self, value: int | None, spoken: str) -> str:
        """Returns an integer in the form that agrees with nouns that need one; other numbers are `spoken`."""
        return spoken if value is None else self.spell(value, rules=self._words.other_cardinal)

    def fraction(self, numerator: str, denominator: str) -> str:
        """Returns a fraction; two numbers if the language has no name for it."""
        words, n, d = self._words, int(numerator), int(denominator)
        one = words.one if n == 1 and words.one else self.cardinal(n)
        if not words.fractions and 0 < n < d:
            return words.fraction.format(n=self.cardinal(n), d=self.cardinal(d))
        if not 0 < n < d or d - 2 >= len(words.fractions):
            return words.space.join((self.cardinal(n), words.over, self.cardinal(d)))
        forms = words.fractions[d - 2].split()
        name = forms[0 if n == 1 else -1]
        return words.fraction.format(n=one, f=self.agreeing(n, one), d=name)

    def year(self, digits: str) -> str:
        """Returns the name of a year of four digits."""
        words = self._words
        if words.year == "digits":
            return self.digits(digits)
        is_year = int(digits) in _YEARS and (words.years or words.year)
        return self.spell(int(digits), FormatPurpose.YEAR) if is_year else self.cardinal(int(digits))

    def decade(self, digits: str) -> str:
        """Returns the name of a decade in English, from its first year, of two or four digits."""
        spoken = self.year(digits) if len(digits) == 4 else self.cardinal(int(digits))
        return _PLURAL_END.sub("ie", spoken) + "s"


def _form(value: int | None, count: int) -> int:
    """Returns which of `count` forms of a noun a number takes; None is one with decimals."""
    if count < 3:
        return 0 if value == 1 or count == 1 else 1
    if value is None:
        return 1
    if value % 10 == 1 and value % 100 != 11:
        return 0
    return 1 if value % 10 in (2, 3, 4) and value % 100 not in (12, 13, 14) else 2


def is_numeral(character: str) -> bool:
    """Returns whether a character is a digit or another numeral, such as ½, ① or Ⅳ."""
    if character.isascii():
        return character.isdigit()
    return character != _IDEOGRAPHIC_ZERO and unicodedata.category(character) in ("Nd", "No", "Nl")


def plain_digits(text: str) -> str:
    """Returns a text with the numerals of all scripts in digits of ASCII, such as ½ as 1/2. Superscripts stay."""
    if text.isascii():
        return text
    return "".join(map(_plain, ("", *text), text))


def _plain(before: str, character: str) -> str:
    if not is_numeral(character) or character in SUPERSCRIPTS:
        return character
    # ①② are two numbers, and 3½ has two; the digits of a number have the same form.
    is_separate = before != "" and is_numeral(before) and not _same_number(before, character)
    return (" " if is_separate else "") + _digits(character)


def _same_number(first: str, second: str) -> bool:
    return (first.isdecimal() and second.isdecimal()) or (first in _SUBSCRIPTS and second in _SUBSCRIPTS)


def _digits(numeral: str) -> str:
    """Returns a numeral in digits of ASCII; some are fractions."""
    return str(Fraction(unicodedata.numeric(numeral)).limit_denominator(_MAX_DENOMINATOR))
