"""`syrinx say`: synthesizes a text to a file and prints latency."""

import contextlib
import io
import sys
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import av
import numpy as np
from msgspec import Struct

from syrinx_operator.commands.bench.stats import Playback, PlaybackRecorder
from syrinx_operator.commands.client import SpeechClient, SpeechError
from syrinx_stages.contract.family import FAMILY

FORMATS = ("wav", "pcm", "mp3", "flac", "opus", "aac", "ulaw", "alaw")
"""Values of `response_format`, and extensions of files."""
_OTHER_EXTENSIONS = {"wave": "wav", "ogg": "opus", "oga": "opus"}
_DEMUXERS = {"opus": "ogg", "ulaw": "mulaw"}
"""FFmpeg's names of formats that it calls otherwise."""
STREAMABLE = ("wav", "pcm")
TELEPHONY_RATE = 8_000
"""Samples per second of ulaw and alaw, which have no header."""


class SayError(Exception):
    """The options cannot be combined, or the output cannot be written. The message contains advice."""


class Utterance(Struct, frozen=True, kw_only=True):
    """A text with its options and output. `None` selects the server's default."""

    text: str
    output: str = "speech.wav"
    """A file, or `-` for standard output."""
    format: str | None = None
    """One of `FORMATS`. Default: by the file's extension (standard output: wav, streamed: pcm)."""
    stream: bool = False
    voice: str | None = None
    language: str | None = None
    instructions: str | None = None
    seed: int | None = None

    @property
    def container(self) -> str:
        """The output format. Raises `SayError`."""
        if self.format is not None:
            found = self.format
        elif self.output == "-":
            found = "pcm" if self.stream else "wav"
        else:
            extension = Path(self.output).suffix.lower().removeprefix(".")
            found = _OTHER_EXTENSIONS.get(extension, extension)
        if found not in FORMATS:
            raise SayError(f"{self.output}: unknown format; use the extension .{', .'.join(FORMATS)}, or --format")
        if self.stream and found not in STREAMABLE:
            raise SayError(f"--stream writes {' or '.join(STREAMABLE)}, not {found}; use one of them, or omit --stream")
        if self.stream and found == "wav" and self.output == "-":
            raise SayError("a streamed wav needs a file, because its header contains the length; use --format pcm")
        return found


async def say(utterance: Utterance, url: str) -> Playback:
    """Requests the speech from the gateway at `url` and writes the output. Raises `SayError` or `SpeechError`."""
    container = utterance.container
    _check_encoding(utterance)
    async with SpeechClient(url) as client:
        body = _body(utterance, "pcm" if utterance.stream else container)
        begin = time.monotonic()
        recorder = PlaybackRecorder()
        async with client.speech(body) as pieces:
            if utterance.stream:
                with _sink(utterance.output, as_wav=container == "wav") as write:
                    async for piece in pieces:
                        recorder.add(time.monotonic() - begin, piece)
                        write(piece)
            else:
                data = b"".join([piece async for piece in pieces])
                recorder.add(time.monotonic() - begin, _samples(data, container))
                with _sink(utterance.output, as_wav=False) as write:
                    write(data)
    playback = recorder.playback()
    if playback is None:
        raise SpeechError("no audio", "the server sent no audio")
    return playback


def summary(utterance: Utterance, playback: Playback) -> str:
    """Returns a one-line summary."""
    first = "no audible sample" if playback.ttfa is None else f"TTFA {playback.ttfa * 1000:.0f} ms"
    line = f"{utterance.output}: {playback.duration:.2f} s of audio, {first}, RTF {playback.rtf:.2f}"
    if not utterance.stream:
        return line + " (played after the download; use --stream to play while it is generated)"
    underruns = f"{playback.underruns} underruns, {playback.underrun_seconds:.2f} s"
    return f"{line}, {underruns if playback.underruns else 'no underrun'}"


def _check_encoding(utterance: Utterance) -> None:
    """Raises `SayError` for arguments that are not UTF-8. Python decodes these to lone surrogates."""
    for name in ("text", "voice", "language", "instructions"):
        try:
            (getattr(utterance, name) or "").encode()
        except UnicodeEncodeError as error:
            raise SayError(f"{name}: character {error.start + 1} is not UTF-8") from None


def _body(utterance: Utterance, response_format: str) -> dict[str, object]:
    fields = {name: getattr(utterance, name) for name in ("voice", "language", "instructions", "seed")}
    fields["stream"] = utterance.stream
    given = {name: value for name, value in fields.items() if value is not None}
    return {"input": utterance.text, "response_format": response_format, **given}


def _samples(data: bytes, container: str) -> bytes:
    """Returns a complete response as 16-bit mono PCM at `FAMILY.sample_rate`. Raises `SpeechError` for other audio."""
    if container == "pcm":
        return data
    raw = {"sample_rate": str(TELEPHONY_RATE)} if container in ("ulaw", "alaw") else {}
    resampler = av.AudioResampler("s16", "mono", FAMILY.sample_rate)
    try:
        with av.open(io.BytesIO(data), "r", format=_DEMUXERS.get(container, container), options=raw) as file:
            frames = [part for frame in [*file.decode(audio=0), None] for part in resampler.resample(frame)]
    except (av.FFmpegError, IndexError) as error:
        raise SpeechError("no audio", f"the response is not {container}: {error}") from None
    samples: bytes = np.concatenate([frame.to_ndarray()[0] for frame in frames]).tobytes() if frames else b""
    return samples


@contextlib.contextmanager
def _sink(output: str, *, as_wav: bool) -> Iterator[Callable[[bytes], object]]:
    with _file_errors(output), contextlib.ExitStack() as stack:
        if output == "-":
            yield _flushed
        elif as_wav:
            # A wave writer that cannot open its file itself fails again in its destructor.
            file = stack.enter_context(wave.open(stack.enter_context(open(output, "wb")), "wb"))
            file.setparams((1, 2, FAMILY.sample_rate, 0, "NONE", ""))
            yield file.writeframes
        else:
            yield stack.enter_context(open(output, "wb", buffering=0)).write


def _flushed(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def _file_errors(output: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise SayError("standard output was closed") from None
    except (TimeoutError, aiohttp.ClientError):
        raise  # An error of the response, which is an OSError as well.
    except OSError as error:
        raise SayError(f"cannot write {output}: {error.strerror}") from None
