"""Compares audio that a client returned with what the gateway generates for the same request and seed."""

from pathlib import Path

import av
import numpy as np
import soxr
from numpy.typing import NDArray

RATE = 24_000
"""Samples per second of references."""
PADDING = 0.16
"""Seconds by which an encoder may lengthen the audio of one response: mp3 and AAC add up to two of their frames."""
LIKENESS = 0.9
"""The least correlation with the reference of audio that a lossy format has changed."""
Samples = NDArray[np.float64]


def load(file: Path, rate: int | None) -> Samples:
    """Decodes a file to mono samples of 24 kHz, at most 1.0. `rate` is that of PCM without a header."""
    if rate is not None:
        return _resampled(np.frombuffer(file.read_bytes(), "<i2") / 32768, rate)
    with av.open(str(file)) as container:
        frames = list(container.decode(audio=0))
    assert frames, f"{file.name} has no audio"
    assert frames[0].layout.nb_channels == 1, f"{file.name} is not mono"
    pieces = [frame.to_ndarray().reshape(-1) for frame in frames]
    samples = np.concatenate(pieces)
    scaled = samples / 32768 if samples.dtype == np.int16 else samples.astype(np.float64)
    return _resampled(scaled, frames[0].sample_rate)


def _resampled(samples: Samples, rate: int) -> Samples:
    return samples if rate == RATE else soxr.resample(samples, rate, RATE)


def difference(actual: Samples, reference: Samples, responses: int) -> str | None:
    """Says how audio differs from its reference; None if it is the same but for the format's loss and padding."""
    seconds, expected = len(actual) / RATE, len(reference) / RATE
    if not expected - 0.01 <= seconds <= expected + PADDING * responses:
        return f"it has {seconds:.2f} s of audio instead of {expected:.2f} s"
    likeness = _likeness(actual, reference)
    return None if likeness >= LIKENESS else f"its audio is not what was generated: correlation {likeness:.2f}"


def _likeness(actual: Samples, reference: Samples) -> float:
    """The largest correlation of the audio of every second, averaged: padding between responses shifts them."""
    found = []
    for start in range(0, len(reference) - RATE // 2, RATE):
        part = reference[start : start + RATE]
        around = actual[max(0, start - RATE // 4) : start + 2 * RATE]
        lags = len(around) - len(part) + 1
        size = len(around) + len(part)
        products = np.fft.irfft(np.fft.rfft(around, size) * np.fft.rfft(part, size).conj(), size)[:lags]
        sums = np.concatenate(([0.0], np.cumsum(around**2)))
        energy = np.sqrt((sums[len(part) :] - sums[:lags]) * np.sum(part**2))
        found.append(np.max(products / np.maximum(energy, 1e-9)))
    return float(np.mean(found))
