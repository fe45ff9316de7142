"""Media files as phones, browsers and FFmpeg make them."""

import io

import av
import numpy as np


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


def _tone(seconds: float) -> np.ndarray:
    return (0.3 * np.sin(np.arange(round(seconds * 48_000)) * 2 * np.pi * 300 / 48_000)).astype(np.float32)
