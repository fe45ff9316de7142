import random

import numpy as np
import pytest

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import (
    AUDIBLE_PEAK,
    CLICK_SAMPLES,
    MAX_CUT,
    MAX_LEAD_IN,
    MIN_LEAD_IN,
    LeadingSilenceTrimmer,
    first_audible,
)


def hum(samples: int, seed: int = 0) -> np.ndarray:
    """Noise that nobody hears."""
    return np.random.default_rng(seed).integers(1 - AUDIBLE_PEAK, AUDIBLE_PEAK, samples).astype("<i2")


def voice(samples: int, seed: int = 0) -> np.ndarray:
    """Sound, audible from its first sample on."""
    return np.random.default_rng(seed).integers(AUDIBLE_PEAK, 9_000, samples).astype("<i2")


def click() -> np.ndarray:
    """What a decoder may begin with."""
    return voice(CLICK_SAMPLES // 2)


def heard(samples: np.ndarray, chunk: int = 2 * FAMILY.samples_per_frame) -> np.ndarray:
    """What a listener is sent of a stream that comes in equal chunks."""
    leading = LeadingSilenceTrimmer()
    given = [leading.feed(samples[start : start + chunk].tobytes()) for start in range(0, len(samples), chunk)]
    return np.frombuffer(b"".join([*given, leading.end()]), "<i2")


def test_speech_follows_a_short_lead_in():
    sound = voice(9_000)
    samples = np.concatenate([hum(1_950), sound])
    left = heard(samples)
    assert MIN_LEAD_IN <= len(left) - len(sound) <= MAX_LEAD_IN
    assert (left == samples[-len(left) :]).all(), "nothing else is changed"


def test_the_cut_is_where_the_lead_in_is_lowest():
    samples = np.concatenate([np.full(1_950, 50), voice(9_000)]).astype("<i2")
    samples[1_950 - 170] = -3
    assert heard(samples)[0] == -3
    assert len(heard(samples)) == 9_000 + 170


def test_of_digital_silence_as_little_as_possible_is_kept():
    assert len(heard(np.concatenate([hum(1_950) * 0, voice(9_000)]))) == 9_000 + MIN_LEAD_IN


@pytest.mark.parametrize("before", [0, 1, CLICK_SAMPLES, MIN_LEAD_IN])
def test_speech_that_begins_at_once_is_left_alone(before: int):
    samples = np.concatenate([hum(before), voice(9_000)])
    assert (heard(samples) == samples).all()


def test_the_loudest_negative_sample_is_loud():
    samples = np.concatenate([hum(1_950), np.full(9_000, -32_768)]).astype("<i2")
    assert MIN_LEAD_IN <= len(heard(samples)) - 9_000 <= MAX_LEAD_IN
    samples[: CLICK_SAMPLES // 2] = -32_768
    assert MIN_LEAD_IN <= len(heard(samples)) - 9_000 <= MAX_LEAD_IN


def test_a_click_of_the_decoder_goes_with_the_silence_that_follows_it():
    left = heard(np.concatenate([click(), hum(1_950), voice(9_000)]))
    assert MIN_LEAD_IN <= len(left) - 9_000 <= MAX_LEAD_IN
    assert first_audible(left.tobytes()) == len(left) - 9_000


def test_a_long_pause_is_meant():
    samples = np.concatenate([hum(30_000), voice(9_000)])
    cut = len(samples) - len(heard(samples))
    assert MAX_CUT - (MAX_LEAD_IN - MIN_LEAD_IN) <= cut <= MAX_CUT


def test_a_long_pause_is_sent_while_it_lasts():
    leading = LeadingSilenceTrimmer()
    silence = hum(FAMILY.samples_per_frame).tobytes()
    assert [bool(leading.feed(silence)) for _ in range(6)] == [False, False, False, True, True, True]


@pytest.mark.parametrize("before", [hum(0), click()], ids=["", "with a click"])
def test_what_is_short_and_silent_from_start_to_end_is_sent_as_it_is(before: np.ndarray):
    samples = np.concatenate([before, hum(FAMILY.samples_per_frame)])
    assert (heard(samples) == samples).all()


def test_what_is_withheld_is_known_at_any_time():
    leading = LeadingSilenceTrimmer()
    leading.feed(hum(FAMILY.samples_per_frame).tobytes())
    assert leading.withheld == FAMILY.samples_per_frame, "all of it may be silence"
    samples = np.concatenate([hum(100, seed=1), voice(FAMILY.samples_per_frame)])
    given = leading.feed(samples.tobytes())
    assert leading.withheld == FAMILY.samples_per_frame + len(samples) - len(given) // 2
    leading.feed(hum(FAMILY.samples_per_frame).tobytes())
    assert leading.withheld == FAMILY.samples_per_frame + len(samples) - len(given) // 2
    silent = LeadingSilenceTrimmer()
    silent.feed(hum(FAMILY.samples_per_frame).tobytes())
    silent.end()
    assert silent.withheld == 0


@pytest.mark.parametrize("seed", range(40))
def test_chunks_do_not_show(seed: int):
    draw = random.Random(seed)
    silence = draw.choice([0, 60, 100, 200, 300, 1_900, 1_950, 3_000, MAX_CUT, MAX_CUT + 130, 9_000])
    parts = [hum(silence, seed), voice(draw.choice([0, 1, 5_000]), seed), hum(draw.randrange(4_000), seed)]
    samples = np.concatenate([click(), *parts] if draw.random() < 0.5 else [*parts, voice(1)])
    whole = heard(samples, chunk=len(samples))
    for _ in range(10):
        leading, given, start = LeadingSilenceTrimmer(), b"", 0
        while start < len(samples):
            size = draw.choice([1, 7, 120, 241, FAMILY.samples_per_frame, 3 * FAMILY.samples_per_frame])
            given += leading.feed(samples[start : start + size].tobytes())
            start += size
        given += leading.end()
        assert given == whole.tobytes()
        assert leading.withheld == len(samples) - len(whole) <= MAX_CUT
