"""The texts: what is at hand on a Debian machine, and sentences drawn from a grammar; and the held-out sets.

A corpus is a file with one sentence a line, as it is written; `spoken` says how it is read out. No sentence of a
held-out set is in it. The grammar needs no source, so a corpus can be made anywhere; a source that is missing is said.
"""

from __future__ import annotations

import ast
import hashlib
import os
import random
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .config import CorpusConfig
from .spoken import MONTHS, spoken, words

HERE = Path(__file__).parent / "text"
LONGEST_WORDS = 40
_SHAPE = re.compile(r"[A-Za-z0-9 ,.?!'\-;:$£€%]+")
_AWKWARD = re.compile(r"[A-Z]{3,}|\d{5,}|--|\.\.|[,.;:]{2}| -|- |[a-z][A-Z]|[a-z]\.[a-z]|\d[a-z]{3,}|'{2}")


def held_out(name: str) -> list[str]:
    """A held-out set, `templates`, `natural`, `long` or `numbers`: sentences as they are written."""
    lines = (HERE / f"held_{name}.txt").read_text().splitlines()
    return [finish(line) for line in lines]


HELD_OUT = ("templates", "natural", "long", "numbers")


def finish(sentence: str) -> str:
    """With a capital, a full stop where no mark ends it, and "an" where it belongs."""
    sentence = re.sub(r"\b([Aa]) (?=[aeiou]|hour|honest)(?!uni|one\b|use)", r"\1n ", sentence)
    sentence = re.sub(r"(^|[a-z]{2}[.?!] )([a-z])", lambda found: found[1] + found[2].upper(), sentence)
    return sentence if sentence.endswith((".", "?", "!", '"')) else f"{sentence}."


class Grammar:
    """Draws sentences from `text/grammar.txt`."""

    def __init__(self, rng: random.Random, dictionary: list[str]) -> None:
        """dictionary: what `{word}` may become; the grammar's own nouns where there is none."""
        self._rng = rng
        self._options = _read_grammar((HERE / "grammar.txt").read_text())
        self._options["word"] = dictionary or self._options["nouns1"]
        self._drawn = _drawn(rng)

    def sentence(self) -> str:
        """One sentence, finished."""
        text = "{sentence}"
        while "{" in text:
            text = re.sub(r"\{(\w+)\}", lambda found: self._draw(found[1]), text)
        return finish(text)

    def _draw(self, name: str) -> str:
        drawn = self._drawn.get(name)
        return drawn() if drawn else self._rng.choice(self._options[name])


def _read_grammar(text: str) -> dict[str, list[str]]:
    """Each name's options."""
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


