"""Audio formats of a response. PCM in is always 16-bit little-endian mono at 24 kHz."""

from __future__ import annotations

import io
import struct
from enum import StrEnum

import numpy as np
import soundfile

from syrinx_stages.contract.family import FAMILY


class Format(StrEnum):
    """Values of `response_format`."""

    WAV = "wav"
    MP3 = "mp3"
    FLAC = "flac"
    OPUS = "opus"
    """In an Ogg container."""
    PCM = "pcm"
    """Without a header."""


STREAMABLE = (Format.WAV, Format.PCM)
"""Formats that can be sent while they are made."""

MEDIA_TYPES = {
    Format.WAV: "audio/wav",
    Format.MP3: "audio/mpeg",
    Format.FLAC: "audio/flac",
    Format.OPUS: "audio/ogg",
    Format.PCM: "audio/pcm",
}
_CONTAINERS = {
    Format.MP3: ("MP3", "MPEG_LAYER_III"),
    Format.FLAC: ("FLAC", "PCM_16"),
    Format.OPUS: ("OGG", "OPUS"),
}
_UNKNOWN = 0xFFFFFFFF
"""A chunk size that tells players to read until the end."""


def wav_header(data_bytes: int | None) -> bytes:
    """The 44 bytes before `data_bytes` of PCM; None is a stream whose length is not known yet."""
    riff, data = (_UNKNOWN, _UNKNOWN) if data_bytes is None else (36 + data_bytes, data_bytes)
    form = struct.pack("<4sI4s", b"RIFF", riff, b"WAVE")
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, FAMILY.sample_rate, 2 * FAMILY.sample_rate, 2, 16)
    return form + fmt + struct.pack("<4sI", b"data", data)


def stream_header(form: Format) -> bytes:
    """What a stream of this format starts with."""
    return wav_header(None) if form is Format.WAV else b""


def encode(pcm: bytes, form: Format) -> bytes:
    """A whole file. `pcm` is not empty."""
    if form is Format.PCM:
        return pcm
    if form is Format.WAV:
        return wav_header(len(pcm)) + pcm
    container, subtype = _CONTAINERS[form]
    file = io.BytesIO()
    soundfile.write(file, np.frombuffer(pcm, dtype="<i2"), FAMILY.sample_rate, format=container, subtype=subtype)
    return file.getvalue()
