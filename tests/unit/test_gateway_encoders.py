import io
import wave

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.audio.encoders import AudioFormat, AudioOptions, Encoder, default_rate, encode
from syrinx_stages.gateway.audio.stretch import TimeStretcher

SECONDS = 2
TIME = np.arange(SECONDS * FAMILY.sample_rate) / FAMILY.sample_rate
PCM = (8000 * np.sin(2 * np.pi * 300 * TIME)).astype("<i2").tobytes()
CONTAINERS = [each for each in AudioFormat if each not in (AudioFormat.PCM, AudioFormat.ULAW, AudioFormat.ALAW)]
DELAYS = {AudioFormat.MP3: 0.12, AudioFormat.AAC: 0.12}
"""Seconds that an encoder adds at most to a stream, whose header cannot say so."""


def options(audio_format: AudioFormat, rate: int | None = None, speed: float = 1.0) -> AudioOptions:
    return AudioOptions(audio_format, rate or default_rate(audio_format), speed)


def pieces(pcm: bytes, frames: int) -> list[bytes]:
    step = frames * FAMILY.frame_bytes
    return [pcm[start : start + step] for start in range(0, len(pcm), step)]


def streamed(audio: AudioOptions, pcm: bytes = PCM, frames: int = 1) -> list[bytes]:
    """Returns what is sent for each piece of `frames` frames, and at the end."""
    encoder = Encoder(audio)
    return [*map(encoder.feed, pieces(pcm, frames)), encoder.finish()]


def file(audio: AudioOptions, frames: int = 1) -> bytes:
    return b"".join(encode(pieces(PCM, frames), audio)[0])


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    """Returns samples from -1 to 1, and their rate."""
    with av.open(io.BytesIO(data)) as file:
        resampler = av.AudioResampler("flt", "mono")
        frames = [part for frame in [*file.decode(audio=0), None] for part in resampler.resample(frame)]
        return np.concatenate([frame.to_ndarray()[0] for frame in frames]), file.streams.audio[0].rate


def pitch(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * rate / len(samples)


@pytest.mark.parametrize("audio_format", CONTAINERS)
@pytest.mark.parametrize("whole", [True, False], ids=["file", "stream"])
def test_containers_are_read_by_other_programs(audio_format: AudioFormat, whole: bool):
    data = file(options(audio_format)) if whole else b"".join(streamed(options(audio_format)))
    samples, rate = decoded(data)
    assert pitch(samples, rate) == pytest.approx(300, abs=1)
    assert SECONDS <= len(samples) / rate <= SECONDS + DELAYS.get(audio_format, 0.0)
    assert np.std(samples[rate // 2 : rate]) == pytest.approx(8000 / 32768 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("audio_format", [AudioFormat.WAV, AudioFormat.FLAC])
def test_lossless_files_preserve_the_samples(audio_format: AudioFormat):
    samples, rate = soundfile.read(io.BytesIO(file(options(audio_format))), dtype="int16")
    assert (samples.tobytes(), rate) == (PCM, FAMILY.sample_rate)


def test_a_streamed_wav_of_unknown_length_is_readable():
    data = b"".join(streamed(options(AudioFormat.WAV)))
    assert soundfile.read(io.BytesIO(data), dtype="int16")[0].tobytes() == PCM
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, FAMILY.sample_rate)
        assert file.readframes(10 * FAMILY.sample_rate) == PCM


def test_pcm_has_no_header():
    assert encode([PCM], options(AudioFormat.PCM)) == ([PCM, b""], SECONDS)
    assert b"".join(streamed(options(AudioFormat.PCM))) == PCM


@pytest.mark.parametrize(("audio_format", "law"), [(AudioFormat.ULAW, "ULAW"), (AudioFormat.ALAW, "ALAW")])
def test_telephony_formats_are_8_bits_at_8_khz(audio_format: AudioFormat, law: str):
    data = b"".join(streamed(options(audio_format)))
    assert len(data) == 8_000 * SECONDS
    samples, _ = soundfile.read(io.BytesIO(data), format="RAW", subtype=law, channels=1, samplerate=8_000)
    assert pitch(samples, 8_000) == pytest.approx(300, abs=1)


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize(("rate", "speed"), [(None, 1.0), (16_000, 1.0), (None, 1.3), (48_000, 0.7), (None, 4.0)])
def test_bytes_do_not_depend_on_the_chunks(audio_format: AudioFormat, rate: int | None, speed: float):
    audio = options(audio_format, rate, speed)
    assert b"".join(streamed(audio)) == b"".join(streamed(audio, frames=7))
    assert file(audio) == file(audio, frames=7)


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_a_stream_is_not_delayed(audio_format: AudioFormat, speed: float):
    """Half of the bytes are sent when 0.4 s more than half of the input is there."""
    sent = streamed(options(audio_format, speed=speed))
    half = round(len(sent) * (0.5 + 0.4 / SECONDS))
    assert sum(map(len, sent[:half])) >= 0.5 * sum(map(len, sent))


@pytest.mark.parametrize("audio_format", [AudioFormat.WAV, AudioFormat.FLAC, AudioFormat.OPUS])
def test_a_header_is_sent_with_the_first_audio(audio_format: AudioFormat):
    """A client that has a byte has audio."""
    sent = streamed(options(audio_format, speed=4.0))
    assert sent[0] == b""
    first = next(each for each in sent if each)
    assert len(decoded(first)[0])


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 47_999])
def test_rate_and_speed_change_the_duration_and_not_the_pitch(rate: int):
    parts, seconds = encode([PCM], options(AudioFormat.WAV, rate, 2.0))
    samples, found = soundfile.read(io.BytesIO(b"".join(parts)))
    assert found == rate
    assert seconds == pytest.approx(SECONDS / 2, abs=0.001)
    assert len(samples) == pytest.approx(seconds * rate, abs=1)
    assert pitch(samples, rate) == pytest.approx(300, abs=3)


