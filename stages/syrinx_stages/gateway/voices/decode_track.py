"""Decodes the audio track of a media file with FFmpeg, as a program: a small file can make FFmpeg use gigabytes.

`python decode_track.py DEMUXER MAX_SECONDS < file > samples` writes the sample rate and the number of channels, each as
four little-endian bytes, and then the samples as interleaved little-endian float32. It exits with 0, one of the codes
below or, at a limit of memory, time or output, in another way.
"""

import os
import resource
import sys
from collections.abc import Iterator

import av
from av.container import InputContainer

UNREADABLE, NO_AUDIO, TOO_LONG = 1, 3, 4
"""Exit codes: the file is damaged or truncated, has no audio track, is longer than MAX_SECONDS."""
_CPU_SECONDS = 10
"""Valid files need less than one."""
_MEMORY = 128 * 2**20
"""Bytes beyond what the program has when it starts."""
_OUTPUT = 64 * 2**20
"""Bytes: more than 30 seconds of stereo at the highest sample rate have."""
_TOLERANCE = 0.25
"""Seconds by which a track may be shorter than the file says: encoders count their delay differently."""
_DECODERS = (
    "aac,ac3,alac,eac3,flac,libopus,libvorbis,mp2,mp2float,mp3,mp3float,opus,vorbis,"
    "pcm_f32be,pcm_f32le,pcm_s16be,pcm_s16le,pcm_s24be,pcm_s24le,pcm_s32be,pcm_s32le"
)
_OPTIONS = {"codec_whitelist": _DECODERS, "protocol_whitelist": "none"}
"""Pictures are not decoded to find out what they are, and nothing but the input is opened."""


def limit_resources(cpu_seconds: int = _CPU_SECONDS) -> None:
    """Bounds what the process may use from now on."""
    with open("/proc/self/statm") as statm:
        memory = int(statm.read().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: memory + _MEMORY,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_FSIZE: _OUTPUT,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))


def decode(demuxer: str, max_seconds: float) -> int:
    """Decodes standard input to standard output. Returns an exit code."""
    with av.open(sys.stdin.buffer, "r", format=demuxer, options=_OPTIONS) as container:
        stream = container.streams.best("audio")
        if not isinstance(stream, av.AudioStream) or stream.codec_context.name not in _DECODERS.split(","):
            return NO_AUDIO
        samples, rate = 0, 0
        for frame in _decoded(container, stream):
            channels = frame.layout.nb_channels
            if not rate:
                rate = frame.sample_rate
                sys.stdout.buffer.write(rate.to_bytes(4, "little") + channels.to_bytes(4, "little"))
            sys.stdout.buffer.write(bytes(frame.planes[0])[: 4 * frame.samples * channels])
            samples += frame.samples
            if samples > max_seconds * rate:
                return TOO_LONG
        if not rate:
            return UNREADABLE
        return UNREADABLE if samples / rate < _stated_seconds(container, stream) - _TOLERANCE else 0


def _decoded(container: InputContainer, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    """Yields interleaved float32 frames. Raises `FFmpegError` if they are damaged; what follows the last is ignored."""
    resampler, damage = av.AudioResampler(format="flt"), None
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.InvalidDataError as error:
            damage = error
            continue
        for frame in frames:
            if damage is not None:
                raise damage
            yield from resampler.resample(frame)


def _stated_seconds(container: InputContainer, stream: av.AudioStream) -> float:
    """Returns the duration of a track that its file states; 0 if it does not."""
    if container.format.name in ("aac", "mp3"):  # FFmpeg estimates one.
        return 0.0
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / av.time_base if len(container.streams) == 1 else 0.0


def main() -> int:
    """Returns the exit code of the program."""
    limit_resources()
    try:
        code = decode(sys.argv[1], float(sys.argv[2]))
        sys.stdout.flush()
    except (av.FFmpegError, ValueError):
        return UNREADABLE
    return code


if __name__ == "__main__":
    # Without the interpreter's clean-up, which takes longer than to decode.
    os._exit(main())
