"""Writes numbers, dates, times, money, units, addresses and abbreviations of a text as words that are spoken. Pure.

The names of numbers are those of CLDR's rules (unicode-rbnf); `languages.toml` has the words around them. Digits that
no rule recognizes are read as numbers or one by one, so that none is left, and no other numeral such as ① or ².
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence

from unicode_rbnf import FormatPurpose

from syrinx_stages.normalization.addresses import spoken_addresses
from syrinx_stages.normalization.languages import Words, detect, languages
from syrinx_stages.normalization.spoken_numbers import SUPERSCRIPTS, SpokenNumbers, plain_digits

LETTERS = "0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0400-\u04ff"
"""Digits and the letters of scripts that separate words; ideographs touch numbers."""
_LEFT = rf"(?<![{LETTERS}.,:/])(?<!\d[-–])"
_RIGHT = rf"(?![{LETTERS}%]|[.,:/–-]\d)"
_END = rf"(?![{LETTERS}])"
SPACE = "[ \u00a0\u202f]"
_TO = rf"{SPACE}?[-–~〜～]{SPACE}?"
_DAY = r"(?:[01]?\d|2[0-3])"
_MIN_PHONE_DIGITS = 7
HALF_OF_DAY = r"[ap]\.?m\b"
"""After a time, in any case."""
_TYPED_QUOTES = str.maketrans(dict.fromkeys("‘’‚‛‹›", "'") | dict.fromkeys("“”„‟«»", '"'))
_COMPARISONS = "=<>≈±"
"""Symbols that may stand between a word and a number."""

_POWER = re.compile(f"[⁺⁻]?[{SUPERSCRIPTS}]+")
_IN_LINE = str.maketrans("⁺⁻" + SUPERSCRIPTS, "+-0123456789")

_Rule = Callable[[re.Match[str]], str]


def normalize(text: str, names: Sequence[str]) -> str:
    """Returns a text as it is spoken in the one of the languages `names` that it is in. Other words stay, in order.

    Without languages, or in one that is not supported, nothing is changed.
    """
    name = detect(text, names)
    return text if name not in languages() else with_typed_quotes(_normalizer(name).apply(text))


def with_typed_quotes(text: str) -> str:
    """Returns a text of the same length with the quotation marks and apostrophes of a keyboard, which voices know."""
    return text.translate(_TYPED_QUOTES)


def code_of(text: str, names: Sequence[str]) -> str:
    """Returns the code of the one of the languages that a text is in; that of English if it is not supported."""
    name = detect(text, names)
    return languages()[name if name in languages() else "english"].code


def load_languages(names: Sequence[str]) -> None:
    """Loads the rules of languages, which takes some 10 ms each, so that no request waits for it."""
    for name in names:
        normalize("1", (name,))


@functools.cache
def _normalizer(name: str) -> "_Normalizer":
    return _Normalizer(languages()[name])


def either_of(names: Iterable[str]) -> str:
    """Returns a pattern that matches each of some words, the longest one that it can."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))


