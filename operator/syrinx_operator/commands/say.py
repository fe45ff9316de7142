"""`syrinx say`: one sentence into a file, and how fast it came."""

from __future__ import annotations

import contextlib
import io
import sys
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import soundfile
from msgspec import Struct

from syrinx_operator.commands.bench.playback import Playback, PlaybackRecorder
from syrinx_operator.commands.client import SpeechError, connect, speech
from syrinx_stages.contract.family import FAMILY

FORMATS = ("wav", "pcm", "mp3", "flac", "opus")
STREAMABLE = ("wav", "pcm")


class SayError(Exception):
    """What was asked for cannot be done; the message says what can."""


class Utterance(Struct, frozen=True, kw_only=True):
    """What to say, how, and where to put it. `None` leaves a choice to the server."""

    text: str
    output: str = "speech.wav"
    """A file, or `-` for standard output."""
    format: str | None = None
    """One of `FORMATS`; None follows the file's extension (standard output: wav, streamed: pcm)."""
    stream: bool = False
    voice: str | None = None
    language: str | None = None
    instructions: str | None = None
    seed: int | None = None

    @property
    def container(self) -> str:
        """The format of the output. Raises `SayError`."""
        if self.format is not None:
            found = self.format
        elif self.output == "-":
            found = "pcm" if self.stream else "wav"
        else:
            found = Path(self.output).suffix.lower().removeprefix(".")
        if found not in FORMATS:
            raise SayError(f"{self.output}: cannot tell the format; name it .{', .'.join(FORMATS)}, or use --format")
        if self.stream and found not in STREAMABLE:
            raise SayError(f"{found} cannot be streamed; {' and '.join(STREAMABLE)} can, or leave --stream out")
        if self.stream and found == "wav" and self.output == "-":
            raise SayError("a streamed wav needs a file, for its length is known last; use --format pcm")
        return found


async def say(utterance: Utterance, url: str) -> Playback:
    """Speaks through the gateway at `url` and writes the output. Raises `SayError` or `SpeechError`."""
    container = utterance.container
    _check_words(utterance)
    async with connect(url) as client:
        body = _body(utterance, "pcm" if utterance.stream else container)
        begin = time.monotonic()
        recorder = PlaybackRecorder()
        async with speech(client, body) as pieces:
            if utterance.stream:
                with _sink(utterance.output, container) as write:
                    async for piece in pieces:
                        recorder.add(time.monotonic() - begin, piece)
                        write(piece)
            else:
                data = b"".join([piece async for piece in pieces])
                recorder.add(time.monotonic() - begin, _samples(data, container))
                _write(utterance.output, data)
    if not recorder.has_audio:
        raise SpeechError("no audio", "the server sent no audio")
    return recorder.playback()


def summary(utterance: Utterance, heard: Playback) -> str:
    """One line for people."""
    first = "nothing audible in it" if heard.ttfa is None else f"TTFA {heard.ttfa * 1000:.0f} ms"
    line = f"{utterance.output}: {heard.duration:.2f} s of audio, {first}, RTF {heard.rtf:.2f}"
    if not utterance.stream:
        return line + " (heard from when the whole was there; --stream plays while it is made)"
    waited = f"{heard.underruns} underruns, {heard.underrun_seconds:.2f} s" if heard.underruns else "no underrun"
    return f"{line}, {waited}"


def _check_words(utterance: Utterance) -> None:
    """Bytes of a command line that are not UTF-8 come as halves of surrogate pairs. Raises `SayError`."""
    for name in ("text", "voice", "language", "instructions"):
        try:
            (getattr(utterance, name) or "").encode()
        except UnicodeEncodeError as error:
            raise SayError(f"{name}: character {error.start + 1} is not UTF-8") from None


def _body(utterance: Utterance, response_format: str) -> dict[str, object]:
    fields: dict[str, object] = {"input": utterance.text, "response_format": response_format}
    if utterance.stream:
        fields |= {"stream": True, "stream_format": "audio"}
    for name in ("voice", "language", "instructions", "seed"):
        if (value := getattr(utterance, name)) is not None:
            fields[name] = value
    return fields


def _samples(data: bytes, container: str) -> bytes:
    """A whole answer as 16-bit PCM at `FAMILY.sample_rate`. Raises `SpeechError` if it is not what was asked for."""
    if container == "pcm":
        return data
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="int16", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise SpeechError("no audio", f"the answer is not {container}: {error}") from None
    if rate != FAMILY.sample_rate and len(samples):
        raise SpeechError("no audio", f"the answer has {rate} samples a second; expected {FAMILY.sample_rate}")
    mono: bytes = samples[:, 0].tobytes()
    return mono


def _write(output: str, data: bytes) -> None:
    with _file_errors(output):
        if output == "-":
            _flushed(data)
        else:
            Path(output).write_bytes(data)


@contextlib.contextmanager
def _sink(output: str, container: str) -> Iterator[Callable[[bytes], object]]:
    """Where PCM goes while it arrives."""
    with _file_errors(output), contextlib.ExitStack() as stack:
        if output == "-":
            yield _flushed
        elif container == "wav":
            # Opened here: a wave writer that cannot open its file complains once more when it is deleted.
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
    except OSError as error:
        raise SayError(f"cannot write {output}: {error.strerror}") from None
