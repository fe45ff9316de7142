"""The near-silence that speech begins with, which listeners are not sent: pure.

A model's first frame is mostly silent, so that every listener would wait 50 to 80 ms for nothing. Here, for the gateway
cuts it and the codec has to know how much sooner playback runs dry.
"""

from __future__ import annotations

import numpy as np

from syrinx_stages.contract.audible import first_audible

LEAD_IN = 240
"""Samples that are kept before the first audible one, at the most: 10 ms, all of them waited for."""

SHORTEST_LEAD_IN = 120
"""And at least: 5 ms, in which a soft onset rises to what counts as audible. Between the two is the cut: half a period
of 100 Hz always has a sample near zero."""

LONGEST_CUT = 5_760
"""240 ms, three times what voices were seen to begin with: who begins with a longer pause means it."""

SETTLING = 48
"""Samples (2 ms) in which a decoder that starts from nothing may click: if silence follows, speech has not begun. One
was seen that did so for 1 ms at -25 dB of full scale, the same in every utterance. The bundled voice does not: it is
silent for 48 ms, and its speech begins so steeply that anything from -55 to -40 dB would find the same place, to 3 ms;
what is audible for TTFA, -50 dB, is what ends the silence here."""

_REACH = LONGEST_CUT + SHORTEST_LEAD_IN
"""Samples after which the cut is known in any case."""


class LeadingSilence:
    """Takes a stream's 16-bit little-endian mono PCM as it comes and gives it on without its leading silence.

    What is cut follows from the samples alone: any chunking gives the same audio.
    """

    def __init__(self) -> None:
        self.withheld = 0
        """Samples taken and not given on: they may be cut, or have been."""
        self._held = b""
        self._begun = False

    def feed(self, pcm: bytes) -> bytes:
        """What of the stream can go on; empty while all of it may be silence."""
        if self._begun:
            return pcm
        self._held += pcm
        self.withheld = len(self._held) // 2
        cut = _cut(self._held)
        return b"" if cut is None else self._begin(cut)

    def end(self) -> bytes:
        """What is left when the stream ends: one that is too short to tell, and silent, goes out as it is."""
        return b"" if self._begun else self._begin(0)

    def _begin(self, cut: int) -> bytes:
        given, self._held = self._held[2 * cut :], b""
        self.withheld, self._begun = cut, True
        return given


def _cut(pcm: bytes) -> int | None:
    """How many samples are left out of a stream that begins with `pcm`; None if more of it has to be known."""
    audible = first_audible(pcm[2 * SETTLING : 2 * _REACH])
    if audible is None and len(pcm) < 2 * _REACH:
        return None
    begins = _REACH if audible is None else SETTLING + audible
    first, last = max(0, begins - LEAD_IN), max(0, begins - SHORTEST_LEAD_IN)
    # The lowest sample, so that nothing clicks; of several the last. (16 bits do not hold the magnitude of -32768.)
    levels = np.abs(np.frombuffer(pcm, "<i2")[first : last + 1].astype(np.int32))
    return last - int(levels[::-1].argmin())
