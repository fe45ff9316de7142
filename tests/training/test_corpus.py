"""The texts: drawn from a seed, and apart from what is held out."""

import hashlib
from pathlib import Path

import pytest

from training import corpus
from training.config import CorpusConfig
from training.spoken import words

CONFIG = CorpusConfig(generated=3_000, sentences_a_source=200)


@pytest.fixture(scope="module")
def made() -> list[str]:
    return corpus.make(CONFIG, Path("/nowhere"), lambda line: None)


def test_the_same_seed_draws_the_same_sentences(made: list[str], tmp_path: Path) -> None:
    again = corpus.make(CONFIG, Path("/nowhere"), lambda line: None)
    assert again == made
    corpus.write(tmp_path / "corpus.txt", made)
    assert corpus.read(tmp_path / "corpus.txt") == made
    assert (
        corpus.digest(tmp_path / "corpus.txt")
        == hashlib.sha256("".join(f"{s}\n" for s in made).encode()).hexdigest()[:16]
    )


def test_another_seed_draws_others(made: list[str]) -> None:
    other = corpus.make(
        CorpusConfig(generated=3_000, sentences_a_source=200, seed=8), Path("/nowhere"), lambda line: None
    )
    assert len(set(other) & set(made)) < len(made) / 2


def test_held_out_sentences_are_not_in_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [sentence for name in corpus.HELD_OUT for sentence in corpus.held_out(name)]
    # A source that has them all, written otherwise.
    monkeypatch.setattr(corpus, "SOURCES", {"all of them": lambda root: [" ".join(held).lower(), *held]})
    made = corpus.make(CorpusConfig(generated=500, sentences_a_source=10_000), Path("/nowhere"), lambda line: None)
    assert {words(sentence) for sentence in made}.isdisjoint({words(sentence) for sentence in held})


@pytest.mark.parametrize("name", corpus.HELD_OUT)
def test_a_held_out_set_is_fifty_different_sentences(name: str) -> None:
    held = corpus.held_out(name)
    assert len({words(sentence) for sentence in held}) == 50
    assert all(sentence[0].isupper() and sentence[-1] in ".?!" for sentence in held)
    if name == "long":
        assert all(20 <= len(sentence.split()) <= 40 for sentence in held)
    if name == "numbers":
        assert all(words(sentence) != tuple(sentence.lower().strip(".").split()) for sentence in held)


def test_sentences_are_plain_prose_with_capitals_and_marks(made: list[str]) -> None:
    assert not any("{" in sentence or "  " in sentence or "_" in sentence for sentence in made)
    ended = sum(sentence[0].isupper() and sentence[-1] in '.?!"' for sentence in made)
    assert ended > 0.85 * len(made)
    assert any("$" in sentence for sentence in made) and any(":" in sentence for sentence in made)
    assert max(len(sentence.split()) for sentence in made) >= 25


def test_a_missing_source_is_said() -> None:
    said: list[str] = []
    corpus.make(CorpusConfig(generated=5, sentences_a_source=5), Path("/nowhere"), said.append)
    assert any("fortunes: left out" in line for line in said)
    assert any(line.startswith("corpus: python: ") for line in said)


def test_long_texts_are_cut_into_sentences() -> None:
    text = "It was (so they said) late; \n nobody   came. Why?"
    assert list(corpus.sentences(text)) == ["It was, so they said, late; nobody came.", "Why?"]
