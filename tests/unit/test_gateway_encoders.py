import io
import wave

import numpy as np
import pytest
import soundfile

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.encoders import AudioFormat, encode, stream_header

PCM = (8000 * np.sin(np.arange(FAMILY.sample_rate) * 2 * np.pi * 300 / FAMILY.sample_rate)).astype("<i2").tobytes()


def decoded(data: bytes) -> np.ndarray:
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == FAMILY.sample_rate
    return samples


@pytest.mark.parametrize("audio_format", [AudioFormat.WAV, AudioFormat.FLAC])
def test_lossless_formats_preserve_the_samples(audio_format: AudioFormat):
    assert decoded(encode(PCM, audio_format)).tobytes() == PCM


@pytest.mark.parametrize(("audio_format", "magic"), [(AudioFormat.MP3, b"\xff"), (AudioFormat.OPUS, b"OggS")])
def test_lossy_formats_correlate_with_the_input(audio_format: AudioFormat, magic: bytes):
    data = encode(PCM, audio_format)
    assert data.startswith(magic)
    assert len(data) < len(PCM) / 3
    original, copy = np.frombuffer(PCM, "<i2").astype(float), decoded(data).astype(float)
    assert len(copy) == len(original)
    assert np.corrcoef(original, copy)[0, 1] > 0.99


def test_pcm_has_no_header():
    assert encode(PCM, AudioFormat.PCM) == PCM
    assert stream_header(AudioFormat.PCM) == b""


def test_streamed_wav_of_unknown_length_is_readable():
    data = stream_header(AudioFormat.WAV) + PCM
    assert decoded(data).tobytes() == PCM
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, FAMILY.sample_rate)
        assert file.readframes(10 * FAMILY.sample_rate) == PCM
