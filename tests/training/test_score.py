"""Scores of generated audio."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pytest

from syrinx_stages.contract.family import FAMILY
from training import corpus, score, synthesis
from training.config import SMOKE
from training.corpus import Sentence
from training.intelligibility import Recognizer
from training.speak import Utterance

TIME = np.arange(10 * FAMILY.samples_per_frame) / FAMILY.sample_rate


def spoken(
    *audio: np.ndarray, ended: bool = True, sentences: Sequence[Sentence] = (Sentence("Yes.", "english"),)
) -> list[Utterance]:
    return [
        Utterance(
            sentence=sentence,
            voice="us",
            streaming=False,
            seed=0,
            pcm=samples.astype("<i2").tobytes(),
            ended=ended,
        )
        for samples, sentence in zip(audio, cycle(sentences), strict=False)
    ]


def tone(level: float = 8_000) -> np.ndarray:
    return level * np.sin(2 * np.pi * 440 * TIME)


def test_smooth_sound_has_a_border_ratio_of_one() -> None:
    assert score.border_ratio([tone()]) == pytest.approx(1, abs=0.2)


def test_clicks_at_borders_raise_the_border_ratio() -> None:
    clicked = tone()
    clicked[5 * FAMILY.samples_per_frame :] += 2_000
    assert score.border_ratio([clicked]) > 2


def test_leading_silence_is_the_longest_of_all_sentences() -> None:
    late = tone()
    late[: FAMILY.sample_rate // 10] = 0
    found = score.score("case", spoken(tone(), late), None, SMOKE.synthesis)
    assert found.leading_ms == pytest.approx(100, abs=1)
    assert found.peak_dbfs == pytest.approx(20 * np.log10(8_000 / 32_768), abs=0.05)


def test_runaways_and_empty_sentences_are_counted() -> None:
    found = score.score(
        "case", spoken(tone(), np.zeros(FAMILY.samples_per_frame), np.zeros(0), ended=False), None, SMOKE.synthesis
    )
    assert (found.runaways, found.empty, found.sentences) == (3, 2, 3)


def test_durations_are_compared_with_espeaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        synthesis, "utterance", lambda sentence, voice, rate, timbre: np.zeros(10 * FAMILY.samples_per_frame, np.int16)
    )
    found = score.score("case", spoken(tone(), tone()[: 5 * FAMILY.samples_per_frame], tone()), None, SMOKE.synthesis)
    assert found.duration_ratio == (0.5, 1.0, 1.0)
    assert found.out_of_range == 1


def test_sentence_nearest_to_another_reading_is_an_error() -> None:
    held = corpus.held_out("german")[:3]
    audio = [synthesis.utterance(each, "de", 150) for each in held]
    mixed = spoken(audio[1], audio[1], audio[2], sentences=held)
    found = score.score("us-whole-german", mixed, None, SMOKE.synthesis)
    assert (found.identified, found.nearest) == (None, pytest.approx(2 / 3))
    assert found.segments == pytest.approx(2 / 3, abs=0.1)
    assert found.errors == [f"{held[0].text!r} nearest to {held[1].text!r}"]
    assert score.score("us-whole-random", mixed, None, SMOKE.synthesis).nearest is None


def test_noise_is_not_identified() -> None:
    noise = np.random.default_rng(0).normal(0, 3_000, FAMILY.sample_rate).astype("<i2").tobytes()
    share, errors = Recognizer(["The old teacher found a bag.", "Nobody came."]).score([noise, noise])
    assert share <= 0.5 and len(errors) >= 1


def test_plain_recognizer_gets_audio_without_leading_silence() -> None:
    held = corpus.held_out("templates")[:4]
    audio = [synthesis.utterance(each, "en-us", 158) for each in held]
    late = [np.pad(each, (2_400, 0)) for each in audio]
    case = spoken(*audio[:3], audio[0], sentences=held)
    texts = [each.text for each in held]
    plain = Recognizer(texts, plain=True)
    found = score.score("us-whole-templates", case, (Recognizer(texts), plain), SMOKE.synthesis)
    assert found.identified == 0.75
    # espeak-ng's audio depends slightly on what the process synthesized before, which the plain recognizer notices.
    assert 0.5 <= found.identified_plain <= 0.75
    assert len(found.errors) == 2
    one, other = score.trim_leading_silence(audio[0].tobytes()), score.trim_leading_silence(late[0].tobytes())
    assert one == other and len(one) < 2 * len(audio[0])
