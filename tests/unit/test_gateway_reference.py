import base64
import io
import struct
from collections.abc import Callable

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.voices import reference


def sine(seconds: float, rate: int = FAMILY.sample_rate, pitch: float = 300) -> np.ndarray:
    return 0.3 * np.sin(np.arange(round(seconds * rate)) * 2 * np.pi * pitch / rate)


def file(samples: np.ndarray, rate: int = FAMILY.sample_rate, kind: str = "WAV", subtype: str = "PCM_16") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind, subtype=subtype)
    return out.getvalue()


def refusal(data: bytes) -> str:
    with pytest.raises(ApiError) as caught:
        reference.decode_audio(data)
    assert (caught.value.status, caught.value.param) == (400, "ref_audio")
    return caught.value.message


KINDS = [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]


@pytest.mark.parametrize(("kind", "subtype"), [*KINDS, ("WAV", "FLOAT")])
def test_usual_files_are_decoded(kind: str, subtype: str):
    samples = np.frombuffer(reference.decode_audio(file(sine(2), kind=kind, subtype=subtype)), "<f4")
    assert len(samples) == pytest.approx(2 * FAMILY.sample_rate, abs=2500)
    assert np.abs(samples).max() == pytest.approx(0.3, rel=0.1)


def test_stereo_at_8_khz_is_mixed_and_resampled():
    left, right = sine(2, 8000, 300), sine(2, 8000, 700)
    pcm = np.frombuffer(reference.decode_audio(file(np.stack([left, right], 1), 8000)), "<f4").astype(float)
    assert len(pcm) == 2 * FAMILY.sample_rate
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    loud = np.flatnonzero(spectrum > 0.5 * spectrum.max()) / 2
    assert {round(pitch, -2) for pitch in loud} == {300, 700}


@pytest.mark.parametrize("gain", [1, 0.02, 5])
def test_samples_are_neither_rounded_nor_clipped(gain: float):
    """16 bits would change the speaker embedding of a quiet recording, and clip what exceeds full scale."""
    samples = (gain * sine(2)).astype(np.float32)
    decoded = reference.decode_audio(file(samples, subtype="FLOAT"))
    assert np.array_equal(np.frombuffer(decoded, "<f4"), samples)


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
def test_a_truncated_file_is_refused_or_short(kind: str, subtype: str):
    data = file(sine(1.5), kind=kind, subtype=subtype)
    for share in (0.02, 0.2, 0.5):
        message = refusal(data[: int(share * len(data))])
        assert any(word in message for word in ("truncated", "seconds long", "not a supported audio file"))


def test_a_wav_of_unknown_length_is_accepted():
    data = bytearray(file(sine(2)))
    data[4:8] = data[40:44] = struct.pack("<I", 0xFFFFFFFF)
    assert len(reference.decode_audio(bytes(data))) == 8 * FAMILY.sample_rate


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a supported audio file"),
        (b"this is a text, whatever its name says" * 100, "not a supported audio file"),
        (b"%PDF-1.7" + bytes(5000), "not a supported audio file"),
        (b"RIFF" + struct.pack("<I", 4096) + b"WAVE" + bytes(4092), "cannot be decoded"),
        (b"OggS" + bytes(5000), "cannot be decoded"),
        (file(np.zeros(2 * FAMILY.sample_rate)), "silent"),
        (file(sine(60)), "60.00 seconds"),
        (file(sine(0.5)), "0.50 seconds"),
        (file(np.zeros((0,))), "0.00 seconds"),
        (file(sine(2, 4000), 4000), "4000 samples per second"),
        (file(np.stack([sine(2)] * 3, 1)), "3 channels"),
        (file(np.full(2 * FAMILY.sample_rate, np.nan), subtype="FLOAT"), "not finite"),
        (file(np.full(2 * FAMILY.sample_rate, -np.inf), subtype="FLOAT"), "not finite"),
        (file(1e30 * sine(2), subtype="FLOAT"), "above 32768 times full scale"),
    ],
)
def test_unusable_audio_is_refused_with_the_reason(data: bytes, message: str):
    assert message in refusal(data)


