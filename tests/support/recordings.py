"""Media files as phones, browsers and FFmpeg make them."""

import io

import av
import numpy as np

_QSCALE, _LAMBDA = 2, 118
"""FFmpeg's flag for a constant quality, and the unit of that quality."""


def recording(container: str, codec: str | None, seconds: float, channels: int = 1, *, picture: bool = False) -> bytes:
    """Returns a file with a tone of 300 Hz. codec: of the audio, at 48 kHz; None is a video without any."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as media:
        video = media.add_stream("mpeg4", rate=5, width=64, height=64, pix_fmt="yuv420p") if picture else None
        layout = {1: "mono", 2: "stereo", 6: "5.1"}[channels]
        audio = None if codec is None else media.add_stream(codec, rate=48_000, layout=layout)
        if video is not None:
            media.mux(packet for _ in range(10) for packet in video.encode(av.VideoFrame(64, 64, "yuv420p")))
            media.mux(video.encode(None))
        if audio is not None:
            tone = np.tile(_tone(seconds), (channels, 1))
            frame = av.AudioFrame.from_ndarray(tone, "fltp", layout)
            frame.sample_rate, frame.pts = 48_000, 0
            media.mux(audio.encode(frame))
            media.mux(audio.encode(None))
    return out.getvalue()


class _Pipe(io.RawIOBase):
    """What is written, without the possibility to correct its beginning."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Keeps the data."""
        self.written += data
        return len(data)


def piped(container: str, codec: str, seconds: float) -> bytes:
    """Returns a file at 24 kHz that was written to a pipe: silence, and noise from the middle on."""
    pipe, count = _Pipe(), round(seconds * 24_000)
    noise = 0.1 * np.random.default_rng(0).standard_normal(count)
    samples = np.where(np.arange(count) < count / 2, 0.001, 1.0) * noise
    with av.open(pipe, "w", format=container) as media:
        audio = media.add_stream(codec, rate=24_000, layout="mono")
        audio.codec_context.flags |= _QSCALE
        audio.codec_context.global_quality = 4 * _LAMBDA
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], "s16", "mono")
        frame.sample_rate, frame.pts = 24_000, 0
        resampler = av.AudioResampler(format=audio.codec_context.format, layout="mono", rate=24_000)
        media.mux(packet for each in resampler.resample(frame) for packet in audio.encode(each))
        media.mux(audio.encode(None))
    return bytes(pipe.written)


def _tone(seconds: float) -> np.ndarray:
    return (0.3 * np.sin(np.arange(round(seconds * 48_000)) * 2 * np.pi * 300 / 48_000)).astype(np.float32)
