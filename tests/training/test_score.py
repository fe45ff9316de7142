"""Scores of generated audio."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pytest

from syrinx_stages.contract.family import FAMILY
from training.config import SMOKE
from training.data import corpus, synthesis
from training.data.corpus import Sentence
from training.judging import score
from training.judging.speak import Utterance

YES = (Sentence("Yes.", "english"),)
TIME = np.arange(10 * FAMILY.samples_per_frame) / FAMILY.sample_rate


def spoken(*audio: np.ndarray, ended: bool = True, sentences: Sequence[Sentence] = YES) -> list[Utterance]:
    fields = {"voice": "us", "streaming": False, "seed": 0, "ended": ended}
    return [
        Utterance(sentence=sentence, pcm=samples.astype("<i2").tobytes(), **fields)
        for samples, sentence in zip(audio, cycle(sentences), strict=False)
    ]


def tone(level: float = 8_000) -> np.ndarray:
    return level * np.sin(2 * np.pi * 440 * TIME)


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
