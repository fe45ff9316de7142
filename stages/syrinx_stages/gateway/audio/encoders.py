"""Audio formats of responses, encoded as the audio is generated. Input: 16-bit mono PCM at the family's sample rate."""

import io
import struct
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import av
import numpy as np
import soxr
from msgspec import Struct
from numpy.typing import NDArray

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.audio.stretch import TimeStretcher

Samples = NDArray[np.int16]
_UNKNOWN_SIZE = 0xFFFFFFFF
"""A chunk size that makes players read until the end."""


class AudioFormat(StrEnum):
    """Values of `response_format`."""

    WAV = "wav"
    MP3 = "mp3"
    FLAC = "flac"
    OPUS = "opus"
    """In an Ogg container."""
    AAC = "aac"
    """AAC-LC in ADTS frames."""
    PCM = "pcm"
    """Without a header."""
    ULAW = "ulaw"
    """G.711 u-law without a header."""
    ALAW = "alaw"
    """G.711 A-law without a header."""


class _Format(Struct, frozen=True):
    """A format, and how FFmpeg encodes it."""

    media_type: str
    container: str | None = None
    """None: the samples as they are."""
    encoder: str = ""
    sample_format: str = "s16"
    bit_rate: int | None = None
    frame_samples: int | None = None
    """Samples in each call of the encoder; None: what the encoder asks for."""
    options: dict[str, str] = {}
    container_options: dict[str, str] = {}
    stream_options: dict[str, str] = {}
    """Further options of the container of a stream."""
    rates: tuple[int, ...] | None = None
    """The sample rates that it can have; None: any that the API accepts."""
    default_rate: int = FAMILY.sample_rate


_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_FORMATS = {
    AudioFormat.WAV: _Format("audio/wav"),
    AudioFormat.MP3: _Format(
        "audio/mpeg",
        "mp3",
        "libmp3lame",
        "s16p",
        bit_rate=96_000,
        # Without the reservoir each frame can be decoded when it has arrived.
        options={"reservoir": "0"},
        container_options={"id3v2_version": "0"},
        stream_options={"write_xing": "0"},
        rates=_RATES,
    ),
    AudioFormat.FLAC: _Format("audio/flac", "flac", "flac", frame_samples=1920),
    AudioFormat.OPUS: _Format(
        "audio/ogg",
        "ogg",
        "libopus",
        bit_rate=48_000,
        # By default a page of Ogg holds a second of audio.
        stream_options={"page_duration": "60000"},
        rates=(8_000, 12_000, 16_000, 24_000, 48_000),
    ),
    AudioFormat.AAC: _Format("audio/aac", "adts", "aac", "fltp", bit_rate=96_000, rates=_RATES),
    AudioFormat.PCM: _Format("audio/pcm"),
    # Telephony has 8,000 samples per second.
    AudioFormat.ULAW: _Format("audio/PCMU", "mulaw", "pcm_mulaw", frame_samples=480, default_rate=8_000),
    AudioFormat.ALAW: _Format("audio/PCMA", "alaw", "pcm_alaw", frame_samples=480, default_rate=8_000),
}


OTHER_NAMES = {each.media_type: name for name, each in _FORMATS.items()} | {
    "wave": AudioFormat.WAV,
    "audio/x-wav": AudioFormat.WAV,
    "ogg": AudioFormat.OPUS,
    "ogg_opus": AudioFormat.OPUS,
    "pcm16": AudioFormat.PCM,
    "pcm_s16le": AudioFormat.PCM,
    "mulaw": AudioFormat.ULAW,
    "pcm_mulaw": AudioFormat.ULAW,
    "pcm_alaw": AudioFormat.ALAW,
    "g711_ulaw": AudioFormat.ULAW,
    "g711_alaw": AudioFormat.ALAW,
}
"""What OpenAI's Realtime API, FFmpeg and others call the formats, and their media types."""


def default_rate(audio_format: AudioFormat) -> int:
    """Samples per second unless a request names another rate."""
    return _FORMATS[audio_format].default_rate


def accepted_rates(audio_format: AudioFormat) -> tuple[int, ...] | None:
    """The sample rates that a format can have; None: any that the API accepts."""
    return _FORMATS[audio_format].rates


class AudioOptions(Struct, frozen=True):
    """The audio that a client asks for."""

    format: AudioFormat = AudioFormat.WAV
    rate: int = FAMILY.sample_rate
    """Samples per second."""
    speed: float = 1.0
    """The playback speed; the pitch is unchanged."""

    @property
    def media_type(self) -> str:
        """The value of `Content-Type`."""
        return _FORMATS[self.format].media_type

    @property
    def cheap(self) -> bool:
        """Whether encoding takes less time than a switch of threads."""
        plain = self.format in (AudioFormat.WAV, AudioFormat.PCM)
        return plain and self.rate == FAMILY.sample_rate and self.speed == 1.0


