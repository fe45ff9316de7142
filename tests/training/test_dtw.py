"""Speech is matched to the right reading for any speaker and rate."""

import numpy as np
import pytest

from syrinx_stages.contract.family import FAMILY
from training import corpus, synthesis
from training.config import FULL
from training.intelligibility import ReadingMatcher
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
def matcher(readings: list[Samples]) -> ReadingMatcher:
    return ReadingMatcher(readings)


@pytest.mark.parametrize(("voice", "rate"), [(VOICES[0], 148), (VOICES[0], 168), *((name, 158) for name in VOICES[1:])])
def test_matches_other_voices_and_rates(matcher: ReadingMatcher, voice: str, rate: int) -> None:
    audio = spoken(voice, rate)
    assert np.mean([matcher.match(each) == index for index, each in enumerate(audio)]) >= 0.98
    assert (
        np.mean([np.mean(np.array(matcher.match_segments(each)) == index) for index, each in enumerate(audio[:5])])
        >= 0.9
    )


def test_segments_of_mixed_sentences_match_each_sentence(matcher: ReadingMatcher, readings: list[Samples]) -> None:
    mixed = np.concatenate((readings[3][: 2 * FAMILY.sample_rate], readings[4][-FAMILY.sample_rate - HOP :]))
    assert matcher.match_segments(mixed) == [3, 3, 3, 3, 4, 4]


def test_noise_with_a_sentences_envelope_does_not_match_it(matcher: ReadingMatcher, readings: list[Samples]) -> None:
    rng, matches = np.random.default_rng(0), []
    for each in readings:
        loudness = np.convolve(np.abs(each.astype(float)), np.ones(480) / 480, "same")
        matches.append(matcher.match((loudness * rng.normal(0, 0.7, len(each))).astype(np.int16)))
    assert np.mean(np.array(matches) == np.arange(50)) <= 0.1


def test_too_short_speech_matches_nothing(matcher: ReadingMatcher) -> None:
    for samples in (0, FAMILY.sample_rate // 10):
        assert matcher.match(np.zeros(samples, np.int16)) == -1
