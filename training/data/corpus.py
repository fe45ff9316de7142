"""The text corpus: sentences of Debian's text packages, sentences drawn from a grammar, and the held-out sets.

A corpus file has one sentence per line, after its language and a tab, in written form. It contains no sentence of a
held-out set. Missing sources are logged and skipped; the grammars need none, so a corpus can be built on any machine.
"""

import ast
import hashlib
import os
import random
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from training.config import CorpusConfig
from training.data.grammar import Grammar
from training.data.normalize import NORMALIZERS, TEXT_DIRECTORY

MAX_WORDS = 40
_NOT_PROSE = re.compile(
    r"[A-ZÄÖÜ]{3,}|\d{5,}|--|\.\.|[,.;:]{2}| -|- |[a-zäöüß][A-ZÄÖÜ]|[a-zäöüß]\.[a-zäöüß]|\d[a-z]{3,}|'{2}"
)


class Sentence(NamedTuple):
    """A sentence in written form."""

    text: str
    language: str
    """`english` or `german`: the name that checkpoints and requests use."""

    def spoken(self) -> str:
        """Returns the normalized text for espeak-ng."""
        return NORMALIZERS[self.language](self.text)

    def words(self) -> tuple[str, ...]:
        """Returns the spoken words in lower case; sentences of a language with equal words are duplicates."""
        return tuple(_ORTHOGRAPHY[self.language].word.findall(self.spoken().lower()))


class _Orthography(NamedTuple):
    """Patterns of a language's written form."""

    prose: re.Pattern[str]
    """Matches a text without unusual characters."""
    boundary: re.Pattern[str]
    """Matches between two sentences."""
    lowercase_start: re.Pattern[str]
    """Two groups: the text before a letter that has to be a capital, and the letter."""
    word: re.Pattern[str]
    """Matches a lower-case word of the spoken form. German has numbers in it, which are left to espeak-ng."""
    max_word_length: int


_ORTHOGRAPHY = {
    "english": _Orthography(
        prose=re.compile(r"[A-Za-z0-9 ,.?!'\-;:$£€%]+"),
        boundary=re.compile(r"(?<=[.?!]) "),
        lowercase_start=re.compile(r"(^|[a-z]{2}[.?!] )([a-z])"),
        word=re.compile(r"[a-z]+(?:'[a-z]+)*"),
        max_word_length=18,
    ),
    "german": _Orthography(
        prose=re.compile(r"[A-Za-zÄÖÜäöüßé0-9 ,.?!'\-;:€%]+"),
        # Not after ordinals and abbreviations.
        boundary=re.compile(
            r"(?<=[.?!])(?<!\d\.)(?<!\b\w\.)(?<!\b(?:[DHN]r|St)\.)(?<!\bbzw\.)(?<!\bProf\.) (?=[A-ZÄÖÜ])"
        ),
        lowercase_start=re.compile(r"(^[„\"]?|: [„\"])([a-zäöü])"),
        word=re.compile(r"[a-zäöüßé]+(?:'[a-zäöüß]+)*|\d+"),
        max_word_length=30,
    ),
}

HELD_OUT = {"templates": "english", "natural": "english", "long": "english", "numbers": "english", "german": "german"}
"""The held-out sets and their languages."""


def held_out(name: str) -> list[Sentence]:
    """Reads a held-out set, one of `HELD_OUT`."""
    lines = (TEXT_DIRECTORY / f"held_{name}.txt").read_text("utf-8").splitlines()
    return [finish(Sentence(line, HELD_OUT[name])) for line in lines]


def finish(sentence: Sentence) -> Sentence:
    """Returns the sentence with capitals, closing punctuation and the article "an" corrected."""
    text, language = sentence
    if language == "english":
        text = re.sub(r"\b([Aa]) (?=[aeiou]|hour|honest)(?!uni|one\b|use)", r"\1n ", text)
    text = _ORTHOGRAPHY[language].lowercase_start.sub(lambda found: found[1] + found[2].upper(), text)
    return Sentence(text if text.endswith((".", "?", "!", '"', "“")) else f"{text}.", language)