class Encoder:
    """Encodes the audio of one response. The bytes do not depend on how the input is divided.

    whole: the output is a complete file, except for the header of WAV. Otherwise it can be played as it is returned.
    """

    def __init__(self, options: AudioOptions, *, whole: bool = False) -> None:
        self._stretcher = TimeStretcher(options.speed) if options.speed != 1.0 else None
        self._resampler = _Resampler(options.rate) if options.rate != FAMILY.sample_rate else None
        self._writer: _Raw | _ContainerWriter
        if _FORMATS[options.format].container is not None:
            self._writer = _ContainerWriter(_FORMATS[options.format], options.rate, whole)
        else:
            streamed_wav = options.format is AudioFormat.WAV and not whole
            self._writer = _Raw(wav_header(None, options.rate) if streamed_wav else b"")
        self.samples = 0
        """Samples encoded so far, at the rate of the response."""

    def feed(self, pcm: bytes) -> bytes:
        """Returns what can be sent after more PCM; empty if that is nothing yet.

        A header is returned with the first audio.
        """
        samples = np.frombuffer(pcm, dtype="<i2")
        if self._stretcher is not None:
            samples = self._stretcher.feed(samples)
        if self._resampler is not None:
            samples = self._resampler.feed(samples)
        self.samples += len(samples)
        return self._writer.feed(samples)

    def finish(self) -> bytes:
        """Returns the rest of the encoded audio."""
        samples = np.empty(0, np.int16)
        if self._stretcher is not None:
            samples = self._stretcher.finish()
        if self._resampler is not None:
            samples = self._resampler.feed(samples, last=True)
        self.samples += len(samples)
        return self._writer.feed(samples) + self._writer.finish()


def encode(pcm: Iterable[bytes], options: AudioOptions) -> tuple[list[bytes], float]:
    """Returns the parts of a complete file of PCM that is not empty, and its duration in seconds.

    The parts are not joined: copying minutes of audio at once would keep other threads waiting.
    """
    encoder = Encoder(options, whole=True)
    parts = [*map(encoder.feed, pcm), encoder.finish()]
    if options.format is AudioFormat.WAV:
        parts.insert(0, wav_header(sum(map(len, parts)), options.rate))
    return parts, encoder.samples / options.rate


def wav_header(data_bytes: int | None, rate: int) -> bytes:
    """The 44 bytes before `data_bytes` bytes of PCM; None is a stream of unknown length."""
    riff, data = (_UNKNOWN_SIZE, _UNKNOWN_SIZE) if data_bytes is None else (36 + data_bytes, data_bytes)
    format_chunk = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + format_chunk + struct.pack("<4sI", b"data", data)


class _Resampler:
    """Converts the sample rate."""

    def __init__(self, rate: int) -> None:
        # Of floats: the library adds a random dither to integers.
        self._stream = soxr.ResampleStream(FAMILY.sample_rate, rate, 1, dtype="float32")

    def feed(self, samples: Samples, last: bool = False) -> Samples:
        resampled = self._stream.resample_chunk(samples.astype(np.float32), last=last)
        rounded: Samples = np.clip(np.rint(resampled), -32768, 32767).astype("<i2")
        return rounded


class _Raw:
    """PCM after a header."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def feed(self, samples: Samples) -> bytes:
        """Returns what can be sent: empty, or with audio in it."""
        if not len(samples):
            return b""
        header, self._header = self._header, b""
        return header + samples.tobytes()

    def finish(self) -> bytes:
        """Returns the rest."""
        return self._header


class _Sink:
    """A file that cannot seek, from which what was written is taken."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


class _File(io.BytesIO):
    """A file that is taken when it is complete."""

    def take(self) -> bytes:
        return b""


class _ContainerWriter:
    """Encodes with FFmpeg."""

    def __init__(self, audio_format: _Format, rate: int, whole: bool) -> None:
        self._sink = _File() if whole else _Sink()
        self._format = audio_format
        # Otherwise Ogg streams have random serial numbers, and files name the version of FFmpeg.
        options = {"fflags": "+bitexact+flush_packets", **audio_format.container_options}
        if not whole:
            options |= audio_format.stream_options
        self._container = av.open(self._sink, "w", format=audio_format.container, container_options=options)
        flags = {"flags": "+bitexact", **audio_format.options}
        stream = self._container.add_stream(audio_format.encoder, rate=rate, options=flags)
        assert isinstance(stream, av.AudioStream)
        self._stream, self._rate = stream, rate
        stream.layout = "mono"
        stream.format = audio_format.sample_format
        if audio_format.bit_rate is not None:
            stream.bit_rate = audio_format.bit_rate
        stream.codec_context.open()
        self._container.start_encoding()
        self._header = self._sink.take()
        self._frame_samples = audio_format.frame_samples or stream.codec_context.frame_size
        self._rest = np.empty(0, np.int16)
        self._position = 0

    def feed(self, samples: Samples) -> bytes:
        samples = np.concatenate((self._rest, samples))
        whole = len(samples) - len(samples) % self._frame_samples
        for start in range(0, whole, self._frame_samples):
            self._encode(samples[start : start + self._frame_samples])
        self._rest = samples[whole:]
        return self._taken()

    def _taken(self) -> bytes:
        if data := self._sink.take():
            header, self._header = self._header, b""
            return header + data
        return b""

    def _encode(self, samples: Samples) -> None:
        values = samples.astype(np.float32) / 32768 if self._format.sample_format == "fltp" else samples
        frame = av.AudioFrame.from_ndarray(values[None], format=self._format.sample_format, layout="mono")
        frame.sample_rate = self._rate
        frame.pts = self._position
        self._position += len(samples)
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> bytes:
        if len(self._rest):
            self._encode(self._rest)
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.getvalue() if isinstance(self._sink, _File) else self._taken()
