"""Audio formats and speed of responses. The input is 16-bit little-endian mono PCM at the family's sample rate."""

import io
import struct
from enum import StrEnum

import numpy as np
import soundfile
from numpy.typing import NDArray

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

_HOP = FAMILY.sample_rate // 50
"""Output samples between windows: 20 ms."""
_WINDOW = 2 * _HOP
"""Samples; twice the hop, so that Hann windows add up to one."""
_MAX_SHIFT = FAMILY.sample_rate // 80
"""Samples a window may shift: 12.5 ms, a whole period of any voice down to 80 Hz."""


def wav_header(data_bytes: int | None) -> bytes:
    """The 44 bytes before `data_bytes` bytes of PCM; None is a stream of unknown length."""
    riff, data = (_UNKNOWN_SIZE, _UNKNOWN_SIZE) if data_bytes is None else (36 + data_bytes, data_bytes)
    rate = FAMILY.sample_rate
    format_chunk = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + format_chunk + struct.pack("<4sI", b"data", data)


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


def stretch(pcm: bytes, speed: float) -> bytes:
    """Returns PCM at `speed` times the speed and the same pitch, `round(samples / speed)` samples: WSOLA.

    Verhelst and Roelands, "An overlap-add technique based on waveform similarity (WSOLA) for high quality time-scale
    modification of speech", ICASSP 1993. Windows are added to the output at a fixed distance and taken from the input
    at `speed` times that distance. Each is shifted a little, to where the waveform best continues the previous window.
    """
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