def split_sentences(text: str, language: str) -> Iterator[Sentence]:
    """Yields the sentences of a text; sentences of more than `MAX_WORDS` words are split into clauses."""
    text = re.sub(r"[\"*_`]", "", text).replace("(", ", ").replace(")", ",")
    text = re.sub(r"\s*,[\s,]*", ", ", re.sub(r"\s+", " ", text))
    for sentence in _ORTHOGRAPHY[language].boundary.split(re.sub(r", ([.;:?!])", r"\1", text)):
        is_long = len(sentence.split()) > MAX_WORDS
        parts = (part.strip(" ,;:-'") for part in (re.split(r"(?<=[;:])\s+", sentence) if is_long else [sentence]))
        yield from (finish(Sentence(part, language)) for part in parts if part)


def is_prose(sentence: Sentence) -> bool:
    """Returns True for plain prose of moderate length; False for code, tables, acronyms and the like."""
    words, orthography = sentence.text.split(), _ORTHOGRAPHY[sentence.language]
    prose = orthography.prose.fullmatch(sentence.text) and not _NOT_PROSE.search(sentence.text)
    return bool(prose) and 1 <= len(words) <= MAX_WORDS and max(map(len, words)) <= orthography.max_word_length


def _bible(root: Path) -> Iterator[str]:
    """Yields the verses of `bible-kjv-text`, unpacked by its program."""
    command = [str(root / "usr/bin/bible"), "-p", str(root / "usr/lib"), "-f", "gen1:1-rev22:21"]
    verses = subprocess.run(command, capture_output=True, check=True).stdout.decode("latin-1")
    yield from (verse.partition(" ")[2] for verse in verses.splitlines())


def _fortunes(root: Path) -> Iterator[str]:
    skipped = {"ascii-art", "translate-me", "perl", "magic"}
    for path in sorted((root / "usr/share/games/fortunes").iterdir()):
        if path.is_file() and not path.suffix and path.name not in skipped:
            yield from _quotations(path)


def _quotations(path: Path) -> Iterator[str]:
    """Yields the quotations of a fortune file, without their attributions."""
    for quotation in path.read_text("utf-8", "ignore").split("\n%\n"):
        yield re.sub(r"\n\s*--.*", "", quotation, flags=re.DOTALL)


def _fortunes_de(root: Path) -> Iterator[str]:
    """Yields the fortunes that are prose: no recipes, lists or headings."""
    for name in ("anekdoten", "mathematiker", "regeln", "sprichworte", "sprichwortev", "sprueche", "zitate"):
        yield from map(_normalize_quotes, _quotations(root / "usr/share/games/fortunes/de" / name))


def _normalize_quotes(text: str) -> str:
    return re.sub("[„“”«»]", "", text).replace("’", "'")


def _trans_de_en(root: Path) -> Iterator[str]:
    """Yields the dictionary's German examples that are whole sentences, without remarks."""
    for line in (root / "usr/share/trans/de-en").read_text("utf-8").splitlines():
        for example in re.split(r" \| |; ", line.partition(" :: ")[0]):
            plain = re.sub(r"\s*(?:\[.*?\]|\(.*?\)|\{.*?\}|<.*?>)", "", _normalize_quotes(example)).strip()
            if re.fullmatch(r"[A-ZÄÖÜ][^/]* [^/]*[.!?]", plain):
                yield plain


def _licences(root: Path) -> Iterator[str]:
    for path in sorted((root / "usr/share/common-licenses").iterdir()):
        if path.is_file() and not path.is_symlink():
            yield from path.read_text("utf-8", "ignore").split("\n\n")


def _wordnet(root: Path) -> Iterator[str]:
    for kind in ("adj", "adv", "noun", "verb"):
        for line in (root / "usr/share/wordnet" / f"data.{kind}").read_text("utf-8", "ignore").splitlines():
            meaning, *examples = line.partition(" | ")[2].split('"')
            yield from (meaning, *examples[::2])


def _python(_: Path) -> Iterator[str]:
    """Yields the language reference's topics and the standard library's docstrings."""
    from pydoc_data.topics import topics

    for topic in topics.values():
        yield from topic.split("\n\n")
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8", "ignore"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                yield from (ast.get_docstring(node) or "").split("\n\n")


