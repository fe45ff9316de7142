"""The corpus is reproducible and free of held-out sentences."""

import hashlib
from pathlib import Path

import pytest

from training import corpus
from training.config import CorpusConfig
from training.corpus import Sentence

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
    assert (
        corpus.digest(tmp_path / "corpus.txt")
        == hashlib.sha256("".join(f"{s.language}\t{s.text}\n" for s in built).encode()).hexdigest()[:16]
    )


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
