"""What is said of audio."""

import numpy as np
import pytest

from syrinx_stages.contract.family import FAMILY
from training import corpus, score, speak, synthesis
from training.config import SMOKE
from training.hearing import Recogniser, Recognisers

TIME = np.arange(10 * FAMILY.samples_per_frame) / FAMILY.sample_rate


def spoken(*audio: np.ndarray, ended: bool = True) -> speak.Spoken:
    pcm = np.concatenate(audio).astype(np.int16)
    count = len(audio)
    return speak.Spoken(
        pcm,
        np.array([len(each) for each in audio]),
        np.full(count, ended),
        np.full(count, "Yes."),
        np.full(count, "english"),
        "us",
    )


def tone(level: float = 8_000) -> np.ndarray:
    return level * np.sin(2 * np.pi * 440 * TIME)


def test_a_smooth_sound_has_no_borders() -> None:
    assert score.border_ratio([tone()]) == pytest.approx(1, abs=0.2)


def test_clicks_at_borders_are_seen() -> None:
    clicked = tone()
    clicked[5 * FAMILY.samples_per_frame :] += 2_000
    assert score.border_ratio([clicked]) > 2


def test_silence_at_the_beginning_is_the_longest() -> None:
    late = tone()
    late[: FAMILY.sample_rate // 10] = 0
    found = score.score("case", spoken(tone(), late), None, SMOKE.synthesis)
    assert found.leading_ms == pytest.approx(100, abs=1)
    assert found.peak_dbfs == pytest.approx(20 * np.log10(8_000 / 32_768), abs=0.05)


def test_runaways_and_nothing_are_counted() -> None:
    found = score.score(
        "case", spoken(tone(), np.zeros(FAMILY.samples_per_frame), np.zeros(0), ended=False), None, SMOKE.synthesis
    )
    assert (found.unended, found.empty, found.sentences) == (3, 2, 3)


def test_durations_are_compared_with_espeaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        synthesis, "utterance", lambda sentence, voice, rate: np.zeros(10 * FAMILY.samples_per_frame, np.int16)
    )
    found = score.score("case", spoken(tone(), tone()[: 5 * FAMILY.samples_per_frame], tone()), None, SMOKE.synthesis)
    assert found.duration_ratio == (0.5, 1.0, 1.0)
    assert found.out_of_range == 1


def test_what_is_nearest_to_another_sentence_is_missed() -> None:
    held = corpus.held_out("german")[:3]
    audio = [synthesis.utterance(each, "de", 150) for each in held]
    mixed = spoken(audio[1], audio[1], audio[2])._replace(
        texts=np.array([each.text for each in held]), languages=np.full(3, "german")
    )
    found = score.score("us-whole-german", mixed, None, SMOKE.synthesis)
    assert (found.identified, found.nearest) == (None, pytest.approx(2 / 3))
    assert found.pieces == pytest.approx(2 / 3, abs=0.1)
    assert found.missed == [f"{held[0].text!r} nearest to {held[1].text!r}"]
    assert score.score("us-whole-random", mixed, None, SMOKE.synthesis).nearest is None


def test_a_table_has_a_line_for_each_case() -> None:
    found = score.score("us-whole-natural", spoken(tone()), None, SMOKE.synthesis)
    lines = score.table([found, found]).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1


def test_words_that_the_recogniser_does_not_know_are_named() -> None:
    with pytest.raises(ValueError, match="qzxv"):
        Recogniser(["A qzxv."])


def test_noise_is_no_sentence() -> None:
    noise = np.random.default_rng(0).normal(0, 3_000, FAMILY.sample_rate).astype("<i2").tobytes()
    share, missed = Recogniser(["The old teacher found a bag.", "Nobody came."]).score([noise, noise])
    assert share <= 0.5 and len(missed) >= 1


def test_what_listeners_are_sent_is_heard_plain() -> None:
    """Silence before it makes a difference to nobody: it is not sent."""
    held = corpus.held_out("templates")[:4]
    audio = [synthesis.utterance(each, "en-us", 158) for each in held]
    late = [np.pad(each, (2_400, 0)) for each in audio]
    said = spoken(*audio[:3], audio[0])._replace(texts=np.array([each.text for each in held]))
    recognisers = Recognisers.of([each.text for each in held])
    found = score.score("us-whole-templates", said, recognisers, SMOKE.synthesis)
    assert (found.identified, found.identified_plain) == (0.75, 0.75)
    assert len(found.missed) == 2
    one, other = score.sent(audio[0].tobytes()), score.sent(late[0].tobytes())
    assert one == other and len(one) < 2 * len(audio[0])
    assert recognisers.plain.hear(one) == recognisers.plain.sentences[0]
