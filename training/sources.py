"""Readers of Debian's text packages, by language: prose, and word lists."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path


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
    """Yields definitions and usage examples."""
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
