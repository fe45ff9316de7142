"""Synthesis with espeak-ng: voices, silence, shards and rounds."""

from pathlib import Path

import numpy as np
from msgspec import structs

from syrinx_stages.contract.family import FAMILY
from training.config import FULL, SMOKE
from training.data import corpus, synthesis
from training.data.corpus import Sentence
from training.data.synthesis import make_round, make_shard, read_shard, shard_path
from training.judging.intelligibility import Recognizer

SENTENCES = [
    Sentence("The old teacher found a bag.", "english"),
    Sentence("Call 555-0142 at 10:30, please!", "english"),
    Sentence("Der alte Lehrer fand um 10:30 Uhr eine Tasche.", "german"),
    Sentence("...", "english"),
    Sentence("Es war spät.", "german"),
]
CONFIG = structs.replace(SMOKE.synthesis, sentences_per_round=5, sentences_per_shard=3)


def test_every_speaker_is_intelligible() -> None:
    held = corpus.held_out("natural")[:6]
    recognizer = Recognizer([text for text, _ in held])
    for name, voices in FULL.synthesis.speakers.items():
        audio = [synthesis.utterance(each, voices["english"], 158).tobytes() for each in held]
        assert recognizer.score(audio)[0] >= 0.8, name


def test_shard_leaves_out_inaudible_sentences() -> None:
    shard = make_shard(CONFIG, SENTENCES, 0, 0)
    assert len(shard.content) == shard.frames.sum() * FAMILY.samples_per_frame
    assert set(shard.sentences.tolist()) == set(synthesis.round_lines(CONFIG, 5, 0)[:3].tolist()) - {3}


def test_rounds_are_reproducible(tmp_path: Path) -> None:
    """Bit for bit, although espeak-ng's output depends on what it synthesized before."""
    corpus.write(tmp_path / "corpus.txt", SENTENCES)
    for folder in ("one", "two"):
        assert list(make_round(CONFIG, tmp_path / "corpus.txt", tmp_path / folder, 1, 2, lambda line: None)) == [
            shard_path(tmp_path / folder, 1, index) for index in range(2)
        ]
    for index in range(2):
        one, two = (read_shard(shard_path(tmp_path / folder, 1, index)) for folder in ("one", "two"))
        assert all(np.array_equal(left, right) for left, right in zip(one, two, strict=True))
