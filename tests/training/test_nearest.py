"""Speech is told from other speech, whoever speaks and however fast."""

import numpy as np
import pytest

from syrinx_stages.contract.family import FAMILY
from training import corpus, synthesis
from training.config import FULL
from training.nearest import Nearest, features
from training.synthesis import Samples

HELD = corpus.held_out("german")
HOP = FAMILY.sample_rate // 50
VOICES = [voices["german"] for voices in FULL.synthesis.speakers.values()]


def spoken(voice: str, rate: int) -> list[Samples]:
    return [synthesis.utterance(sentence, voice, rate) for sentence in HELD]


@pytest.fixture(scope="module")
def readings() -> list[Samples]:
    return spoken(VOICES[0], 158)


@pytest.fixture(scope="module")
def known(readings: list[Samples]) -> Nearest:
    return Nearest(readings)


@pytest.mark.parametrize(("voice", "rate"), [(VOICES[0], 148), (VOICES[0], 168), *((name, 158) for name in VOICES[1:])])
def test_a_sentence_is_found_in_another_voice_and_at_another_rate(known: Nearest, voice: str, rate: int) -> None:
    audio = spoken(voice, rate)
    assert np.mean([known.find(each) == index for index, each in enumerate(audio)]) >= 0.98
    assert np.mean([np.mean(np.array(known.pieces(each)) == index) for index, each in enumerate(audio[:5])]) >= 0.9


def test_of_a_sentence_that_turns_into_another_each_piece_is_found(known: Nearest, readings: list[Samples]) -> None:
    mixed = np.concatenate((readings[3][: 2 * FAMILY.sample_rate], readings[4][-FAMILY.sample_rate - HOP :]))
    assert known.pieces(mixed) == [3, 3, 3, 3, 4, 4]


def test_level_makes_no_difference(readings: list[Samples]) -> None:
    loud, soft = features(readings[0]), features((readings[0] // 4).astype(np.int16))
    assert np.abs(loud - soft).mean() < 0.1


def test_noise_of_a_sentences_loudness_is_not_that_sentence(known: Nearest, readings: list[Samples]) -> None:
    draw, found = np.random.default_rng(0), []
    for each in readings:
        loudness = np.convolve(np.abs(each.astype(float)), np.ones(480) / 480, "same")
        found.append(known.find((loudness * draw.normal(0, 0.7, len(each))).astype(np.int16)))
    assert np.mean(np.array(found) == np.arange(50)) <= 0.1


def test_what_is_too_short_is_nothing(known: Nearest) -> None:
    for samples in (0, FAMILY.sample_rate // 10):
        assert known.find(np.zeros(samples, np.int16)) == -1
