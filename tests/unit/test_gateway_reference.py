import base64
import io
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from urllib.parse import quote

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from support.recordings import piped, recording
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
OTHERS = [
    ("WAV", "FLOAT"),
    ("RF64", "PCM_16"),
    ("AIFF", "PCM_24"),
    ("AIFF", "FLOAT"),
    ("CAF", "PCM_16"),
    ("CAF", "FLOAT"),
]


@pytest.mark.parametrize(("kind", "subtype"), [*KINDS, *OTHERS])
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


PLACEHOLDERS = [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFFF - 36, 100 * 2**20]


@pytest.mark.parametrize("audio", PLACEHOLDERS)
@pytest.mark.parametrize("riff", [*PLACEHOLDERS, None])
def test_a_wav_whose_sizes_are_placeholders_is_read_to_its_end(riff: int | None, audio: int):
    data = bytearray(file(sine(2)))
    data[40:44] = struct.pack("<I", audio)
    if riff is not None:
        data[4:8] = struct.pack("<I", riff)
    samples = np.frombuffer(reference.decode_audio(bytes(data)), "<f4")
    assert np.abs(samples - sine(2)).max() < 1e-4


@pytest.mark.parametrize("size", [0, 2**64 - 1])
def test_a_file_with_sizes_of_64_bits_may_have_placeholders_as_well(size: int):
    whole = file(sine(2), kind="RF64")
    piped = whole[:28] + struct.pack("<Q", size) + whole[36:]
    assert reference.decode_audio(piped) == reference.decode_audio(whole) == reference.decode_audio(file(sine(2)))
    assert "is truncated" in refusal(whole[:50_000])


def test_placeholders_after_other_chunks_are_found():
    data = file(sine(2))
    info = b"LIST" + struct.pack("<I", 5) + b"INFOx\0"
    changed = data[:36] + info + b"data" + struct.pack("<I", 0x7FFFFFFF) + data[44:]
    assert len(reference.decode_audio(changed)) == 8 * FAMILY.sample_rate


