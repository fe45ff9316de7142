"""The numbers of Qwen3-TTS 12 Hz audio that every stage shares."""

from __future__ import annotations

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
