"""The texts: drawn from a seed, and apart from what is held out."""

import hashlib
from pathlib import Path

import pytest
from msgspec import structs

from training import corpus
from training.config import CorpusConfig
from training.sentence import Sentence

GENERATED = {"english": 3_000, "german": 1_000}
CONFIG = CorpusConfig(generated=GENERATED, sentences_a_source=200)


@pytest.fixture(scope="module")
def made() -> list[Sentence]:
    return corpus.make(CONFIG, Path("/nowhere"), lambda line: None)


def test_the_same_seed_draws_the_same_sentences(made: list[Sentence], tmp_path: Path) -> None:
    again = corpus.make(CONFIG, Path("/nowhere"), lambda line: None)
    assert again == made
    corpus.write(tmp_path / "corpus.txt", made)
    assert corpus.read(tmp_path / "corpus.txt") == made
    assert (
        corpus.digest(tmp_path / "corpus.txt")
        == hashlib.sha256("".join(f"{s.language}\t{s.text}\n" for s in made).encode()).hexdigest()[:16]
    )


def test_another_seed_draws_others(made: list[Sentence]) -> None:
    other = corpus.make(structs.replace(CONFIG, seed=8), Path("/nowhere"), lambda line: None)
    assert len(set(other) & set(made)) < len(made) / 2


def test_a_language_has_the_same_sentences_whatever_others_there_are(made: list[Sentence]) -> None:
    for language in GENERATED:
        alone = structs.replace(CONFIG, generated={language: GENERATED[language]})
        of_it = {sentence for sentence in made if sentence.language == language}
        assert set(corpus.make(alone, Path("/nowhere"), lambda line: None)) == of_it


def test_held_out_sentences_are_not_in_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [sentence for name in corpus.HELD_OUT for sentence in corpus.held_out(name)]
    texts = [sentence.text for sentence in held]
    # A source that has them all, written otherwise.
    source = {"all of them": lambda root: [" ".join(texts).lower(), *texts]}
    monkeypatch.setattr(corpus, "SOURCES", dict.fromkeys(GENERATED, source))
    config = CorpusConfig(generated={"english": 500, "german": 500}, sentences_a_source=10_000)
    made = corpus.make(config, Path("/nowhere"), lambda line: None)
    assert {sentence.words() for sentence in made}.isdisjoint({sentence.words() for sentence in held})


@pytest.mark.parametrize("name", corpus.HELD_OUT)
def test_a_held_out_set_is_fifty_different_sentences(name: str) -> None:
    held = corpus.held_out(name)
    assert len({sentence.words() for sentence in held}) == 50
    assert all(text[0].isupper() and text[-1] in ".?!" for text, _ in held)
    if name == "long":
        assert all(20 <= len(text.split()) <= 40 for text, _ in held)
    if name == "numbers":
        assert all(sentence.words() != tuple(sentence.text.lower().strip(".").split()) for sentence in held)


@pytest.mark.parametrize(("language", "sign"), [("english", "$"), ("german", "€")])
def test_sentences_are_plain_prose_with_capitals_and_marks(made: list[Sentence], language: str, sign: str) -> None:
    texts = [sentence.text for sentence in made if sentence.language == language]
    assert not any("{" in text or "  " in text or "_" in text for text in texts)
    ended = sum(text.strip('„"')[0].isupper() and text[-1] in '.?!"“' for text in texts)
    assert ended > 0.85 * len(texts)
    assert any(sign in text for text in texts) and any(":" in text for text in texts)
    assert max(len(text.split()) for text in texts) >= 25


def test_german_keeps_its_letters(made: list[Sentence]) -> None:
    written = {letter for sentence in made if sentence.language == "german" for letter in sentence.text}
    assert set("äöüßÄÖÜ") <= written


def test_a_missing_source_is_said() -> None:
    said: list[str] = []
    corpus.make(
        CorpusConfig(generated={"english": 5, "german": 5}, sentences_a_source=5), Path("/nowhere"), said.append
    )
    for name in ("fortunes", "fortunes-de", "trans-de-en"):
        assert any(f"{name}: left out" in line for line in said)
    assert any(line.startswith("corpus: python: ") for line in said)


def test_long_texts_are_cut_into_sentences() -> None:
    text = "It was (so they said) late; \n nobody   came. Why?"
    assert [each.text for each in corpus.sentences(text, "english")] == [
        "It was, so they said, late; nobody came.",
        "Why?",
    ]


def test_german_sentences_do_not_end_after_ordinals_and_abbreviations() -> None:
    text = "über Nacht kam am 3. Mai Dr. Weiß, z. B. um St. Pauli zu sehen. Warum? Es blieb so."
    assert [each.text for each in corpus.sentences(text, "german")] == [
        "Über Nacht kam am 3. Mai Dr. Weiß, z. B. um St. Pauli zu sehen.",
        "Warum?",
        "Es blieb so.",
    ]
