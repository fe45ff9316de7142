"""How long a checkpoint's speech is, measured."""

import json
import random
from pathlib import Path

import msgspec
import pytest

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.normalization.durations import Durations, bounds
from training.judging.durations import beyond, fit, save, utterances
from training.judging.speak import Utterance

TRUE = Durations(
    text=5.0, letter=0.7, word=0.5, pause=3.5, voices={"us": 1.0, "slow": 1.1}, shortest=1.0, longest=1.0, late=3.0
)


def spoken(utterance: Utterance, factor: float = 1.0) -> Utterance:
    """An utterance with speech of the true duration, times a factor."""
    frames = round(bounds(utterance.sentence.text, TRUE, utterance.voice).expected * factor)
    return msgspec.structs.replace(utterance, pcm=bytes(frames * FAMILY.frame_bytes))


@pytest.fixture(scope="module")
def drawn() -> list[Utterance]:
    return utterances(400, ["us", "us", "us", "slow"], frozenset({"english"}), seed=1)


def test_durations_are_those_of_the_speech(drawn: list[Utterance]) -> None:
    chance = random.Random(2)
    found = fit([spoken(each, chance.uniform(0.97, 1.03)) for each in drawn])
    assert found.letter == pytest.approx(TRUE.letter, abs=0.05) and found.pause == pytest.approx(TRUE.pause, abs=0.5)
    ratio = found.voices["slow"] / found.voices["us"]
    assert ratio == pytest.approx(1.1, abs=0.02)
    true = [bounds(each.sentence.text, TRUE, each.voice).expected for each in drawn]
    measured = [bounds(each.sentence.text, found, each.voice).expected for each in drawn]
    assert sum(abs(one - other) for one, other in zip(true, measured, strict=True)) < 0.02 * sum(true)


def test_speech_that_lost_or_added_words_is_left_out_and_named(drawn: list[Utterance]) -> None:
    wrong = [spoken(each, 0.4 if number % 2 else 2.5) for number, each in enumerate(drawn[:20])]
    healthy = [spoken(each) for each in drawn[20:]]
    found = fit(wrong + healthy)
    assert found.letter == pytest.approx(TRUE.letter, abs=0.05)
    assert len(beyond(wrong, found)) == 20 and beyond(healthy, found) == []


def test_a_checkpoint_keeps_its_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"normalize": true, "durations": {"text": 1.0}}')
    save(TRUE, path)
    config = json.loads(path.read_text())
    assert config["normalize"] is True and msgspec.convert(config["durations"], Durations) == TRUE


def test_sentences_are_drawn_from_the_languages_of_the_checkpoint() -> None:
    drawn = utterances(200, ["us"], frozenset({"english"}), seed=3)
    assert {each.sentence.language for each in drawn} == {"english"}
    assert drawn == utterances(200, ["us"], frozenset({"english"}), seed=3)
    assert drawn != utterances(200, ["us"], frozenset({"english"}), seed=4)
