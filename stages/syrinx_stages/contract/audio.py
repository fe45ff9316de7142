"""The numbers of Qwen3-TTS 12 Hz audio that every stage shares."""

from __future__ import annotations

import numpy as np

SAMPLE_RATE = 24_000
"""Samples per second of everything Syrinx speaks (mono)."""

FRAME_SAMPLES = 1_920
"""Samples per code frame."""

FRAME_SECONDS = FRAME_SAMPLES / SAMPLE_RATE
"""Seconds per code frame: 0.08, so 12.5 frames a second."""

FRAME_BYTES = 2 * FRAME_SAMPLES
"""Bytes of 16-bit PCM per code frame."""

AUDIBLE_PEAK = 104
"""A 16-bit sample at or beyond this magnitude is audible: -50 dB of full scale."""


def first_audible(pcm: bytes) -> int | None:
    """Index of the first audible sample of 16-bit little-endian mono PCM, or None if all is silent."""
    samples = np.frombuffer(pcm, dtype="<i2")
    # Compared on both sides: the magnitude of -32768 does not fit 16 bits.
    audible = (samples >= AUDIBLE_PEAK) | (samples <= -AUDIBLE_PEAK)
    at = int(audible.argmax()) if len(samples) else 0
    return at if len(samples) and audible[at] else None
