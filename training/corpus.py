"""The texts: what is at hand on a Debian machine, and sentences drawn from a grammar; and the held-out sets.

A corpus is a file with one sentence a line, its language before it; as it is written, not as it is read out. No
sentence of a held-out set is in it. The grammars need no source, so a corpus can be made anywhere; a source that is
missing is said.
"""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .config import CorpusConfig
from .grammar import HERE, Grammar
from .sentence import Sentence
from .sources import SOURCES, dictionary

LONGEST_WORDS = 40
_AWKWARD = re.compile(
    r"[A-ZÄÖÜ]{3,}|\d{5,}|--|\.\.|[,.;:]{2}| -|- |[a-zäöüß][A-ZÄÖÜ]|[a-zäöüß]\.[a-zäöüß]|\d[a-z]{3,}|'{2}"
)


class _Writing(NamedTuple):
    """How a language is written: patterns."""

    plain: re.Pattern[str]
    """Of prose."""
    border: re.Pattern[str]
    """Between two sentences."""
    small_start: re.Pattern[str]
    """What is before a small letter that has to be a capital, and that letter."""
    longest_word: int


_WRITINGS = {
    "english": _Writing(
        plain=re.compile(r"[A-Za-z0-9 ,.?!'\-;:$£€%]+"),
        border=re.compile(r"(?<=[.?!]) "),
        small_start=re.compile(r"(^|[a-z]{2}[.?!] )([a-z])"),
        longest_word=18,
    ),
    "german": _Writing(
        plain=re.compile(r"[A-Za-zÄÖÜäöüßé0-9 ,.?!'\-;:€%]+"),
        # Not after ordinals and abbreviations.
        border=re.compile(
            r"(?<=[.?!])(?<!\d\.)(?<!\b\w\.)(?<!\b(?:[DHN]r|St)\.)(?<!\bbzw\.)(?<!\bProf\.) (?=[A-ZÄÖÜ])"
        ),
        small_start=re.compile(r"(^[„\"]?|: [„\"])([a-zäöü])"),
        longest_word=30,
    ),
}

HELD_OUT = {"templates": "english", "natural": "english", "long": "english", "numbers": "english", "german": "german"}
"""The held-out sets and their languages."""


def held_out(name: str) -> list[Sentence]:
    """A held-out set, one of `HELD_OUT`."""
    lines = (HERE / f"held_{name}.txt").read_text("utf-8").splitlines()
    return [finish(Sentence(line, HELD_OUT[name])) for line in lines]


def finish(sentence: Sentence) -> Sentence:
    """With a capital, a full stop where no mark ends it, and "an" where it belongs."""
    text, language = sentence
    if language == "english":
        text = re.sub(r"\b([Aa]) (?=[aeiou]|hour|honest)(?!uni|one\b|use)", r"\1n ", text)
    text = _WRITINGS[language].small_start.sub(lambda found: found[1] + found[2].upper(), text)
    return Sentence(text if text.endswith((".", "?", "!", '"', "“")) else f"{text}.", language)


def sentences(text: str, language: str) -> Iterator[Sentence]:
    """A text's sentences, finished; of the longest the clauses."""
    text = re.sub(r"[\"*_`]", "", text).replace("(", ", ").replace(")", ",")
    text = re.sub(r"\s*,[\s,]*", ", ", re.sub(r"\s+", " ", text))
    for sentence in _WRITINGS[language].border.split(re.sub(r", ([.;:?!])", r"\1", text)):
        long = len(sentence.split()) > LONGEST_WORDS
        parts = (part.strip(" ,;:-'") for part in (re.split(r"(?<=[;:])\s+", sentence) if long else [sentence]))
        yield from (finish(Sentence(part, language)) for part in parts if part)


def speakable(sentence: Sentence) -> bool:
    """Whether it is plain prose: no code, no tables, no shouting."""
    words, writing = sentence.text.split(), _WRITINGS[sentence.language]
    plain = writing.plain.fullmatch(sentence.text) and not _AWKWARD.search(sentence.text)
    return bool(plain) and 1 <= len(words) <= LONGEST_WORDS and max(map(len, words)) <= writing.longest_word


def _texts(config: CorpusConfig, language: str, root: Path, say: Callable[[str], None]) -> Iterator[Sentence]:
    """The sentences of every source there is."""
    for name, read in SOURCES[language].items():
        try:
            found = [each for text in read(root) for each in sentences(text, language) if speakable(each)]
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"corpus: {name}: left out: {error}")
            continue
        limit = config.sentences_a_source
        say(f"corpus: {name}: {len(found)} sentences, {min(len(found), limit)} used")
        yield from random.Random(f"{config.seed} {name}").sample(found, min(len(found), limit))


def make(config: CorpusConfig, root: Path, say: Callable[[str], None]) -> list[Sentence]:
    """A corpus: each language's sentences, shuffled.

    root: where the sources lie, `/` for a machine that has them installed.
    """
    found = [sentence for language in config.generated for sentence in _of(language, config, root, say)]
    random.Random(config.seed).shuffle(found)
    return found


def _of(language: str, config: CorpusConfig, root: Path, say: Callable[[str], None]) -> list[Sentence]:
    """The sources' sentences and as many of the grammar's as were asked for, each once."""
    rng = random.Random(config.seed)
    grammar = Grammar(language, rng, dictionary(language, root, rng))
    drawn = (finish(Sentence(grammar.sentence(), language)) for _ in range(config.generated[language]))
    held = {sentence.words() for name in HELD_OUT for sentence in held_out(name)}
    kept: dict[tuple[str, ...], Sentence] = {}
    for sentence in (*_texts(config, language, root, say), *drawn):
        key = sentence.words()
        if 1 <= len(key) <= config.longest_spoken_words and key not in held:
            kept.setdefault(key, sentence)
    say(f"corpus: {language}: {len(kept)} sentences, {sum(map(len, kept))} words")
    return [_loosened(sentence, rng) for sentence in kept.values()]


def _loosened(sentence: Sentence, rng: random.Random) -> Sentence:
    """Some sentences as people type them: without the full stop, or without capitals too."""
    text, chance = sentence.text, rng.random()
    if chance < 0.05 and text.endswith("."):
        return sentence._replace(text=text[:-1])
    loose = chance < 0.08 and sentence.spoken() == text
    return sentence._replace(text=text.lower().rstrip(".")) if loose else sentence


def write(path: Path, corpus: Iterable[Sentence]) -> None:
    """Writes a corpus file."""
    path.write_text("".join(f"{sentence.language}\t{sentence.text}\n" for sentence in corpus), "utf-8")


def read(path: Path) -> list[Sentence]:
    """Reads a corpus file."""
    lines = (line.partition("\t") for line in path.read_text("utf-8").splitlines())
    return [Sentence(text, language) for language, _, text in lines]


def digest(path: Path) -> str:
    """What names the data of a run: the corpus file's SHA-256, shortened."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
