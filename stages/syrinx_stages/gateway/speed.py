"""Changes the speed of speech without changing its pitch: WSOLA.

Verhelst and Roelands, "An overlap-add technique based on waveform similarity (WSOLA) for high quality time-scale
modification of speech", ICASSP 1993. Windows are added to the output at a fixed distance and taken from the input at
`speed` times that distance. Each is shifted a little, to where the waveform best continues the previous window.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syrinx_stages.contract.family import FAMILY

_HOP = FAMILY.sample_rate // 50
"""Output samples between windows: 20 ms."""
_WINDOW = 2 * _HOP
"""Samples; twice the hop, so that Hann windows add up to one."""
_MAX_SHIFT = FAMILY.sample_rate // 80
"""Samples a window may shift: 12.5 ms, a whole period of any voice down to 80 Hz."""


def stretch(pcm: bytes, speed: float) -> bytes:
    """Returns 16-bit mono PCM at `speed` times the speed and the same pitch: `round(samples / speed)` samples."""
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32)
    length = round(len(samples) / speed)
    count = -(-length // _HOP) + 1
    margin = _HOP + _MAX_SHIFT
    source = np.pad(samples, (margin, margin + 2 * _WINDOW + int(_HOP * speed)))
    window = np.hanning(_WINDOW + 1)[:-1].astype(np.float32)
    out = np.zeros((count + 1) * _HOP, np.float32)
    start = _MAX_SHIFT
    for k in range(count):
        nominal = min(_MAX_SHIFT + round(k * _HOP * speed), len(source) - 2 * _WINDOW - _MAX_SHIFT)
        if k:
            start = nominal + _best_shift(source, nominal, source[start + _HOP : start + _HOP + _WINDOW])
        out[k * _HOP : k * _HOP + _WINDOW] += window * source[start : start + _WINDOW]
    # The first window is centered on the first sample, so half a window of lead-in is dropped.
    return np.clip(np.rint(out[_HOP : _HOP + length]), -32768, 32767).astype("<i2").tobytes()


def _best_shift(source: NDArray[np.float32], nominal: int, template: NDArray[np.float32]) -> int:
    """The shift from `nominal` with the highest normalized cross-correlation with `template`."""
    region = source[nominal - _MAX_SHIFT : nominal + _MAX_SHIFT + _WINDOW]
    products = np.correlate(region, template, "valid")
    energy = np.cumsum(np.concatenate(([0.0], np.square(region, dtype=np.float64))))
    energies = energy[_WINDOW:] - energy[:-_WINDOW]
    return int(np.argmax(products / np.sqrt(energies + 1.0))) - _MAX_SHIFT
