"""Audible samples, the trimming of leading silence, and the silence between segments."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from syrinx_stages.gateway.audio.seam import Seam


def hum(samples: int, seed: int = 0) -> np.ndarray:
    """Inaudible noise."""
    return np.random.default_rng(seed).integers(1 - AUDIBLE_PEAK, AUDIBLE_PEAK, samples).astype("<i2")


def voice(samples: int, seed: int = 0) -> np.ndarray:
    """Sound that is audible from its first sample."""
    return np.random.default_rng(seed).integers(AUDIBLE_PEAK, 9_000, samples).astype("<i2")


def click() -> np.ndarray:
    """A click at the start of a stream."""
    return voice(CLICK_SAMPLES // 2)


def trim(samples: np.ndarray, chunk: int = 2 * FAMILY.samples_per_frame) -> np.ndarray:
    """Trims a stream that is fed in equal chunks."""
    leading = LeadingSilenceTrimmer()
    chunks = [leading.feed(samples[start : start + chunk].tobytes()) for start in range(0, len(samples), chunk)]
    return np.frombuffer(b"".join([*chunks, leading.end()]), "<i2")


def test_speech_follows_a_short_lead_in():
    sound = voice(9_000)
    samples = np.concatenate([hum(1_950), sound])
    trimmed = trim(samples)
    assert MIN_LEAD_IN <= len(trimmed) - len(sound) <= MAX_LEAD_IN
    assert (trimmed == samples[-len(trimmed) :]).all(), "the rest is unchanged"


def test_cuts_at_the_quietest_sample_of_the_lead_in():
    samples = np.concatenate([np.full(1_950, 50), voice(9_000)]).astype("<i2")
    samples[1_950 - 170] = -3
    assert trim(samples)[0] == -3
    assert len(trim(samples)) == 9_000 + 170


def test_keeps_the_minimum_of_digital_silence():
    assert len(trim(np.concatenate([hum(1_950) * 0, voice(9_000)]))) == 9_000 + MIN_LEAD_IN


@pytest.mark.parametrize("before", [0, 1, CLICK_SAMPLES, MIN_LEAD_IN])
def test_does_not_trim_immediate_speech(before: int):
    samples = np.concatenate([hum(before), voice(9_000)])
    assert (trim(samples) == samples).all()


def test_the_loudest_negative_sample_is_audible():
    samples = np.concatenate([hum(1_950), np.full(9_000, -32_768)]).astype("<i2")
    assert MIN_LEAD_IN <= len(trim(samples)) - 9_000 <= MAX_LEAD_IN
    samples[: CLICK_SAMPLES // 2] = -32_768
    assert MIN_LEAD_IN <= len(trim(samples)) - 9_000 <= MAX_LEAD_IN


def test_a_decoder_click_is_removed_with_the_silence_after_it():
    trimmed = trim(np.concatenate([click(), hum(1_950), voice(9_000)]))
    assert MIN_LEAD_IN <= len(trimmed) - 9_000 <= MAX_LEAD_IN
    assert first_audible(trimmed.tobytes()) == len(trimmed) - 9_000


def test_a_long_pause_is_cut_at_most_by_the_limit():
    samples = np.concatenate([hum(30_000), voice(9_000)])
    cut = len(samples) - len(trim(samples))
    assert MAX_CUT - (MAX_LEAD_IN - MIN_LEAD_IN) <= cut <= MAX_CUT


def test_a_long_pause_is_forwarded_while_it_lasts():
    leading = LeadingSilenceTrimmer()
    silence = hum(FAMILY.samples_per_frame).tobytes()
    assert [bool(leading.feed(silence)) for _ in range(6)] == [False, False, False, True, True, True]


@pytest.mark.parametrize("before", [hum(0), click()], ids=["", "with a click"])
def test_a_short_silent_stream_is_not_trimmed(before: np.ndarray):
    samples = np.concatenate([before, hum(FAMILY.samples_per_frame)])
    assert (trim(samples) == samples).all()


def test_withheld_is_always_up_to_date():
    leading = LeadingSilenceTrimmer()
    leading.feed(hum(FAMILY.samples_per_frame).tobytes())
    assert leading.withheld == FAMILY.samples_per_frame, "all of it may be silence"
    samples = np.concatenate([hum(100, seed=1), voice(FAMILY.samples_per_frame)])
    forwarded = leading.feed(samples.tobytes())
    assert leading.withheld == FAMILY.samples_per_frame + len(samples) - len(forwarded) // 2
    leading.feed(hum(FAMILY.samples_per_frame).tobytes())
    assert leading.withheld == FAMILY.samples_per_frame + len(samples) - len(forwarded) // 2
    silent = LeadingSilenceTrimmer()
    silent.feed(hum(FAMILY.samples_per_frame).tobytes())
    silent.end()
    assert silent.withheld == 0


@pytest.mark.parametrize("seed", range(40))
def test_the_result_does_not_depend_on_the_chunks(seed: int):
    draw = random.Random(seed)
    silence = draw.choice([0, 60, 100, 200, 300, 1_900, 1_950, 3_000, MAX_CUT, MAX_CUT + 130, 9_000])
    parts = [hum(silence, seed), voice(draw.choice([0, 1, 5_000]), seed), hum(draw.randrange(4_000), seed)]
    samples = np.concatenate([click(), *parts] if draw.random() < 0.5 else [*parts, voice(1)])
    whole = trim(samples, chunk=len(samples))
    for _ in range(10):
        leading, forwarded, start = LeadingSilenceTrimmer(), b"", 0
        while start < len(samples):
            size = draw.choice([1, 7, 120, 241, FAMILY.samples_per_frame, 3 * FAMILY.samples_per_frame])
            forwarded += leading.feed(samples[start : start + size].tobytes())
            start += size
        forwarded += leading.end()
        assert forwarded == whole.tobytes()
        assert leading.withheld == len(samples) - len(whole) <= MAX_CUT


@given(st.integers(0, 3000), st.integers(-3000, 3000), st.floats(0, 1), st.integers(1, 700))
def test_a_pause_lengthens_the_silence_without_a_step(silent, last, seconds, size):
    """It does not depend on how the audio is divided."""
    samples = np.concatenate((np.full(1000, 9000), np.zeros(silent), [last])).astype("<i2")
    pieces, whole = Seam(), Seam()
    for start in range(0, len(samples), size):
        pieces.add(samples[start : start + size].tobytes())
    whole.add(samples.tobytes())
    pause = whole.pause(seconds)
    assert pieces.pause(seconds) == pause
    both = np.concatenate((samples, np.frombuffer(pause, "<i2"))).astype(int)
    assert np.abs(np.diff(both[-len(pause) // 2 - 1 :])).max() <= abs(last) / 100 + 1
    silence = len(both) - 1 - int(np.flatnonzero(np.abs(both) >= AUDIBLE_PEAK)[-1])
    assert silence >= round(seconds * FAMILY.sample_rate) - FAMILY.sample_rate // 200
    assert pause[-2:] == b"\0\0"