class _Normalizer:
    """The rules of one language. Thread-safe."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._numbers = SpokenNumbers(words)
        self._months = words.months.split()
        lists = (self._forms(), self._english() if words.code == "en" else [], self._quantities(), self._rest())
        self._rules = [(re.compile(pattern), rule) for rules in lists for pattern, rule in rules if pattern]
        either = either_of(words.short)
        self._short = re.compile(rf"(?<![{LETTERS}])(?:{either})(?![{LETTERS}/])") if either else None

    def apply(self, text: str) -> str:
        """Returns the text as it is spoken."""
        text = spoken_addresses(plain_digits(text), self._words)
        if self._short is not None:
            text = self._short.sub(lambda found: self._words.short[found[0]], text)
        if any(map(str.isdecimal, text)):
            for pattern, rule in self._rules:
                text = pattern.sub(rule, text)
        return _POWER.sub(self._power, text)

    # Rules, in order: each sees what the ones before have left -------------------------------------------------------

    def _forms(self) -> list[tuple[str, _Rule]]:
        """Returns what is recognized by its form alone."""
        words, number, space = self._words, self._number_pattern(), self._words.space
        currency, scale, marks = either_of(words.money), self._scale_pattern(), either_of(words.marks)
        to = f"{space}{words.to}{space}"
        phone = r"(?:\d-|\d (?=\())?(?:\(\d{2,5}\) ?|\d{3} (?=\d{3} \d{4}))?\d{1,5}"
        return [
            (rf"(?<![^\s(])[-−](?=(?:{currency})?\d)", lambda found: words.minus + space),
            (rf"{_LEFT}(?P<y>\d{{4}})(?P<mark>[-/.])(?P<m>\d\d?)(?P=mark)(?P<d>\d\d?){_RIGHT}", self._date),
            (rf"{_LEFT}(?P<d>\d\d?)(?P<mark>[-/.])(?P<m>\d\d?)(?P=mark)(?P<y>\d{{4}}){_RIGHT}", self._day_first),
            (rf"{_LEFT}(?P<d>\d\d?)(?P<mark>/)(?P<m>\d\d?)/(?P<y>\d\d){_RIGHT}", self._day_first),
            (r"(?<![\w.,])\+\d{1,4}(?:[ ./-]?\(?\d{2,5}\)?){1,7}(?!\d)", self._phone),
            (rf"{_LEFT}{phone}(?:-\d{{2,5}}|(?<=\d{{3}}) \d{{4}}){{1,5}}{_RIGHT}", self._phone),
            (rf"{_LEFT}(?P<symbol>{currency}) ?(?P<a>{number}){_TO}(?P<b>{number}{scale})(?!\d)", self._money_range),
            (rf"{_LEFT}(?P<a>{_DAY}:[0-5]\d){_TO}(?={_DAY}:[0-5]\d)", lambda found: found["a"] + to),
            (rf"{_LEFT}(?P<a>\d{{4}}){_TO}(?P<b>\d{{4}}){_RIGHT}", self._years),
            (rf"{_LEFT}(?P<a>{number}){_TO}(?=(?:{currency})?(?P<b>{number})(?![–-]|[.,:/]?\d))", self._range),
            (rf"{_LEFT}(?:(?P<w>\d\d?)[ -])?(?P<n>\d{{1,3}})/(?P<d>\d{{1,4}}){_RIGHT}", self._fraction),
            (rf"(?<![{LETTERS}])(?P<mark>{marks}){SPACE}?(?=\d)", lambda found: words.marks[found["mark"]] + space),
            (rf"(?<![{LETTERS}])v\.?(?=\d)", lambda found: words.version + space),
            (r"(?<=\d)(?: ?x ?|×)(?=\d)", lambda found: f"{space}{words.by}{space}"),
            (rf"{_LEFT}(?P<n>{number}) ?[x×]{_END}", lambda found: self._numbers.counted(found["n"], words.times)),
            (rf"{SPACE}?[{re.escape(''.join(words.symbols))}]{SPACE}?", self._symbol),
        ]

    def _english(self) -> list[tuple[str, _Rule]]:
        months = "|".join(self._months)
        return [
            (rf"{_LEFT}(?P<n>\d\d?(?::[0-5]\d)?)(?=[APap]\.?[Mm]\b)", lambda found: f"{found['n']} "),
            (r"(?P<before>\b(?i:the|early|late|mid)[ -])['’]?(?P<n>[2-9]0)['’]?s\b", self._decade),
            (rf"(?P<before>){_LEFT}(?P<n>\d{{3}}0)['’]?s\b", self._decade),
            (rf"\b(?P<before>{months}) (?P<n>\d\d?){_RIGHT}", self._month_day),
            (rf"(?:\bthe )?{_LEFT}(?P<n>\d\d?) (?P<month>{months})\b", self._day_month),
        ]

    def _quantities(self) -> list[tuple[str, _Rule]]:
        """Returns what is recognized by the words or symbols beside it."""
        words, number, months = self._words, self._number_pattern(), "|".join(self._months)
        currency, unit, ordinal = either_of(words.money), either_of(words.units), either_of(words.ordinals)
        articles = either_of(words.articles.split())
        scaled = rf"(?P<n>{number})(?P<scale>{self._scale_pattern()})"
        after_time = f"(?: {words.after_time})?" if words.after_time else ""
        return [
            (rf"{_LEFT}(?P<h>{_DAY}):(?P<m>[0-5]\d){after_time}{_RIGHT}" if words.time else "", self._time),
            (rf"{_LEFT}(?P<h>{_DAY}) ?h(?: ?(?P<m>[0-5]\d))?{_RIGHT}" if words.hour_mark else "", self._time),
            (rf"{_LEFT}(?P<h>\d+):(?P<m>\d+){_RIGHT}", self._ratio),
            (rf"(?<![A-Z])(?P<symbol>{currency}){SPACE}?{scaled}{_RIGHT}", self._money),
            (rf"{_LEFT}{scaled}{SPACE}?(?P<symbol>{currency}){_END}", self._money),
            (rf"{_LEFT}(?P<n>{number}){SPACE}?[%％]", lambda found: self._numbers.counted(found["n"], words.percent)),
            (rf"{_LEFT}(?P<n>{number}){SPACE}?(?P<symbol>{unit}){_END}", self._unit),
            (rf"{_LEFT}(?P<n>\d{{1,15}})(?P<end>{ordinal}){_RIGHT}" if ordinal else "", self._ordinal),
            (
                words.day_end and rf"(?P<before>\b\w+ )?{_LEFT}(?P<n>\d\d?){words.day_end}(?=(?:{months})\b)",
                self._dotted_day,
            ),
            (
                articles and rf"(?P<before>\b(?i:{articles}) )(?P<n>\d{{1,3}})\. ?(?=[A-ZÄÖÜ])",
                self._dotted_day,
            ),
            (self._year_pattern(months), self._year),
            (rf"{_LEFT}(?P<n>{number}){_RIGHT}", lambda found: self._numbers.number(found["n"])[0]),
        ]

    def _rest(self) -> list[tuple[str, _Rule]]:
        """Returns how all other digits are read, such as those of versions and within words."""
        words = self._words
        between = {".": f" {words.dot} ", "/": f" {words.slash} ", ",": ", "}

        def separator(found: re.Match[str]) -> str:
            word = between.get(found[0], " ")
            return word if words.space else word.strip()

        return [(r"(?<=\d)[.,:/–-](?=\d)", separator), (r"\d+", self._code)]

    def _number_pattern(self) -> str:
        point, group = re.escape(self._words.decimal), re.escape(self._words.group)
        group = SPACE if self._words.group == " " else group
        return rf"(?:\d{{1,3}}(?:{group}\d{{3}}){{1,5}}(?!\d)|\d+)(?:{point}\d+)?"

    def _scale_pattern(self) -> str:
        words = self._words
        letters = rf"|(?:{either_of(words.scales)}){_END}" if words.scales else ""
        return rf"(?:{words.space and SPACE}(?:{either_of(words.scale.split())}){letters})?"

    def _year_pattern(self, months: str) -> str:
        words = self._words
        if words.year_mark:
            return rf"{_LEFT}(?P<y>\d{{4}})(?={words.year_mark})"
        if not words.years:
            return ""
        before = "|".join(words.years.split())
        day = rf"(?:{months})(?: [\w-]+)?,?"
        return rf"(?P<before>\b(?:(?i:{before})|{day}) |\(){_LEFT}(?P<y>\d{{4}}){_RIGHT}"

    # Forms -----------------------------------------------------------------------------------------------------------

    def _phone(self, found: re.Match[str]) -> str:
        groups = re.findall(r"\d+", found[0])
        if len("".join(groups)) < _MIN_PHONE_DIGITS or (len(groups) == 2 and not self._is_local_number(found[0])):
            return found[0]
        plus = self._words.symbols["+"] + self._words.space if found[0][0] == "+" else ""
        return plus + (", " if self._words.space else "，").join(map(self._numbers.digits, groups))

    def _is_local_number(self, written: str) -> bool:
        """Returns whether two groups of digits are a phone number, and no range."""
        return re.fullmatch(r"\d{3}-\d{4}", written) is not None and re.search("0-|0$", written) is None

    def _money_range(self, found: re.Match[str]) -> str:
        return self._join(found["a"], self._words.to, found["b"] + found["symbol"])

    def _years(self, found: re.Match[str]) -> str:
        if found["a"] >= found["b"]:
            return found[0]
        return self._join(self._numbers.year(found["a"]), self._words.to, self._numbers.year(found["b"]))

    def _range(self, found: re.Match[str]) -> str:
        first, last = found["a"], found["b"]
        if self._numbers.value(first) < self._numbers.value(last):
            return self._join(first, self._words.to, "")
        is_result = max(len(first), len(last)) <= 2 and " " not in found[0]
        return self._join(first, self._words.ratio, "") if is_result else found[0]

    def _join(self, *parts: str) -> str:
        return self._words.space.join(parts)

    def _fraction(self, found: re.Match[str]) -> str:
        whole, numerator, denominator = found["w"], found["n"], found["d"]
        fraction = self._numbers.fraction(numerator, denominator)
        if whole is None:
            return fraction
        spoken = self._numbers.integer(whole)
        if not 0 < int(numerator) < int(denominator):
            return self._join(spoken, fraction)
        return self._words.mixed.format(n=spoken, f=fraction)

    def _symbol(self, found: re.Match[str]) -> str:
        text, symbol = found.string, found[0].strip()
        before, after = text[: found.start()][-1:], text[found.end() :][:1]
        begins = not before or before == "(" or found[0][0] != symbol
        is_after, is_before = before.isdecimal(), after.isdecimal() or after in self._words.money
        touches = found[0][-1] == symbol
        if not (
            (is_after and (is_before or symbol == "+"))
            or (is_before and (symbol in _COMPARISONS or (begins and touches)))
        ):
            return found[0]
        left = self._words.space if before and before != "(" else ""
        right = self._words.space if is_before or not touches else ""
        return left + self._words.symbols[symbol] + right

    def _ratio(self, found: re.Match[str]) -> str:
        first, second = (self._numbers.integer(found[each]) for each in ("h", "m"))
        return self._join(first, self._words.ratio, second)

    def _code(self, found: re.Match[str]) -> str:
        before, after = found.string[: found.start()][-1:], found.string[found.end() :][:1]
        is_word = before.isalpha() or after.isalpha()
        spoken = self._numbers.code(found[0]) if is_word else self._numbers.integer(found[0])
        left, right = (self._words.space if each.isalpha() else "" for each in (before, after))
        return f"{left}{spoken}{right}"

    def _power(self, found: re.Match[str]) -> str:
        """Returns how a superscript is spoken: as a power, or as a number if it is a mark, such as that of a note."""
        text, words, exponent = found.string, self._words, found[0].translate(_IN_LINE)
        before, after = text[: found.start()][-1:], text[found.end() :][:1]
        follows = before.isalnum() or before in (")", "]")
        number = self._numbers.integer(exponent.lstrip("+-"))
        if exponent[0] == "-":
            number = self._join(words.minus, number)
        if follows and exponent != "1":
            number = words.powers.get(exponent) or words.power.format(n=number)
        return f"{words.space if follows else ''}{number}{words.space if after.isalpha() else ''}"

    # Quantities ------------------------------------------------------------------------------------------------------

    def _unit(self, found: re.Match[str]) -> str:
        return self._numbers.counted(found["n"], self._words.units[found["symbol"]])

    def _money(self, found: re.Match[str]) -> str:
        words, forms = self._words, self._words.money[found["symbol"]]
        whole, part = (forms[:2], forms[2:]) if len(forms) == 4 else (forms, ())
        if scale := found["scale"].strip():
            return self._join(self._numbers.number(found["n"])[0], words.scales.get(scale, scale), whole[-1])
        integer, _, decimals = found["n"].partition(words.decimal)
        if len(decimals) != 2 or not part:
            return self._numbers.counted(found["n"], whole)
        units = self._numbers.counted(integer, whole)
        if not int(decimals):
            return units
        return self._join(units, words.and_, self._numbers.counted(decimals.lstrip("0"), part))

    def _time(self, found: re.Match[str]) -> str:
        words, hour, minute = self._words, int(found["h"]), int(found["m"] or 0)
        name = self._numbers.cardinal(hour)
        if not minute:
            return name if _is_followed_by_half(found) else self._numbers.counted(str(hour), words.hour)
        zero = f"{words.zero_minute}{words.space}" if minute < 10 and words.zero_minute else ""
        spoken_hour, agreeing = self._numbers.counted(str(hour), words.hour), self._numbers.agreeing(hour, name)
        assert words.time is not None
        return words.time.format(hour=spoken_hour, h=name, f=agreeing, m=zero + self._numbers.cardinal(minute))

    # Dates -----------------------------------------------------------------------------------------------------------

    def _day_first(self, found: re.Match[str]) -> str:
        return self._date(found, month_first=self._words.month_first and found["mark"] != ".")

    def _date(self, found: re.Match[str], month_first: bool = False) -> str:
        day, month, words = int(found["d"]), int(found["m"]), self._words
        if month_first and day <= 12:
            day, month = month, day
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return found[0]
        before = found.string[: found.start()].rsplit(None, 1)[-1:]
        spoken_day = self._day(day, before[0] if before else "") if words.ordinal_day else self._numbers.cardinal(day)
        assert words.date is not None
        year = self._numbers.year(_full_year(found["y"]))
        return words.date.format(d=spoken_day, month=self._months[month - 1], y=year)

    def _day(self, day: int, before: str) -> str:
        dative = before.lower() in self._words.dative.split()
        return self._numbers.spell(day, FormatPurpose.ORDINAL, "spellout-ordinal-n" if dative else None)

    def _dotted_day(self, found: re.Match[str]) -> str:
        before = found["before"] or ""
        return f"{before}{self._day(int(found['n']), before.strip())} "

    def _ordinal(self, found: re.Match[str]) -> str:
        return self._numbers.spell(int(found["n"]), FormatPurpose.ORDINAL, self._words.ordinals[found["end"]])

    def _year(self, found: re.Match[str]) -> str:
        return (found.groupdict().get("before") or "") + self._numbers.year(found["y"])

    def _decade(self, found: re.Match[str]) -> str:
        return found["before"] + self._numbers.decade(found["n"])

    def _month_day(self, found: re.Match[str]) -> str:
        return f"{found['before']} {self._numbers.spell(int(found['n']), FormatPurpose.ORDINAL)}"

    def _day_month(self, found: re.Match[str]) -> str:
        return f"the {self._numbers.spell(int(found['n']), FormatPurpose.ORDINAL)} of {found['month']}"


def _full_year(digits: str) -> str:
    """Returns a year of two digits as one from 1970 to 2069."""
    return digits if len(digits) == 4 else f"{'19' if digits >= '70' else '20'}{digits}"


def _is_followed_by_half(found: re.Match[str]) -> bool:
    """Returns whether the half of the day follows, which stands for "o'clock"."""
    return re.match(f" ?{HALF_OF_DAY}", found.string[found.end() :][:6], re.IGNORECASE) is not None
