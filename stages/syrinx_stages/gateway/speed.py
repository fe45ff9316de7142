"""Faster or slower speech at the same pitch: WSOLA.

Verhelst and Roelands, "An overlap-add technique based on waveform similarity (WSOLA) for high quality time-scale
modification of speech", ICASSP 1993. Windows are laid at a fixed distance into the output and taken from the input at
`speed` times that distance, each shifted a little to where the waveform continues the previous window best.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HOP = 480
"""Output samples between windows: 20 ms at 24 kHz."""
_WINDOW = 2 * _HOP
"""Twice the hop, so that Hann windows add up to one."""
_REACH = 300
"""How far a window may shift: 12.5 ms, more than one period of any voice down to 80 Hz."""


def stretch(pcm: bytes, speed: float) -> bytes:
    """16-bit mono PCM played `speed` times as fast, pitch kept; `round(samples / speed)` samples."""
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32)
    length = round(len(samples) / speed)
    count = -(-length // _HOP) + 1
    margin = _HOP + _REACH
    source = np.pad(samples, (margin, margin + 2 * _WINDOW + int(_HOP * speed)))
    window = np.hanning(_WINDOW + 1)[:-1].astype(np.float32)
    out = np.zeros((count + 1) * _HOP, np.float32)
    start = _REACH
    for k in range(count):
        wanted = min(_REACH + round(k * _HOP * speed), len(source) - 2 * _WINDOW - _REACH)
        if k:
            start = wanted + _best_shift(source, wanted, source[start + _HOP : start + _HOP + _WINDOW])
        out[k * _HOP : k * _HOP + _WINDOW] += window * source[start : start + _WINDOW]
    # The first window is centred on the first sample: half a window of lead-in is dropped.
    return np.clip(np.rint(out[_HOP : _HOP + length]), -32768, 32767).astype("<i2").tobytes()


def _best_shift(source: NDArray[np.float32], wanted: int, template: NDArray[np.float32]) -> int:
    """Where, around `wanted`, the input is most like `template`: highest normalised cross-correlation."""
    region = source[wanted - _REACH : wanted + _REACH + _WINDOW]
    products = np.correlate(region, template, "valid")
    energy = np.cumsum(np.concatenate(([0.0], np.square(region, dtype=np.float64))))
    energies = energy[_WINDOW:] - energy[:-_WINDOW]
    return int(np.argmax(products / np.sqrt(energies + 1.0))) - _REACH
