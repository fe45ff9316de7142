"""Python's readers of audio files, with a response as it is streamed: the header does not have the length."""

import io
import json
import platform
import urllib.request
import warnings
import wave
from importlib.metadata import version

import librosa
import numpy as np
import scipy.io.wavfile
import soundfile
from pydub import AudioSegment
from report import API_URL, OUT, TEXT, Report


def speech(name: str) -> bytes:
    """A streamed response."""
    body = json.dumps({"input": TEXT, "response_format": name}).encode()
    request = urllib.request.Request(f"{API_URL}/audio/speech", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return response.read()


def with_wave(data: bytes) -> tuple[bytes, int]:
    with wave.open(io.BytesIO(data)) as file:
        return file.readframes(file.getnframes()), file.getframerate()


def with_soundfile(data: bytes) -> tuple[bytes, int]:
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    return samples.tobytes(), rate


def with_pydub(data: bytes) -> tuple[bytes, int]:
    segment = AudioSegment.from_file(io.BytesIO(data)).set_sample_width(2)
    return segment.raw_data, segment.frame_rate


def with_scipy(data: bytes) -> tuple[bytes, int]:
    with warnings.catch_warnings(action="ignore"):
        rate, samples = scipy.io.wavfile.read(io.BytesIO(data))
    return samples.tobytes(), rate


def with_librosa(data: bytes) -> tuple[bytes, int]:
    (OUT / "file").write_bytes(data)
    samples, rate = librosa.load(OUT / "file", sr=None)
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes(), int(rate)


READERS = {
    "wave": (with_wave, ("wav",)),
    "soundfile": (with_soundfile, ("wav", "mp3", "opus")),
    "pydub": (with_pydub, ("wav", "mp3", "opus", "aac")),
    "SciPy": (with_scipy, ("wav",)),
    "librosa": (with_librosa, ("wav", "mp3", "opus")),
}
report = Report()
for library, (read, formats) in READERS.items():
    for name in formats:
        with report.case(f"{library}: {name}") as case:
            audio, rate = read(speech(name))
            case.save(audio, "pcm", rate)
versions = [f"{name} {version(name)}" for name in ("soundfile", "pydub", "scipy", "librosa")]
report.write(version=", ".join([f"Python {platform.python_version()}", *versions]))
