"""Finds the reading that speech is most similar to by dynamic time warping (DTW), in any language.

Features are mel cepstra and their slopes, normalized per utterance, so that level, microphone and most of the
speaker's voice make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from syrinx_stages.contract.family import FAMILY

from .codec_loss import mel_filters
from .synthesis import Samples

_HOP, _WINDOW = FAMILY.sample_rate // 50, FAMILY.sample_rate // 25
_BANDS, _CEPSTRA = 26, 12
_MIN_HZ, _MAX_HZ = 80.0, 7_600.0
_FLOOR = 1e-5
"""Silence threshold relative to the utterance's loudest band: -50 dB."""
_SEGMENT = 25
"""Feature frames of a segment: half a second."""

Features = npt.NDArray[np.float32]
"""[frames of 20 ms, 24]."""
_FILTERS = mel_filters(_WINDOW, _BANDS, _MIN_HZ, _MAX_HZ).numpy().T
_COSINES = np.cos(np.pi * (np.arange(_BANDS)[:, None] + 0.5) * np.arange(1, _CEPSTRA + 1) / _BANDS)
"""[bands, cepstra]: the transform to cepstra 1 to 12; cepstrum 0, the level, is left out."""


def features(samples: Samples) -> Features:
    """Returns the features of 16-bit samples at 24 kHz, padded with silence to at least two windows."""
    padded = np.pad(samples.astype(np.float64), (0, max(0, 2 * _WINDOW - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP] * np.hanning(_WINDOW)
    bands = np.abs(np.fft.rfft(frames)) ** 2 @ _FILTERS
    cepstra = np.log(np.maximum(bands, _FLOOR * bands.max() + 1)) @ _COSINES
    both = np.concatenate((cepstra, np.gradient(cepstra, axis=0)), 1)
    normalized: Features = ((both - both.mean(0)) / (both.std(0) + 1e-9)).astype(np.float32)
    return normalized


class ReadingMatcher:
    """Matches speech against a set of at least one reading."""

    def __init__(self, readings: Sequence[Samples]) -> None:
        each = [features(reading) for reading in readings]
        self._lengths = np.array([len(frames) for frames in each])
        self._readings = np.zeros((len(each), self._lengths.max(), 2 * _CEPSTRA), np.float32)
        for row, frames in zip(self._readings, each, strict=True):
            row[: len(frames)] = frames
        inside = np.arange(self._readings.shape[1]) < self._lengths[:, None]
        self._squared_norms = np.where(inside, np.square(self._readings).sum(-1), np.inf)

    def match(self, samples: Samples) -> int:
        """Returns the index of the reading nearest to the whole speech; -1 if it is too short for any."""
        start = np.full_like(self._squared_norms, np.inf)
        start[:, 0] = 0
        ends = self._path_costs(features(samples), start)[np.arange(len(start)), self._lengths - 1]
        return int(ends.argmin()) if np.isfinite(ends).any() else -1

    def match_segments(self, samples: Samples) -> list[int]:
        """Returns the index of the reading that contains the nearest match for each full half second of speech.

        Stricter than `match`, which finds a sentence even if half of it is wrong.
        """
        speech, anywhere = features(samples), np.zeros_like(self._squared_norms)
        starts = range(0, max(1, len(speech) - _SEGMENT + 1), _SEGMENT)
        return [int(self._path_costs(speech[at : at + _SEGMENT], anywhere).min(1).argmin()) for at in starts]

    def _path_costs(self, speech: Features, costs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns the costs [readings, frames] of the best paths to each frame, given those before `speech`.

        A path visits each frame of the speech once and advances zero, one or two frames of the reading each time.
        """
        for frame in speech:
            best = costs.copy()
            best[:, 1:] = np.minimum(best[:, 1:], costs[:, :-1])
            best[:, 2:] = np.minimum(best[:, 2:], costs[:, :-2])
            squared_distance = self._squared_norms - 2 * (self._readings @ frame) + np.square(frame).sum()
            costs = best + np.sqrt(np.maximum(squared_distance, 0))
        return costs
