"""The silence between two segments of a text. Pure."""

import numpy as np

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import AUDIBLE_PEAK

_FADE_SAMPLES = FAMILY.sample_rate // 200
"""Samples (5 ms) in which a pause fades from the last sample before it: a step would click."""


class Seam:
    """What the audio so far ends with, and how long the pause after it must be."""

    def __init__(self) -> None:
        self._last = 0
        """The last sample."""
        self._silent = 0
        """Silent samples at the end."""

    def add(self, pcm: bytes) -> None:
        """Records audio."""
        samples = np.frombuffer(pcm, "<i2").astype(np.int32)
        audible = np.flatnonzero(np.abs(samples) >= AUDIBLE_PEAK)
        self._silent = len(samples) - 1 - int(audible[-1]) if len(audible) else self._silent + len(samples)
        self._last = int(samples[-1])

    def pause(self, seconds: float) -> bytes:
        """Returns the PCM that lengthens the silence at the end to so many seconds."""
        missing = round(seconds * FAMILY.sample_rate) - self._silent
        pause = np.zeros(max(missing, _FADE_SAMPLES), "<i2")
        pause[:_FADE_SAMPLES] = np.linspace(self._last, 0, _FADE_SAMPLES)
        self._silent, self._last = 0, 0
        return pause.tobytes()