# Speed -------------------------------------------------------------------------------------------------------

each_speed = pytest.mark.parametrize("speed", [0.25, 0.5, 0.9, 1.1, 1.5, 2.0, 4.0])


def voice(seconds: float, pitch: float) -> np.ndarray:
    time = np.arange(round(seconds * FAMILY.sample_rate)) / FAMILY.sample_rate
    return sum(4000 / k * np.sin(2 * np.pi * k * pitch * time) for k in (1, 2, 3, 4))


def stretched(signal: np.ndarray, speed: float) -> np.ndarray:
    stretcher = TimeStretcher(speed)
    return np.concatenate((stretcher.feed(signal.astype("<i2")), stretcher.finish())).astype(float)


@each_speed
@pytest.mark.parametrize("frequency", [90, 220])
def test_length_changes_and_pitch_and_level_do_not(speed: float, frequency: int):
    original = voice(3, frequency)
    out = stretched(original, speed)
    assert len(out) == round(len(original) / speed)
    assert pitch(out, FAMILY.sample_rate) == pytest.approx(frequency, rel=0.02)
    blocks = stretched(voice(3, 150), speed)[: len(out) // 480 * 480].reshape(-1, 480)
    loudness = np.sqrt(np.mean(blocks**2, axis=1))[2:-3]
    assert loudness.min() > 0.8 * loudness.max()


def test_position_of_speech_scales_with_the_speed():
    signal = np.zeros(4 * FAMILY.sample_rate)
    signal[FAMILY.sample_rate : 2 * FAMILY.sample_rate] = voice(1, 150)
    audible = np.flatnonzero(np.abs(stretched(signal, 0.5)) > 500) / FAMILY.sample_rate
    assert audible[[0, -1]] == pytest.approx([2.0, 4.0], abs=0.05)


@given(st.integers(0, 5000), st.floats(0.25, 4))
def test_any_length_at_any_speed(length: int, speed: float):
    noise = np.random.default_rng(length).integers(-32768, 32767, length)
    assert len(stretched(noise, speed)) == round(length / speed)
