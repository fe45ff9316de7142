"""Which of some readings does speech sound most like? Dynamic time warping, in whatever language.

Speech and readings are cepstra and their slopes, each utterance normalised by itself, so that level, microphone and
most of a voice make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from syrinx_stages.contract.family import FAMILY

from .synthesis import Samples

_HOP, _WINDOW = FAMILY.sample_rate // 50, FAMILY.sample_rate // 25
_BANDS, _CEPSTRA = 26, 12
_LOWEST, _HIGHEST = 80.0, 7_600.0
"""Hz."""
_FLOOR = 1e-5
"""Of an utterance's loudest band: -50 dB. What is below it is silence."""

_PIECE = 25
"""Frames: half a second."""

Features = npt.NDArray[np.float32]
"""[frames of 20 ms, 24]."""


def _filters() -> npt.NDArray[np.float64]:
    """Triangles [_WINDOW / 2 + 1, _BANDS], evenly spaced on the mel scale."""
    low, high = (2595 * np.log10(1 + edge / 700) for edge in (_LOWEST, _HIGHEST))
    edges = 700 * (10 ** (np.linspace(low, high, _BANDS + 2) / 2595) - 1)
    frequency = np.fft.rfftfreq(_WINDOW, 1 / FAMILY.sample_rate)[:, None]
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    triangles: npt.NDArray[np.float64] = np.minimum(
        (frequency - left) / (middle - left), (right - frequency) / (right - middle)
    )
    return triangles.clip(min=0)


def _cosines() -> npt.NDArray[np.float64]:
    """[_BANDS, _CEPSTRA]: cepstra 1 to 12; the level, which is the first, is left out."""
    band, number = np.arange(_BANDS)[:, None], np.arange(1, _CEPSTRA + 1)
    cosines: npt.NDArray[np.float64] = np.cos(np.pi * (band + 0.5) * number / _BANDS)
    return cosines


def features(samples: Samples) -> Features:
    """Of 16-bit samples at 24 kHz. Speech shorter than two windows is taken with silence after it."""
    padded = np.pad(samples.astype(np.float64), (0, max(0, 2 * _WINDOW - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP] * np.hanning(_WINDOW)
    bands = np.abs(np.fft.rfft(frames)) ** 2 @ _filters()
    cepstra = np.log(np.maximum(bands, _FLOOR * bands.max() + 1)) @ _cosines()
    both = np.concatenate((cepstra, np.gradient(cepstra, axis=0)), 1)
    normal: Features = ((both - both.mean(0)) / (both.std(0) + 1e-9)).astype(np.float32)
    return normal


class Nearest:
    """Knows some readings, at least one."""

    def __init__(self, readings: Sequence[Samples]) -> None:
        known = [features(each) for each in readings]
        self._lengths = np.array([len(each) for each in known])
        self._known = np.zeros((len(known), self._lengths.max(), 2 * _CEPSTRA), np.float32)
        for row, each in zip(self._known, known, strict=True):
            row[: len(each)] = each
        inside = np.arange(self._known.shape[1]) < self._lengths[:, None]
        self._squares = np.where(inside, np.square(self._known).sum(-1), np.inf)

    def find(self, samples: Samples) -> int:
        """Which reading speech is nearest to, from beginning to end; -1 where it is too short to be any."""
        start = np.full_like(self._squares, np.inf)
        start[:, 0] = 0
        ends = self._walk(features(samples), start)[np.arange(len(start)), self._lengths - 1]
        return int(ends.argmin()) if np.isfinite(ends).any() else -1

    def pieces(self, samples: Samples) -> list[int]:
        """Which reading each half second of speech is nearest to, wherever in it; what is left at the end is not asked.

        A whole sentence is found though half of it is wrong; its pieces are not.
        """
        heard, anywhere = features(samples), np.zeros_like(self._squares)
        starts = range(0, max(1, len(heard) - _PIECE + 1), _PIECE)
        return [int(self._walk(heard[at : at + _PIECE], anywhere).min(1).argmin()) for at in starts]

    def _walk(self, heard: Features, path: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The lengths of the best paths to each frame of each reading [readings, frames], `path` before and after.

        A path takes each frame that is heard once; from one to the next it stays in the reading, or goes on by one
        frame or two.
        """
        for frame in heard:
            best = path.copy()
            best[:, 1:] = np.minimum(best[:, 1:], path[:, :-1])
            best[:, 2:] = np.minimum(best[:, 2:], path[:, :-2])
            away = self._squares - 2 * (self._known @ frame) + np.square(frame).sum()
            path = best + np.sqrt(np.maximum(away, 0))
        return path
