"""What espeak-ng is asked, and what is made of its audio."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from syrinx_stages.contract.family import FAMILY
from training import corpus, synthesis
from training.config import FULL, SMOKE, TrainingConfig
from training.hearing import Recogniser
from training.sentence import Sentence
from training.synthesis import make_round, make_shard, read_shard, shard_count, shard_path

SENTENCES = [
    Sentence("The old teacher found a bag.", "english"),
    Sentence("Call 555-0142 at 10:30, please!", "english"),
    Sentence("Der alte Lehrer fand um 10:30 Uhr eine Tasche.", "german"),
    Sentence("...", "english"),
    Sentence("Es war spät.", "german"),
]
CONFIG = structs.replace(SMOKE.synthesis, sentences_a_round=5, sentences_a_shard=3)


def test_every_speaker_is_understood() -> None:
    held = corpus.held_out("natural")[:6]
    hearing = Recogniser([text for text, _ in held])
    for name, voices in FULL.synthesis.speakers.items():
        audio = [synthesis.utterance(each, voices["english"], 158).tobytes() for each in held]
        assert hearing.score(audio)[0] >= 0.8, name


@pytest.mark.parametrize("preset", [FULL, SMOKE])
def test_every_speaker_has_a_voice_of_its_own_in_every_language(preset: TrainingConfig) -> None:
    speakers = preset.synthesis.speakers
    for language in preset.corpus.generated:
        sentence = Sentence("Hallo, Maria!", language)
        heard = {synthesis.utterance(sentence, voices[language], 158).tobytes() for voices in speakers.values()}
        assert len(heard) == len(speakers) == 4


def test_a_sentence_is_read_by_the_voice_of_its_language(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[str, str]] = set()

    def utterance(sentence: Sentence, voice: str, rate: int) -> synthesis.Samples:
        asked.add((sentence.language, voice))
        return np.zeros(10 * FAMILY.samples_per_frame, np.int16)

    monkeypatch.setattr(synthesis, "utterance", utterance)
    make_shard(structs.replace(CONFIG, sentences_a_round=200, sentences_a_shard=200), SENTENCES * 40, 0, 0)
    assert asked == {each for voices in CONFIG.speakers.values() for each in voices.items()}


def test_utterances_are_whole_frames_with_little_silence() -> None:
    samples = synthesis.utterance(SENTENCES[0], "en-us", 158)
    assert len(samples) % FAMILY.samples_per_frame == 0
    begins = np.flatnonzero(np.abs(samples.astype(int)) > 100)[0] / FAMILY.sample_rate
    assert 0.03 < begins < 0.08
    assert np.abs(samples.astype(int)).max() < 0.8 * 32_768


def test_what_cannot_be_heard_is_empty() -> None:
    assert len(synthesis.utterance(SENTENCES[3], "en-us", 158)) == 0


def test_a_shard_is_made_of_what_can_be_heard() -> None:
    shard = make_shard(CONFIG, SENTENCES, 0, 0)
    assert len(shard.audio) == shard.frames.sum() * FAMILY.samples_per_frame
    assert set(shard.sentences.tolist()) == set(synthesis.chosen(CONFIG, 5, 0)[:3].tolist()) - {3}


def test_a_round_follows_from_its_number(tmp_path: Path) -> None:
    """To the last bit, though espeak-ng remembers what it has said."""
    corpus.write(tmp_path / "corpus.txt", SENTENCES)
    for folder in ("one", "two"):
        assert list(make_round(CONFIG, tmp_path / "corpus.txt", tmp_path / folder, 1, 2, lambda line: None)) == [
            shard_path(tmp_path / folder, 1, index) for index in range(2)
        ]
    for index in range(2):
        one, two = (read_shard(shard_path(tmp_path / folder, 1, index)) for folder in ("one", "two"))
        assert all(np.array_equal(left, right) for left, right in zip(one, two, strict=True))


def test_only_what_is_missing_of_a_round_is_made(tmp_path: Path) -> None:
    corpus.write(tmp_path / "corpus.txt", SENTENCES)
    said: list[str] = []
    for _ in range(2):
        assert all(path.exists() for path in make_round(CONFIG, tmp_path / "corpus.txt", tmp_path, 0, 1, said.append))
    assert said == ["synthesis: round 0: 2 of 2 shards made", "synthesis: round 0: 0 of 2 shards made"]
    read = [read_shard(shard_path(tmp_path, 0, index)).sentences for index in range(shard_count(CONFIG, 5))]
    assert set(np.concatenate(read).tolist()) == {0, 1, 2, 4}


def test_a_voice_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="nobody"):
        synthesis.utterance(SENTENCES[0], "nobody", 158)
