import io
import wave

import numpy as np
import pytest
import soundfile

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.encoders import Format, encode, stream_header

PCM = (8000 * np.sin(np.arange(FAMILY.sample_rate) * 2 * np.pi * 300 / FAMILY.sample_rate)).astype("<i2").tobytes()


def decoded(data: bytes) -> np.ndarray:
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == FAMILY.sample_rate
    return samples


@pytest.mark.parametrize("form", [Format.WAV, Format.FLAC])
def test_lossless_formats_give_the_samples_back(form: Format):
    assert decoded(encode(PCM, form)).tobytes() == PCM


@pytest.mark.parametrize(("form", "magic"), [(Format.MP3, b"\xff"), (Format.OPUS, b"OggS")])
def test_lossy_formats_sound_the_same(form: Format, magic: bytes):
    data = encode(PCM, form)
    assert data.startswith(magic)
    assert len(data) < len(PCM) / 3
    original, copy = np.frombuffer(PCM, "<i2").astype(float), decoded(data).astype(float)
    assert len(copy) == len(original)
    assert np.corrcoef(original, copy)[0, 1] > 0.99


def test_pcm_is_bare():
    assert encode(PCM, Format.PCM) == PCM
    assert stream_header(Format.PCM) == b""


def test_a_streamed_wav_of_unknown_length_is_read_to_its_end():
    data = stream_header(Format.WAV) + PCM
    assert decoded(data).tobytes() == PCM
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, FAMILY.sample_rate)
        assert file.readframes(10 * FAMILY.sample_rate) == PCM
