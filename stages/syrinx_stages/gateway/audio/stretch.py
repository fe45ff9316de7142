"""Changes the speed of speech without its pitch, as the speech is generated.

Verhelst and Roelands, "An overlap-add technique based on waveform similarity (WSOLA) for high quality time-scale
modification of speech", ICASSP 1993. Windows are added to the output at a fixed distance and taken from the input at
`speed` times that distance. Each is shifted a little, to where the waveform best continues the previous window.
FFmpeg's `atempo` (PyAV 18) takes a quarter of the time, but at half speed its output depends on how its input is
divided, and it returns up to 0.7 % more or fewer samples.
"""

import numpy as np
from numpy.typing import NDArray

from syrinx_stages.contract.family import FAMILY

_HOP = FAMILY.sample_rate // 50
"""Output samples between windows: 20 ms."""
_LENGTH = 2 * _HOP
"""Samples of a window; twice the hop, so that Hann windows add up to one."""
_WINDOW = np.hanning(_LENGTH + 1)[:-1].astype(np.float32)
_MAX_SHIFT = FAMILY.sample_rate // 80
"""Samples a window may shift: 12.5 ms, a whole period of any voice down to 80 Hz."""


class TimeStretcher:
    """Stretches 16-bit mono PCM at the family's sample rate. The output does not depend on how the input is divided.

    `round(samples / speed)` samples are returned in all.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._source = np.zeros(_HOP + _MAX_SHIFT, np.float32)
        """Input from `_offset` on; positions count from `_HOP + _MAX_SHIFT` samples of silence before the input."""
        self._offset = 0
        self._start = _MAX_SHIFT
        """Where the last window was taken."""
        self._windows = 0
        self._overlap = np.zeros(_HOP, np.float32)
        """The second half of the last window."""
        self._received = 0
        self._returned = -_HOP
        """Negative up to the first sample: the first window is centered on it, so its first half is dropped."""

    def feed(self, samples: NDArray[np.int16]) -> NDArray[np.int16]:
        """Returns the output that more input completes."""
        self._received += len(samples)
        self._source = np.concatenate((self._source, samples.astype(np.float32)))
        hops = []
        while self._needed() <= self._offset + len(self._source):
            hops.append(self._add_window())
        return self._output(hops)

    def finish(self) -> NDArray[np.int16]:
        """Returns the rest of the output."""
        length = round(self._received / self._speed)
        hops: list[NDArray[np.float32]] = []
        while self._returned + len(hops) * _HOP < length:
            missing = self._needed() - self._offset - len(self._source)
            self._source = np.pad(self._source, (0, max(0, missing)))
            hops.append(self._add_window())
        left = length - max(0, self._returned)
        return self._output(hops)[:left]

    def _nominal(self) -> int:
        """The position of the next window if it is not shifted."""
        return _MAX_SHIFT + round(self._windows * _HOP * self._speed)

    def _needed(self) -> int:
        """The position up to which the next window needs the input."""
        return max(self._nominal() + _MAX_SHIFT, self._start + _HOP) + _LENGTH

    def _add_window(self) -> NDArray[np.float32]:
        """Adds the next window; returns the hop that it completes."""
        nominal = self._nominal()
        if self._windows:
            nominal += _best_shift(
                self._slice(nominal - _MAX_SHIFT, nominal + _MAX_SHIFT + _LENGTH),
                self._slice(self._start + _HOP, self._start + _HOP + _LENGTH),
            )
        self._start = nominal
        window = _WINDOW * self._slice(self._start, self._start + _LENGTH)
        hop = self._overlap + window[:_HOP]
        self._overlap = window[_HOP:]
        self._windows += 1
        unused = max(0, min(self._nominal() - _MAX_SHIFT, self._start + _HOP) - self._offset)
        self._source, self._offset = self._source[unused:], self._offset + unused
        return hop

    def _slice(self, begin: int, end: int) -> NDArray[np.float32]:
        return self._source[begin - self._offset : end - self._offset]

    def _output(self, hops: list[NDArray[np.float32]]) -> NDArray[np.int16]:
        samples = np.concatenate([np.empty(0, np.float32), *hops])
        lead_in = min(len(samples), max(0, -self._returned))
        self._returned += len(samples)
        rounded: NDArray[np.int16] = np.clip(np.rint(samples[lead_in:]), -32768, 32767).astype("<i2")
        return rounded


def _best_shift(region: NDArray[np.float32], template: NDArray[np.float32]) -> int:
    """The shift from the middle of `region` with the highest normalized cross-correlation with `template`."""
    products = np.correlate(region, template, "valid")
    energy = np.cumsum(np.concatenate(([0.0], np.square(region, dtype=np.float64))))
    energies = energy[_LENGTH:] - energy[:-_LENGTH]
    return int(np.argmax(products / np.sqrt(energies + 1.0))) - _MAX_SHIFT
