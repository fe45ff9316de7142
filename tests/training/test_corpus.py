"""The corpus is reproducible and free of held-out sentences; readers of Debian's text packages."""

import hashlib
import random
from pathlib import Path

import pytest

from training.config import CorpusConfig
from training.data import corpus
from training.data.corpus import Sentence

GENERATED = {"english": 3_000, "german": 1_000}
CONFIG = CorpusConfig(generated=GENERATED, max_sentences_per_source=200)


@pytest.fixture(scope="module")
def built() -> list[Sentence]:
    return corpus.build(CONFIG, Path("/nowhere"), lambda line: None)


def test_same_seed_gives_the_same_corpus(built: list[Sentence], tmp_path: Path) -> None:
    again = corpus.build(CONFIG, Path("/nowhere"), lambda line: None)
    assert again == built
    corpus.write(tmp_path / "corpus.txt", built)
    assert corpus.read(tmp_path / "corpus.txt") == built
    written = "".join(f"{sentence.language}\t{sentence.text}\n" for sentence in built)
    assert corpus.digest(tmp_path / "corpus.txt") == hashlib.sha256(written.encode()).hexdigest()[:16]


def test_held_out_sentences_are_not_in_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [sentence for name in corpus.HELD_OUT for sentence in corpus.held_out(name)]
    texts = [sentence.text for sentence in held]
    # A source that contains them all, and in lower case.
    source = {"all of them": lambda root: [" ".join(texts).lower(), *texts]}
    monkeypatch.setattr(corpus, "SOURCES", dict.fromkeys(GENERATED, source))
    config = CorpusConfig(generated={"english": 500, "german": 500}, max_sentences_per_source=10_000)
    built = corpus.build(config, Path("/nowhere"), lambda line: None)
    assert {sentence.words() for sentence in built}.isdisjoint({sentence.words() for sentence in held})


@pytest.mark.parametrize("name", corpus.HELD_OUT)
def test_held_out_set_has_fifty_distinct_sentences(name: str) -> None:
    held = corpus.held_out(name)
    assert len({sentence.words() for sentence in held}) == 50
    assert all(text[0].isupper() and text[-1] in ".?!" for text, _ in held)
    if name == "long":
        assert all(20 <= len(text.split()) <= 40 for text, _ in held)
    if name == "numbers":
        assert all(sentence.words() != tuple(sentence.text.lower().strip(".").split()) for sentence in held)


def test_german_sentences_do_not_end_after_ordinals_and_abbreviations() -> None:
    text = "über Nacht kam am 3. Mai Dr. Weiß, z. B. um St. Pauli zu sehen. Warum? Es blieb so."
    assert [each.text for each in corpus.split_sentences(text, "german")] == [
        "Über Nacht kam am 3. Mai Dr. Weiß, z. B. um St. Pauli zu sehen.",
        "Warum?",
        "Es blieb so.",
    ]


def write_file(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text, "utf-8")


def test_dictionary_examples_are_whole_sentences(tmp_path: Path) -> None:
    write_file(
        tmp_path,
        "usr/share/trans/de-en",
        "# A comment.\n"
        "Angst {f} (vor etw.) | aus Angst/Furcht vor [psych.] | Keine Angst! | Er traut sich nicht (ins Wasser).\n"
        "Satz {m}; Sprung {m} | „Ich hab’s!“ rief sie.; Er/Sie geht. :: sentence | 'Got it!' she cried.\n",
    )
    assert list(corpus.SOURCES["german"]["trans-de-en"](tmp_path)) == [
        "Keine Angst!",
        "Er traut sich nicht.",
        "Ich hab's! rief sie.",
    ]


def test_fortunes_are_read_without_attributions(tmp_path: Path) -> None:
    for name in ("anekdoten", "mathematiker", "regeln", "sprichworte", "sprichwortev", "sprueche"):
        write_file(tmp_path, f"usr/share/games/fortunes/de/{name}", "")
    write_file(tmp_path, "usr/share/games/fortunes/de/zitate", "»Wissen« ist\nMacht.\n\t\t-- Bacon\n%\nNichts.\n")
    assert " ".join(" ".join(corpus.SOURCES["german"]["fortunes-de"](tmp_path)).split()) == "Wissen ist Macht. Nichts."


def test_dictionary_filters_words(tmp_path: Path) -> None:
    write_file(tmp_path, "usr/share/dict/ngerman", "Übung\nlaufen\nDAAD\nABC-Buch\nß\n")
    assert sorted(corpus.dictionary("german", tmp_path, random.Random(0))) == ["laufen", "Übung"]
    assert corpus.dictionary("english", tmp_path, random.Random(0)) == []
