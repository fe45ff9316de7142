"""Detection of audible PCM, and the trimming of the silence at the start of a stream. Pure functions of the samples.

A model's first frame is mostly silent, so every listener would wait 50 to 80 ms for nothing. The gateway trims that
silence; the codec tracks it, because playback starts that much further into the stream.
"""

import numpy as np

from syrinx_stages.contract.family import FAMILY

AUDIBLE_PEAK = 104
"""A 16-bit sample at or beyond this magnitude is audible: -50 dB of full scale. The onset of the bundled voice is so
steep that any threshold from -55 to -40 dB gives the same cut within 3 ms."""

MAX_LEAD_IN = FAMILY.sample_rate // 100
"""Samples (10 ms) kept before the first audible one, at most."""

MIN_LEAD_IN = FAMILY.sample_rate // 200
"""Samples (5 ms) kept, at least: a soft onset needs that long to become audible. The cut lies between the two limits,
half a period of 100 Hz apart, so that a sample near zero exists there."""

MAX_CUT = FAMILY.sample_rate * 24 // 100
"""Samples (240 ms) removed at most: three times the longest leading silence measured. A longer pause is intentional."""

CLICK_SAMPLES = FAMILY.sample_rate // 500
"""Samples (2 ms) ignored at the start of a stream, because a decoder that starts from zero state may click there. One
checkpoint clicked for 1 ms at -25 dB of full scale in every utterance."""

_MAX_EXAMINED = MAX_CUT + MIN_LEAD_IN
"""Samples after which the cut is always known."""


def first_audible(pcm: bytes) -> int | None:
    """Returns the index of the first audible sample of 16-bit little-endian mono PCM, or None if all are silent."""
    samples = np.frombuffer(pcm, dtype="<i2")
    # Both signs are compared: 16 bits cannot hold the magnitude of -32768.
    audible = (samples >= AUDIBLE_PEAK) | (samples <= -AUDIBLE_PEAK)
    index = int(audible.argmax()) if len(samples) else 0
    return index if len(samples) and audible[index] else None


class LeadingSilenceTrimmer:
    """Removes the leading silence from a stream of 16-bit little-endian mono PCM.

    The result depends on the samples only, not on how they are split into chunks.
    """

    def __init__(self, trimmed: bool = False) -> None:
        """`trimmed`: the stream is continued after its leading silence."""
        self.withheld = 0
        """Samples received and not returned: buffered until the cut is known, or removed."""
        self._buffer = b""
        self._trimmed = trimmed

    def feed(self, pcm: bytes) -> bytes:
        """Returns the PCM that can be forwarded now; empty while everything received may be silence."""
        if self._trimmed:
            return pcm
        self._buffer += pcm
        self.withheld = len(self._buffer) // 2
        cut = _cut(self._buffer)
        return b"" if cut is None else self._trim(cut)

    def end(self) -> bytes:
        """Returns the buffered PCM at the end of the stream. A short stream that is all silence is not trimmed."""
        return b"" if self._trimmed else self._trim(0)

    def _trim(self, cut: int) -> bytes:
        rest, self._buffer = self._buffer[2 * cut :], b""
        self.withheld, self._trimmed = cut, True
        return rest


def _cut(pcm: bytes) -> int | None:
    """Returns the number of samples to remove from a stream that starts with `pcm`; None if more samples are needed."""
    audible = first_audible(pcm[2 * CLICK_SAMPLES : 2 * _MAX_EXAMINED])
    if audible is None and len(pcm) < 2 * _MAX_EXAMINED:
        return None
    onset = _MAX_EXAMINED if audible is None else CLICK_SAMPLES + audible
    first, last = max(0, onset - MAX_LEAD_IN), max(0, onset - MIN_LEAD_IN)
    # Cut at the quietest sample to avoid a click; at the last one if several are equally quiet.
    levels = np.abs(np.frombuffer(pcm, "<i2")[first : last + 1].astype(np.int32))
    return last - int(levels[::-1].argmin())
