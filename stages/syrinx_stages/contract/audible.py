"""What of PCM can be heard. Apart from `audio`, for the operator knows its numbers and has no numpy."""

from __future__ import annotations

import numpy as np

from syrinx_stages.contract.audio import AUDIBLE_PEAK


def first_audible(pcm: bytes) -> int | None:
    """Index of the first audible sample of 16-bit little-endian mono PCM, or None if all is silent."""
    samples = np.frombuffer(pcm, dtype="<i2")
    # Compared on both sides: the magnitude of -32768 does not fit 16 bits.
    audible = (samples >= AUDIBLE_PEAK) | (samples <= -AUDIBLE_PEAK)
    at = int(audible.argmax()) if len(samples) else 0
    return at if len(samples) and audible[at] else None
