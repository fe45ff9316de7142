"""Audio formats of responses, encoded as the audio is generated. Input: 16-bit mono PCM at the family's sample rate."""

import io
import struct
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Protocol

import av
import numpy as np
import soxr
from msgspec import Struct
from numpy.typing import NDArray

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.audio.stretch import TimeStretcher

Samples = NDArray[np.int16]
MIN_RATE, MAX_RATE = 8_000, 48_000
"""Accepted sample rates of a response."""
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


class _Codec(Struct, frozen=True):
    """How a format is encoded by FFmpeg."""

    container: str
    encoder: str
    sample_format: str = "s16"
    bit_rate: int | None = None
    frame_samples: int | None = None
    """Samples in each call of the encoder; None: what the encoder asks for."""
    options: dict[str, str] = {}
    container_options: dict[str, str] = {}
    stream_options: dict[str, str] = {}
    """Further options of the container of a stream."""


_CODECS = {
    AudioFormat.MP3: _Codec(
        "mp3",
        "libmp3lame",
        "s16p",
        bit_rate=96_000,
        # Without the reservoir each frame can be decoded when it has arrived.
        options={"reservoir": "0"},
        container_options={"id3v2_version": "0"},
        stream_options={"write_xing": "0"},
    ),
    AudioFormat.FLAC: _Codec("flac", "flac", frame_samples=1920),
    # By default a page of Ogg holds a second of audio.
    AudioFormat.OPUS: _Codec("ogg", "libopus", bit_rate=48_000, stream_options={"page_duration": "60000"}),
    AudioFormat.AAC: _Codec("adts", "aac", "fltp", bit_rate=96_000),
    AudioFormat.ULAW: _Codec("mulaw", "pcm_mulaw", frame_samples=480),
    AudioFormat.ALAW: _Codec("alaw", "pcm_alaw", frame_samples=480),
}
_RATES = {
    AudioFormat.MP3: (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    AudioFormat.OPUS: (8_000, 12_000, 16_000, 24_000, 48_000),
    AudioFormat.AAC: (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
}
"""Sample rates of the formats that have only some."""
_MEDIA_TYPES = {
    AudioFormat.WAV: "audio/wav",
    AudioFormat.MP3: "audio/mpeg",
    AudioFormat.FLAC: "audio/flac",
    AudioFormat.OPUS: "audio/ogg",
    AudioFormat.AAC: "audio/aac",
    AudioFormat.PCM: "audio/pcm",
    AudioFormat.ULAW: "audio/PCMU",
    AudioFormat.ALAW: "audio/PCMA",
}


def default_rate(audio_format: AudioFormat) -> int:
    """Samples per second unless a request names another rate: 8,000 for telephony, else the family's."""
    return 8_000 if audio_format in (AudioFormat.ULAW, AudioFormat.ALAW) else FAMILY.sample_rate


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
        return _MEDIA_TYPES[self.format]

    @property
    def cheap(self) -> bool:
        """Whether encoding takes less time than a switch of threads."""
        plain = self.format in (AudioFormat.WAV, AudioFormat.PCM)
        return plain and self.rate == FAMILY.sample_rate and self.speed == 1.0


def accepted_rates(audio_format: AudioFormat) -> tuple[int, ...] | None:
    """The sample rates that a format can have; None: any from `MIN_RATE` to `MAX_RATE`."""
    return _RATES.get(audio_format)


class Encoder:
    """Encodes the audio of one response. The bytes do not depend on how the input is divided.

    whole: the output is a complete file, except for the header of WAV. Otherwise it can be played as it is returned.
    """

    def __init__(self, options: AudioOptions, *, whole: bool = False) -> None:
        self._stretcher = TimeStretcher(options.speed) if options.speed != 1.0 else None
        self._resampler = _Resampler(options.rate) if options.rate != FAMILY.sample_rate else None
        self._writer = _writer(options, whole)
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


def wav_header(data_bytes: int | None, rate: int = FAMILY.sample_rate) -> bytes:
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


class _Writer(Protocol):
    """Writes samples in a format."""

    def feed(self, samples: Samples) -> bytes:
        """Returns what can be sent: empty, or with audio in it."""

    def finish(self) -> bytes:
        """Returns the rest."""


def _writer(options: AudioOptions, whole: bool) -> _Writer:
    if (codec := _CODECS.get(options.format)) is not None:
        return _ContainerWriter(codec, options.rate, whole)
    streamed_wav = options.format is AudioFormat.WAV and not whole
    return _Raw(wav_header(None, options.rate) if streamed_wav else b"")


class _Raw:
    """PCM after a header."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def feed(self, samples: Samples) -> bytes:
        if not len(samples):
            return b""
        header, self._header = self._header, b""
        return header + samples.tobytes()

    def finish(self) -> bytes:
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

    def __init__(self, codec: _Codec, rate: int, whole: bool) -> None:
        self._sink = _File() if whole else _Sink()
        self._codec = codec
        # Otherwise Ogg streams have random serial numbers, and files name the version of FFmpeg.
        options = {"fflags": "+bitexact+flush_packets", **codec.container_options}
        if not whole:
            options |= codec.stream_options
        self._container = av.open(self._sink, "w", format=codec.container, container_options=options)
        stream = self._container.add_stream(codec.encoder, rate=rate, options={"flags": "+bitexact", **codec.options})
        assert isinstance(stream, av.AudioStream)
        self._stream, self._rate = stream, rate
        stream.layout = "mono"
        stream.format = codec.sample_format
        if codec.bit_rate is not None:
            stream.bit_rate = codec.bit_rate
        stream.codec_context.open()
        self._container.start_encoding()
        self._header = self._sink.take()
        self._frame_samples = codec.frame_samples or stream.codec_context.frame_size
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
        values = samples.astype(np.float32) / 32768 if self._codec.sample_format == "fltp" else samples
        frame = av.AudioFrame.from_ndarray(values[None], format=self._codec.sample_format, layout="mono")
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