SOURCES: dict[str, dict[str, Callable[[Path], Iterator[str]]]] = {
    "english": {
        "bible-kjv": _bible,
        "fortunes": _fortunes,
        "common-licenses": _licences,
        "wordnet": _wordnet,
        "python": _python,
    },
    "german": {"fortunes-de": _fortunes_de, "trans-de-en": _trans_de_en},
}
"""Readers by language and package; each takes the root directory."""

_WORD_LISTS = {
    "english": ("usr/share/dict/american-english", r"[a-z]{2,14}"),
    "german": ("usr/share/dict/ngerman", r"[A-ZÄÖÜa-zäöüß][a-zäöüß]{1,17}"),
}


def dictionary(language: str, root: Path, rng: random.Random) -> list[str]:
    """Returns the shuffled words of `wamerican` or `wngerman`; none if the package is missing."""
    file, shape = _WORD_LISTS[language]
    path = root / file
    found = path.read_text("utf-8").split() if path.exists() else []
    kept = [word for word in found if re.fullmatch(shape, word)]
    rng.shuffle(kept)
    return kept


def _source_sentences(
    config: CorpusConfig, language: str, root: Path, log: Callable[[str], None]
) -> Iterator[Sentence]:
    """Yields a sample of each source's sentences; logs and skips missing sources."""
    for name, read_source in SOURCES[language].items():
        try:
            found = [
                sentence
                for text in read_source(root)
                for sentence in split_sentences(text, language)
                if is_prose(sentence)
            ]
        except (OSError, subprocess.CalledProcessError) as error:
            log(f"corpus: {name}: skipped: {error}")
            continue
        used = min(len(found), config.max_sentences_per_source)
        log(f"corpus: {name}: {len(found)} sentences, {used} used")
        yield from random.Random(f"{config.seed} {name}").sample(found, used)


def build(config: CorpusConfig, root: Path, log: Callable[[str], None]) -> list[Sentence]:
    """Returns the shuffled sentences of all languages. root: where the text packages are installed, normally `/`."""
    found = [sentence for language in config.generated for sentence in _of_language(language, config, root, log)]
    random.Random(config.seed).shuffle(found)
    return found


def _of_language(language: str, config: CorpusConfig, root: Path, log: Callable[[str], None]) -> list[Sentence]:
    """Returns the distinct sentences of the sources and of the grammar that are not held out."""
    rng = random.Random(config.seed)
    grammar = Grammar(language, rng, dictionary(language, root, rng))
    generated = (finish(Sentence(grammar.sentence(), language)) for _ in range(config.generated[language]))
    held = {sentence.words() for name in HELD_OUT for sentence in held_out(name)}
    kept: dict[tuple[str, ...], Sentence] = {}
    for sentence in (*_source_sentences(config, language, root, log), *generated):
        key = sentence.words()
        if 1 <= len(key) <= config.max_spoken_words and key not in held:
            kept.setdefault(key, sentence)
    log(f"corpus: {language}: {len(kept)} sentences, {sum(map(len, kept))} words")
    return [_vary_typing(sentence, rng) for sentence in kept.values()]


def _vary_typing(sentence: Sentence, rng: random.Random) -> Sentence:
    """Drops the full stop of some sentences, and of some the capitals too, as people type."""
    text, chance = sentence.text, rng.random()
    if chance < 0.05 and text.endswith("."):
        return sentence._replace(text=text[:-1])
    lowercase = chance < 0.08 and sentence.spoken() == text
    return sentence._replace(text=text.lower().rstrip(".")) if lowercase else sentence


def write(path: Path, corpus: Iterable[Sentence]) -> None:
    """Writes a corpus file."""
    path.write_text("".join(f"{sentence.language}\t{sentence.text}\n" for sentence in corpus), "utf-8")


def read(path: Path) -> list[Sentence]:
    """Reads a corpus file."""
    lines = (line.partition("\t") for line in path.read_text("utf-8").splitlines())
    return [Sentence(text, language) for language, _, text in lines]


def digest(path: Path) -> str:
    """Returns the first 16 hex digits of the corpus file's SHA-256, which identify a run's data."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