def test_a_flac_that_claims_hours_is_refused_before_it_is_decoded():
    data = bytearray(file(sine(2), kind="FLAC"))
    # STREAMINFO: the low 36 bits of bytes 18..25 are the number of samples.
    fields = int.from_bytes(data[18:26], "big")
    data[18:26] = (fields >> 36 << 36 | FAMILY.sample_rate * 36_000).to_bytes(8, "big")
    assert "36000.00 seconds" in refusal(bytes(data))


def test_base64_comes_bare_or_as_a_data_uri():
    data = file(sine(1))
    text = base64.b64encode(data).decode()
    for sent in (text, f"data:audio/wav;base64,{text}", f" DATA:audio/x-wav;codecs=1; BASE64 ,{text}"):
        assert not reference.is_url(sent)
        assert reference.decode_base64(sent) == data


@pytest.mark.parametrize("size", [2**20 + 1, 2**20 + 2, 3 * 2**20])
@pytest.mark.parametrize(
    "form",
    [
        lambda text: text + "\n",
        lambda text: "\r\n" + lines_of_76(text),
        lambda text: "data:audio/wav;base64, " + text,
        lambda text: text.replace("+", "-").replace("/", "_"),
        lambda text: text.rstrip("="),
        lambda text: "\n".join(text[:-4]) + text[-4:-1] + "\n" + text[-1] + "\n",
    ],
    ids=["final newline", "lines", "space", "for URLs", "without padding", "a character a line"],
)
def test_base64_that_has_one_meaning_is_accepted(form: Callable[[str], str], size: int):
    data = np.random.default_rng(size).bytes(size)
    assert reference.decode_base64(form(base64.b64encode(data).decode())) == data


def lines_of_76(text: str) -> str:
    return "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76))


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        ("not base64!", 400, "neither base64"),
        ("QUI=QUJD", 400, "neither base64"),
        ("päck", 400, "neither base64"),
        ("QUJDQ", 400, "neither base64"),
        ("data:audio/wav,abc", 400, "not base64"),
        ("A" * (24 * 2**20), 413, "larger than 16 MB"),
    ],
)
def test_other_texts_are_refused(sent: str, status: int, message: str):
    with pytest.raises(ApiError, match=message) as caught:
        reference.decode_base64(sent)
    assert (caught.value.status, caught.value.param) == (status, "ref_audio")


HOSTS = ("voices.example.com", "localhost:8000")


@pytest.mark.parametrize(
    "url", ["https://voices.example.com/a.wav", "HTTP://Voices.Example.com/a", "http://localhost:8000/"]
)
def test_listed_hosts_may_be_fetched_from(url: str):
    assert reference.is_url(url)
    assert reference.check_url(url, HOSTS).host in ("voices.example.com", "localhost")


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost/",
        "http://localhost:8001/",
        "https://voices.example.com:8443/",
        "https://voices.example.com@evil.example/",
        "https://user:secret@voices.example.com/",
        "https://voices.example.com.evil.example/",
        "https://evil.example/?voices.example.com",
        "file:///etc/passwd",
        "file:/etc/passwd",
        "ftp://voices.example.com/a.wav",
        "gopher://voices.example.com/",
        "http://",
        "http://[::1]/",
        "http://voices.example.com\\@evil.example/",
        "http://a b/",
    ],
)
def test_nothing_else_is_fetched(url: str):
    assert reference.is_url(url)
    with pytest.raises(ApiError) as caught:
        reference.check_url(url, HOSTS)
    assert (caught.value.status, caught.value.param) == (400, "ref_audio")


@pytest.mark.parametrize("url", [" https://voices.example.com/a.wav\n", "\nhttp://localhost:8000/"])
def test_white_space_around_a_url_is_ignored(url: str):
    assert reference.is_url(url)
    assert str(reference.check_url(url, HOSTS)) == url.strip()


FILES = [file(sine(1.2), kind=kind, subtype=subtype) for kind, subtype in KINDS]


@given(st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_file_is_audio_or_a_clear_refusal(data: bytes, changes: list[tuple[int, int]]):
    damaged = bytearray(data)
    for at, value in changes:
        damaged[at] = value
    try:
        pcm = reference.decode_audio(bytes(damaged))
    except ApiError as error:
        assert (error.status, error.param) == (400, "ref_audio")
    else:
        assert 4 * FAMILY.sample_rate <= len(pcm) <= 120 * FAMILY.sample_rate + 100
