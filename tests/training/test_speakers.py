"""The speakers that voice cloning is learned from, and those it is tested with."""

import numpy as np
import pytest
from msgspec import structs

from syrinx_stages.contract.family import FAMILY
from training.config import BASE, BASE_SMOKE, UNSEEN_VARIANTS, VARIANTS
from training.data import synthesis
from training.data.corpus import Sentence
from training.data.speakers import MAX_PITCH, MAX_SCALE, MIN_PITCH, Timbre, draw, invent

SENTENCE = Sentence("The old teacher found a bag near the river.", "english")


def test_draws_are_reproducible_and_within_their_ranges() -> None:
    speakers = draw(("m1", "f1"), 40, 3)
    assert speakers == draw(("m1", "f1"), 40, 3) != draw(("m1", "f1"), 40, 4)
    assert list(speakers.voices)[:3] == ["m1-0", "f1-0", "m1-1"]
    pitches, scales = zip(*((each.pitch, each.scale) for each in speakers.timbres.values()), strict=True)
    assert MIN_PITCH <= min(pitches) < 40 and 60 < max(pitches) <= MAX_PITCH
    assert 1 / MAX_SCALE - 1e-3 <= min(scales) < 0.95 and 1.05 < max(scales) <= MAX_SCALE + 1e-3


def test_invented_speakers_have_variants_of_their_own() -> None:
    speakers = invent(40, 3)
    assert speakers == invent(40, 3) != invent(40, 4)
    assert len({each.variant for each in speakers.timbres.values()}) == 40


def test_a_timbres_variant_is_heard_and_does_not_outlast_its_utterance() -> None:
    def said(variant: str) -> synthesis.Samples:
        return synthesis.utterance(SENTENCE, "en-us", 158, Timbre(variant=variant))

    low, plain, high, again = map(said, ("name x\npitch 60 70\n", "", "name x\npitch 200 210\n", ""))
    assert fundamental(low) < 80 < 180 < fundamental(high)
    assert fundamental(again) == pytest.approx(fundamental(plain), rel=0.02)


@pytest.mark.parametrize("speaker", ["invented-0", "invented-1"])
def test_invented_speakers_are_audible(speaker: str) -> None:
    """And below full scale."""
    samples = synthesis.reading(BASE.synthesis, SENTENCE, speaker, 158)
    assert 3_000 < np.abs(samples.astype(int)).max() < 32_000


def centroid(samples: synthesis.Samples) -> float:
    power = np.abs(np.fft.rfft(samples.astype(float))) ** 2
    return float((np.arange(len(power)) * power).sum() / power.sum()) * FAMILY.sample_rate / len(samples)


def test_scale_raises_all_frequencies_and_keeps_the_tempo() -> None:
    low, high = (synthesis.utterance(SENTENCE, "en-us", 158, Timbre(scale=scale)) for scale in (1 / 1.12, 1.12))
    assert 1.1 < centroid(high) / centroid(low) < 1.4
    assert 0.9 < len(high) / len(low) < 1.1


def fundamental(samples: synthesis.Samples) -> float:
    """Returns the frequency in Hz, of 60 to 300, at which the whole utterance correlates most with itself."""
    correlation = np.fft.irfft(np.abs(np.fft.rfft(samples.astype(float), 2 * len(samples))) ** 2)
    first, last = FAMILY.sample_rate // 300, FAMILY.sample_rate // 60
    return FAMILY.sample_rate / (first + int(correlation[first:last].argmax()))


def test_pitch_does_not_outlast_its_utterance() -> None:
    """The library keeps its parameters."""
    before, high, after = (
        fundamental(synthesis.utterance(SENTENCE, "en-us", 158, Timbre(pitch=pitch))) for pitch in (50, 80, 50)
    )
    assert after == pytest.approx(before, rel=0.02)
    assert high > 1.2 * before


def test_training_never_hears_the_unseen_speakers() -> None:
    assert not set(VARIANTS) & set(UNSEEN_VARIANTS)
    names = list(BASE.synthesis.speakers)
    assert len(names) == 2_020 and len(BASE.synthesis.unseen) == 20
    assert {name.rpartition("-")[0] for name in BASE.synthesis.unseen} == set(UNSEEN_VARIANTS)
    config = structs.replace(BASE_SMOKE.synthesis, sentences_per_round=24, sentences_per_shard=24)
    shard = synthesis.make_shard(config, [SENTENCE] * 24, 0, 0)
    heard = {list(config.speakers)[index] for index in shard.speakers}
    assert heard and not heard & config.unseen