@pytest.mark.parametrize("riff", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_wav_is_truncated_if_its_samples_are_whatever_the_size_of_the_file_says(riff: int):
    data = bytearray(file(sine(2)))
    data[4:8] = struct.pack("<I", riff)
    assert "is truncated: 49956 of 96000 bytes of audio are present" in refusal(bytes(data[:50_000]))


@pytest.mark.parametrize("header", [8, 36, 44])
def test_a_wav_whose_samples_have_the_size_of_the_file_is_read_to_its_end(header: int):
    """Some programs count the header, or a part of it, as samples."""
    data = bytearray(file(sine(2)))
    data[40:44] = struct.pack("<I", len(data) - 44 + header)
    assert len(reference.decode_audio(bytes(data))) == 8 * FAMILY.sample_rate


@pytest.mark.parametrize(("container", "codec"), [("flac", "flac"), ("mp3", "libmp3lame")])
def test_a_file_that_was_written_to_a_pipe_is_read_to_its_end(container: str, codec: str):
    """Its header does not state how long it is; the frames of this MP3 have different bit rates."""
    data = piped(container, codec, 3)
    decoded = np.frombuffer(reference.decode_audio(data), "<f4")
    assert len(decoded) == pytest.approx(3 * FAMILY.sample_rate, abs=2500)
    assert decoded[-24_000:].std() > 0.05 > 10 * decoded[:24_000].std()
    assert "is longer than 30 seconds" in refusal(piped(container, codec, 31))
    assert "seconds long; accepted: 1 to 30" in refusal(piped(container, codec, 0.5))


RECORDINGS = {
    "m4a": ("ipod", "aac"),
    "mp4": ("mp4", "aac"),
    "mp4 with Opus": ("mp4", "libopus"),
    "mov with PCM": ("mov", "pcm_s24le"),
    "webm": ("webm", "libopus"),
    "mkv": ("matroska", "flac"),
    "Apple Lossless": ("ipod", "alac"),
    "aac": ("adts", "aac"),
    "aiff": ("aiff", "pcm_s16be"),
    "caf": ("caf", "alac"),
}


@pytest.mark.parametrize(("container", "codec"), RECORDINGS.values(), ids=RECORDINGS)
def test_recordings_of_phones_and_browsers_are_decoded(container: str, codec: str):
    decoded = np.frombuffer(reference.decode_audio(recording(container, codec, 2)), "<f4")
    assert len(decoded) == pytest.approx(2 * FAMILY.sample_rate, abs=2500)
    middle = decoded[12_000:36_000]
    assert middle.std() * 2**0.5 == pytest.approx(0.3, rel=0.1)
    assert np.argmax(np.abs(np.fft.rfft(middle))) == 300


def test_of_a_video_the_audio_track_is_read():
    decoded = reference.decode_audio(recording("mp4", "aac", 2, picture=True, channels=2))
    assert len(decoded) / 4 == pytest.approx(2 * FAMILY.sample_rate, abs=2500)


def test_a_video_without_audio_says_what_is_missing():
    message = refusal(recording("mp4", None, 2, picture=True))
    assert "has no audio track that can be read; send wav, flac, mp3, ogg (vorbis, opus), m4a" in message


def test_other_codecs_are_not_decoded():
    assert "has no audio track that can be read" in refusal(recording("matroska", "wavpack", 2))


@pytest.mark.parametrize(("container", "codec"), [("adts", "aac"), ("mp3", "libmp3lame"), ("flac", "flac")])
def test_tags_before_and_after_the_audio_are_skipped(container: str, codec: str):
    tag = b"ID3\4\0\0" + bytes([0, 0, 2, 10]) + bytes(266)
    data = tag + recording(container, codec, 2) + b"TAG" + bytes(125)
    assert len(reference.decode_audio(data)) / 4 == pytest.approx(2 * FAMILY.sample_rate, abs=2500)


@pytest.mark.parametrize(("container", "codec"), RECORDINGS.values(), ids=RECORDINGS)
def test_a_truncated_recording_is_refused_or_short(container: str, codec: str):
    data = recording(container, codec, 1.5)
    for share in (0.02, 0.3, 0.5):
        message = refusal(data[: int(share * len(data))])
        assert any(word in message for word in ("truncated", "seconds long", "no audio track"))


@pytest.mark.parametrize(("container", "codec"), [("ipod", "aac"), ("webm", "libopus"), ("adts", "aac")])
def test_recordings_have_the_bounds_of_other_files(container: str, codec: str):
    assert "is longer than 30 seconds" in refusal(recording(container, codec, 31))
    assert "seconds long; accepted: 1 to 30" in refusal(recording(container, codec, 0.5))
    assert "has 6 channels; send mono or stereo" in refusal(recording(container, codec, 2, channels=6))


def stating(samples: int) -> bytes:
    """Returns a file of some kilobytes whose tables state a number of samples, each with an entry of its own."""
    data = bytearray(recording("mov", "pcm_s16le", 1))
    for table, at, value in ((b"stsz", 12, samples), (b"stsc", 16, samples), (b"stts", 12, samples), (b"stts", 16, 2)):
        start = data.rindex(table) + at
        data[start : start + 4] = struct.pack(">I", value)
    return bytes(data)


def test_the_memory_of_a_file_that_decodes_to_gigabytes_is_bounded():
    """FFmpeg has 24 bytes for each sample of a table, whatever the size of the file."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert "cannot be decoded" in refusal(stating(150_000_000))
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 256 * 1024)


def test_a_file_whose_frames_take_more_memory_than_its_bytes_is_refused():
    frame = bytes.fromhex("fff15c8000fffc")  # Of ADTS, without audio.
    assert "or takes too much memory or time" in refusal(frame * (reference.MAX_FILE // len(frame)))


def test_what_decodes_is_ended_when_its_time_is_over():
    endless = "from syrinx_stages.gateway.voices import decode_track as it\nit.limit_resources(1)\nwhile True: pass"
    assert subprocess.run([sys.executable, "-c", endless], check=False).returncode < 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a supported audio file"),
        (b"this is a text, whatever its name says" * 100, "not a supported audio file"),
        (b"%PDF-1.7" + bytes(5000), "not a supported audio file"),
        (b"RIFF" + struct.pack("<I", 4096) + b"WAVE" + bytes(4092), "cannot be decoded"),
        (b"OggS" + bytes(5000), "cannot be decoded"),
        (b"RIFF" + struct.pack("<I", 4096) + b"AVI " + bytes(4092), "not a supported audio file"),
        (b"\0\0\0\x18ftypM4A " + bytes(5000), "cannot be decoded"),
        (b"FORM\0\0\x10\0" + b"8SVX" + bytes(5000), "cannot be decoded"),
        (b"#!AMR\n" + bytes(5000), "not a supported audio file; send wav, flac, mp3"),
        (b"\x1aE\xdf\xa3" + bytes(5000), "cannot be decoded"),
        (b"\xff\xf1" + bytes(5000), "no audio track"),
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
    video = f"data:video/webm;codecs=vp8,opus;base64,{text}"
    for sent in (text, f"data:audio/wav;base64,{text}", f" DATA:audio/x-wav;codecs=1; BASE64 ,{text}", video):
        assert not reference.is_url(sent)
        assert reference.decode_base64(sent) == data


@pytest.mark.parametrize("size", [2**20 + 1, 2**20 + 2, 3 * 2**20])
@pytest.mark.parametrize(
    "form",
    [
        lambda text: text + "\n",
        lambda text: "\r\n" + lines_of_76(text),
        lambda text: "\ufeff" + text,
        lambda text: "\ufeffdata:audio/wav;base64," + text,
        lambda text: "data:audio/wav;base64, " + text,
        lambda text: text.replace("+", "-").replace("/", "_"),
        lambda text: text.rstrip("="),
        lambda text: "data:audio/wav;base64," + quote(lines_of_76(text), safe=""),
        lambda text: "".join(f"%{ord(each):02x}" for each in text),
        lambda text: "\n".join(text[:-4]) + text[-4:-1] + "\n" + text[-1] + "\n",
    ],
    ids=[
        "final newline",
        "lines",
        "byte-order mark",
        "byte-order mark of a URI",
        "space",
        "for URLs",
        "without padding",
        "escaped",
        "all escaped",
        "a character a line",
    ],
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
        ("QUJD%2", 400, "neither base64"),
        ("QUJD%C3%A4", 400, "neither base64"),
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


@pytest.mark.parametrize("url", [" https://voices.example.com/a.wav\n", "\ufeff\nhttp://localhost:8000/"])
def test_white_space_around_a_url_is_ignored(url: str):
    assert reference.is_url(url)
    assert str(reference.check_url(url, HOSTS)) == url.strip("\ufeff \n")


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