def _drawn(rng: random.Random) -> dict[str, Callable[[], str]]:
    """What numbers become, by their name in the grammar; written as people write them."""
    integer, choice = rng.randint, rng.choice

    def money() -> str:
        amount = choice([str(integer(1, 20)), str(integer(1, 99)), str(integer(100, 999)), f"{integer(1000, 9999):,}"])
        return choice("$$$£€") + amount + (f".{integer(1, 99):02}" if len(amount) < 4 and rng.random() < 0.6 else "")

    def decimals() -> str:
        return str(integer(1, 99)) + choice(["", f".{integer(1, 9)}"])

    def date() -> str:
        day, month, year = integer(1, 28), choice(MONTHS), integer(1700, 2039)
        return choice([f"{day} {month} {year}", f"{month} {day}, {year}"])

    def short_date() -> str:
        return choice([f"{integer(1, 31)} {choice(MONTHS)}", f"{choice(MONTHS)} {integer(1, 31)}"])

    return {
        "int": lambda: str(choice([integer(0, 20), integer(0, 100), integer(100, 999)])),
        "small": lambda: str(integer(1, 20)),
        "bigint": lambda: f"{choice([integer(1, 99) * 100, integer(1000, 99_999), integer(1, 99) * 100_000]):,}",
        "money": money,
        "bigmoney": lambda: f"{choice('$£€')}{decimals()} {choice(['million', 'billion'])}",
        "date": date,
        "shortdate": short_date,
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


def sentences(text: str) -> Iterator[str]:
    """A text's sentences, finished; of the longest the clauses."""
    text = re.sub(r"[\"*_`]", "", text).replace("(", ", ").replace(")", ",")
    text = re.sub(r"\s*,[\s,]*", ", ", re.sub(r"\s+", " ", text))
    for sentence in re.split(r"(?<=[.?!]) ", re.sub(r", ([.;:?!])", r"\1", text)):
        long = len(sentence.split()) > LONGEST_WORDS
        parts = (part.strip(" ,;:-'") for part in (re.split(r"(?<=[;:])\s+", sentence) if long else [sentence]))
        yield from (finish(part) for part in parts if part)


def speakable(sentence: str) -> bool:
    """Whether it is plain prose: no code, no tables, no shouting."""
    count = len(sentence.split())
    plain = _SHAPE.fullmatch(sentence) and not _AWKWARD.search(sentence)
    return bool(plain) and 1 <= count <= LONGEST_WORDS and max(map(len, sentence.split())) <= 18


def _bible(root: Path) -> Iterator[str]:
    """The verses of `bible-kjv-text`, through the program that unpacks them."""
    command = [str(root / "usr/bin/bible"), "-p", str(root / "usr/lib"), "-f", "gen1:1-rev22:21"]
    verses = subprocess.run(command, capture_output=True, check=True).stdout.decode("latin-1")
    yield from (verse.partition(" ")[2] for verse in verses.splitlines())


def _fortunes(root: Path) -> Iterator[str]:
    """Quotations without their sources."""
    unsaid = {"ascii-art", "translate-me", "perl", "magic"}
    for path in sorted((root / "usr/share/games/fortunes").iterdir()):
        if path.is_file() and not path.suffix and path.name not in unsaid:
            for quotation in path.read_text("utf-8", "ignore").split("\n%\n"):
                yield re.sub(r"\n\s*--.*", "", quotation, flags=re.DOTALL)


def _licences(root: Path) -> Iterator[str]:
    for path in sorted((root / "usr/share/common-licenses").iterdir()):
        if path.is_file() and not path.is_symlink():
            yield from path.read_text("utf-8", "ignore").split("\n\n")


def _wordnet(root: Path) -> Iterator[str]:
    """Examples of how words are used, and what they mean."""
    for kind in ("adj", "adv", "noun", "verb"):
        for line in (root / "usr/share/wordnet" / f"data.{kind}").read_text("utf-8", "ignore").splitlines():
            meaning, *examples = line.partition(" | ")[2].split('"')
            yield from (meaning, *examples[::2])


def _python(_: Path) -> Iterator[str]:
    """Docstrings of the standard library, and the language reference's topics."""
    from pydoc_data.topics import topics

    for topic in topics.values():
        yield from topic.split("\n\n")
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8", "ignore"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                yield from (ast.get_docstring(node) or "").split("\n\n")


SOURCES: dict[str, Callable[[Path], Iterator[str]]] = {
    "bible-kjv": _bible,
    "fortunes": _fortunes,
    "common-licenses": _licences,
    "wordnet": _wordnet,
    "python": _python,
}


def _dictionary(root: Path, rng: random.Random) -> list[str]:
    """The words of `wamerican`, shuffled."""
    path = root / "usr/share/dict/american-english"
    found = path.read_text("utf-8").split() if path.exists() else []
    kept = [word for word in found if re.fullmatch(r"[a-z]{2,14}", word)]
    rng.shuffle(kept)
    return kept


def _texts(config: CorpusConfig, root: Path, say: Callable[[str], None]) -> Iterator[str]:
    """The sentences of every source there is."""
    for name, read in SOURCES.items():
        try:
            found = [each for text in read(root) for each in sentences(text) if speakable(each)]
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"corpus: {name}: left out: {error}")
            continue
        limit = config.sentences_a_source
        say(f"corpus: {name}: {len(found)} sentences, {min(len(found), limit)} used")
        yield from random.Random(f"{config.seed} {name}").sample(found, min(len(found), limit))


def make(config: CorpusConfig, root: Path, say: Callable[[str], None]) -> list[str]:
    """A corpus: the sources' sentences and as many of the grammar's as were asked for, each once, shuffled.

    root: where the sources lie, `/` for a machine that has them installed.
    """
    rng = random.Random(config.seed)
    grammar = Grammar(rng, _dictionary(root, rng))
    drawn = (grammar.sentence() for _ in range(config.generated))
    held = {words(sentence) for name in HELD_OUT for sentence in held_out(name)}
    kept: dict[tuple[str, ...], str] = {}
    for sentence in (*_texts(config, root, say), *drawn):
        key = words(sentence)
        if 1 <= len(key) <= config.longest_spoken_words and key not in held:
            kept.setdefault(key, sentence)
    found = [_loosened(sentence, rng) for sentence in kept.values()]
    rng.shuffle(found)
    say(f"corpus: {len(found)} sentences, {sum(map(len, kept))} words")
    return found


def _loosened(sentence: str, rng: random.Random) -> str:
    """Some sentences as people type them: without the full stop, or without capitals too."""
    chance = rng.random()
    if chance < 0.05 and sentence.endswith("."):
        return sentence[:-1]
    return sentence.lower().rstrip(".") if chance < 0.08 and spoken(sentence) == sentence else sentence


def write(path: Path, corpus: Iterable[str]) -> None:
    """Writes a corpus file."""
    path.write_text("".join(f"{sentence}\n" for sentence in corpus), "utf-8")


def read(path: Path) -> list[str]:
    """Reads a corpus file."""
    return path.read_text("utf-8").splitlines()


def digest(path: Path) -> str:
    """What names the data of a run: the corpus file's SHA-256, shortened."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
