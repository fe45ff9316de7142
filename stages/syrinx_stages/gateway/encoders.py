"""Audio formats of responses. The input is always 16-bit little-endian mono PCM at the family's sample rate."""

from __future__ import annotations

import io
import struct
from enum import StrEnum

import numpy as np
import soundfile

from syrinx_stages.contract.family import FAMILY


class AudioFormat(StrEnum):
    """Values of `response_format`."""

    WAV = "wav"
    MP3 = "mp3"
    FLAC = "flac"
    OPUS = "opus"
    """In an Ogg container."""
    PCM = "pcm"
    """Without a header."""


STREAMABLE = (AudioFormat.WAV, AudioFormat.PCM)
"""Formats that can be sent while the audio is generated."""

MEDIA_TYPES = {
    AudioFormat.WAV: "audio/wav",
    AudioFormat.MP3: "audio/mpeg",
    AudioFormat.FLAC: "audio/flac",
    AudioFormat.OPUS: "audio/ogg",
    AudioFormat.PCM: "audio/pcm",
}
_CONTAINERS = {
    AudioFormat.MP3: ("MP3", "MPEG_LAYER_III"),
    AudioFormat.FLAC: ("FLAC", "PCM_16"),
    AudioFormat.OPUS: ("OGG", "OPUS"),
}
_UNKNOWN_SIZE = 0xFFFFFFFF
"""A chunk size that makes players read until the end."""


def wav_header(data_bytes: int | None) -> bytes:
    """The 44 bytes before `data_bytes` bytes of PCM; None is a stream of unknown length."""
    riff, data = (_UNKNOWN_SIZE, _UNKNOWN_SIZE) if data_bytes is None else (36 + data_bytes, data_bytes)
    rate = FAMILY.sample_rate
    return b"".join(
        (
            struct.pack("<4sI4s", b"RIFF", riff, b"WAVE"),
            struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16),
            struct.pack("<4sI", b"data", data),
        )
    )


def stream_header(audio_format: AudioFormat) -> bytes:
    """The bytes that a stream of this format starts with."""
    return wav_header(None) if audio_format is AudioFormat.WAV else b""


def encode(pcm: bytes, audio_format: AudioFormat) -> bytes:
    """A complete file of PCM that is not empty."""
    if audio_format is AudioFormat.PCM:
        return pcm
    if audio_format is AudioFormat.WAV:
        return wav_header(len(pcm)) + pcm
    container, subtype = _CONTAINERS[audio_format]
    file = io.BytesIO()
    soundfile.write(file, np.frombuffer(pcm, dtype="<i2"), FAMILY.sample_rate, format=container, subtype=subtype)
    return file.getvalue()
