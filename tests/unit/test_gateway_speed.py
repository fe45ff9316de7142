import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.stretch import TimeStretcher

SPEEDS = [0.25, 0.5, 0.9, 1.1, 1.5, 2.0, 4.0]


def voice(seconds: float, pitch: float) -> np.ndarray:
    time = np.arange(round(seconds * FAMILY.sample_rate)) / FAMILY.sample_rate
    return sum(4000 / k * np.sin(2 * np.pi * k * pitch * time) for k in (1, 2, 3, 4))


def stretch(pcm: bytes, speed: float) -> bytes:
    stretcher = TimeStretcher(speed)
    return stretcher.feed(np.frombuffer(pcm, "<i2")).tobytes() + stretcher.finish().tobytes()


def samples(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2").astype(float)


def loudest(signal: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(signal * np.hanning(len(signal))))
    return float(np.argmax(spectrum)) * FAMILY.sample_rate / len(signal)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("pitch", [90, 220])
def test_length_changes_and_pitch_does_not(speed: float, pitch: float):
    original = voice(3, pitch)
    out = samples(stretch(original.astype("<i2").tobytes(), speed))
    assert len(out) == round(len(original) / speed)
    assert loudest(out) == pytest.approx(pitch, rel=0.02)


@pytest.mark.parametrize("speed", SPEEDS)
def test_constant_level_stays_constant(speed: float):
    out = samples(stretch(voice(3, 150).astype("<i2").tobytes(), speed))
    blocks = out[: len(out) // 480 * 480].reshape(-1, 480)
    loudness = np.sqrt(np.mean(blocks**2, axis=1))[2:-3]
    assert loudness.min() > 0.8 * loudness.max()


def test_position_of_speech_scales_with_the_speed():
    signal = np.zeros(4 * FAMILY.sample_rate)
    signal[FAMILY.sample_rate : 2 * FAMILY.sample_rate] = voice(1, 150)
    out = samples(stretch(signal.astype("<i2").tobytes(), 0.5))
    audible = np.flatnonzero(np.abs(out) > 500) / FAMILY.sample_rate
    assert audible[0] == pytest.approx(2.0, abs=0.05)
    assert audible[-1] == pytest.approx(4.0, abs=0.05)


@given(st.integers(0, 5000), st.floats(0.25, 4))
def test_any_length_at_any_speed(length: int, speed: float):
    out = stretch(np.random.default_rng(length).integers(-32768, 32767, length).astype("<i2").tobytes(), speed)
    assert len(out) == 2 * round(length / speed)
