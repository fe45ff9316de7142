"""Decodes the reference audio of a voice clone: base64, a data: URI or a URL to mono float32 samples at 24 kHz."""

import binascii
import io
import os
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator, Sequence
from urllib.parse import unquote_to_bytes

import httpx
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, too_large
from syrinx_stages.gateway.voices import decode_track

FIELD = "ref_audio"
MIN_SECONDS = 1.0
MAX_SECONDS = 30.0
MAX_FILE = 16 * 2**20
"""Bytes of the audio file."""
MIN_RATE, MAX_RATE = 8_000, 192_000
"""Samples per second of the audio file."""
MAX_PEAK = 32_768
"""Of a sample, by full scale: floating-point files may exceed 1, and some have 16-bit numbers."""
FETCH_SECONDS = 10.0
"""Time limit for the whole response of a URL."""
_PIECE = 2**16
"""Characters of base64 that are decoded at once: a call of C code holds the event loop from any thread."""
_MAX_CHUNKS = 64
"""Of a WAV file, before its samples."""
_MAX_TAGS = 4
"""Of a file, before its audio."""
_INDICES = (b"Xing", b"Info", b"VBRI")
"""What states the length of an MP3 file, in its first frame."""
_FIRST_FRAME = 64
"""Bytes of an MP3 file in which its index begins."""

# Browsers name the codecs of a recording with commas: data:video/webm;codecs=vp8,opus;base64,...
_DATA_URI = re.compile(r"[\s\ufeff]{0,9}data:(?:[^\n]{0,200}?;\s{0,9}base64\s{0,9},)?", re.IGNORECASE)
_URL = re.compile(r"[\s\ufeff]{0,9}([A-Za-z][A-Za-z0-9+.-]{0,30}://|file:)", re.IGNORECASE)
_BYTE_ORDER_MARK = "\ufeff"
_MAX_URL = 8192
"""Characters."""
_STANDARD_ALPHABET, _WHITE_SPACE = bytes.maketrans(b"-_", b"+/"), b" \t\r\n\f\v"
FORMATS = "wav, flac, mp3, ogg (vorbis, opus), m4a, mp4, webm, aac (ADTS), aiff or caf"
"""What is accepted, in words."""
_WAV = (b"RIFF", b"RF64")
"""How WAV files begin: those whose sizes have 32 bits, and 64, in a chunk before the others."""
_SIZE_64 = slice(28, 36)
"""Of the samples, in an RF64 file."""
_DEMUXERS = {b"\x1aE\xdf\xa3": "matroska", b"caff": "caf", b"FORM": "aiff"}
"""FFmpeg's names of containers, by how their files begin."""


def is_url(ref_audio: str) -> bool:
    """Whether `ref_audio` is a URL."""
    return _URL.match(ref_audio) is not None


def check_url(ref_audio: str, hosts: Sequence[str]) -> httpx.URL:
    """Returns a URL that may be fetched: http(s), its host (or `host:port`) in `hosts`, no credentials. Raises 400."""
    if len(ref_audio) > _MAX_URL:
        raise bad_request(FIELD, f"is a URL of {len(ref_audio):,} characters; at most {_MAX_URL:,} are accepted")
    try:
        url = httpx.URL(ref_audio.removeprefix(_BYTE_ORDER_MARK).strip())
    except httpx.InvalidURL as error:
        raise bad_request(FIELD, f"is not a URL: {error}") from None
    if url.scheme not in ("http", "https"):
        raise bad_request(
            FIELD, f"{quoted(url.scheme)} URLs are not accepted; send http(s), a data: URI or base64 audio"
        )
    if url.userinfo:
        raise bad_request(FIELD, "the URL contains credentials; send one without")
    host = url.host if url.port is None else f"{url.host}:{url.port}"
    if host not in hosts:
        allowed = ", ".join(hosts) if hosts else "none; send the audio itself as base64"
        raise bad_request(FIELD, f"host {quoted(host)} is not allowed; accepted: {allowed}")
    return url


async def fetch(client: httpx.AsyncClient, url: httpx.URL) -> bytes:
    """Fetches a checked URL without following redirects. Raises 400 for any status but 200, 413 above `MAX_FILE`."""
    data = bytearray()
    async with client.stream("GET", url, headers={"Accept-Encoding": "identity"}, follow_redirects=False) as response:
        if response.status_code != 200:
            raise bad_request(
                FIELD, f"the URL returned status {response.status_code}; it must return 200 with the file"
            )
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > MAX_FILE:
                raise too_large(FIELD, f"the file at the URL is larger than {MAX_FILE // 2**20} MB")
    return bytes(data)


def file_too_large() -> ApiError:
    """413: the file is above `MAX_FILE`."""
    return too_large(FIELD, f"the file is larger than {MAX_FILE // 2**20} MB")


def decode_base64(ref_audio: str) -> bytes:
    """Decodes a data: URI or plain base64 to the bytes of the file. Raises 400 or 413.

    White space and a byte-order mark are ignored, characters may be escaped (`%2B`), the alphabet may be that of URLs,
    and padding may be absent: all have one meaning.
    """
    prefix = _DATA_URI.match(ref_audio)
    if prefix is not None and not prefix[0].endswith(","):
        raise bad_request(FIELD, "the data: URI is not base64; send data:audio/wav;base64,...")
    decoded, size = list[bytes](), 0
    start = prefix.end() if prefix else int(ref_audio.startswith(_BYTE_ORDER_MARK))
    try:
        for quads in _quads(ref_audio, start):
            decoded.append(b64decode(quads, validate=True))
            size += len(decoded[-1])
            if size > MAX_FILE:
                raise file_too_large()
    except (binascii.Error, ValueError) as error:
        raise bad_request(FIELD, f"is neither base64 audio nor a data: URI nor a URL: {error}") from None
    return b"".join(decoded)


def _quads(text: str, start: int) -> Iterator[bytes]:
    """Yields base64 from `start` in pieces of whole groups of four, in the standard alphabet and padded."""
    rest = b""
    while start < len(text):
        stop = start + _PIECE
        # An escape has three characters.
        if stop < len(text) and (escape := text.rfind("%", stop - 2, stop)) > 0:
            stop = escape
        rest += unquote_to_bytes(text[start:stop]).translate(_STANDARD_ALPHABET, _WHITE_SPACE)
        start = stop
        whole = max(len(rest) - 4, 0) // 4 * 4  # The last group may end with padding.
        if b"=" in rest[:whole]:
            raise ValueError("padding before the end")
        yield rest[:whole]
        rest = rest[whole:]
    rest = rest.rstrip(b"=")
    yield rest + b"=" * (-len(rest) % 4)


def decode_audio(data: bytes) -> bytes:
    """Decodes an audio file to mono float32 little-endian samples at 24 kHz; full scale is 1.

    Neither rounds nor clips: rounding to 16 bits changes the speaker embedding by a thousandth. Raises 400 if the file
    is invalid or out of range.
    """
    if end := _end_of_tags(data):
        data = data[end:]
    if (demuxer := _demuxer(data)) is not None:
        return _convert(*_decode_track(data, demuxer))
    try:
        with soundfile.SoundFile(io.BytesIO(_with_sizes(data))) as file:
            _check_format(file.channels, file.samplerate)
            _check_length(file.frames / file.samplerate)
            # The header may be wrong: at most one sample more than it says is decoded.
            samples = file.read(file.frames + 1, dtype="float32", always_2d=True)
            expected, rate = file.frames, file.samplerate
    except soundfile.SoundFileError:
        raise _unreadable() from None
    if len(samples) < expected:
        raise bad_request(FIELD, f"is truncated: {len(samples)} of {expected} samples are present")
    return _convert(samples, rate)


def _demuxer(data: bytes) -> str | None:
    """Returns FFmpeg's name for the file's container; None if libsndfile reads it. Raises 400 for other files."""
    if data[:4] == b"fLaC":
        # Programs that write to a pipe do not know the number of samples, in the low 36 bits of these bytes.
        return None if int.from_bytes(data[18:26], "big") & (2**36 - 1) else "flac"
    if data[:4] == b"OggS" or (data[:4] in _WAV and data[8:12] == b"WAVE"):
        return None
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mov"
    if (found := next((name for begin, name in _DEMUXERS.items() if data.startswith(begin)), None)) is not None:
        return found
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
        if not data[1] & 0x06:  # Layer 0 is that of ADTS.
            return "aac"
        # Without an index libsndfile takes the length from the bit rate of the first frame, and reads no further.
        return None if any(index in data[:_FIRST_FRAME] for index in _INDICES) else "mp3"
    raise bad_request(FIELD, f"is not a supported audio file; send {FORMATS}")


def _end_of_tags(data: bytes) -> int:
    """Returns where the ID3 tags at the beginning of the file end; 0 if there is none."""
    end = 0
    for _ in range(_MAX_TAGS):
        if data[end : end + 3] != b"ID3":
            break
        size = 0
        for byte in data[end + 6 : end + 10]:
            size = size << 7 | byte & 0x7F
        end += 10 + size
    return end


def _with_sizes(data: bytes) -> bytes:
    """Returns the file; a WAV file whose sizes are placeholders, or have 64 bits, with the sizes that it has.

    Raises 400 if it is truncated.
    """
    start = _start_of_samples(data) if data[:4] in _WAV else None
    if start is None or start > len(data):
        return data
    long = data[:4] == b"RF64"
    size, present = int.from_bytes(data[_SIZE_64 if long else slice(start - 4, start)], "little"), len(data) - start
    # Programs that write to a pipe do not know the size: it is 0, or more than any file has. Others write the file's.
    unknown = not 0 < size <= MAX_FILE or present < size <= len(data)
    if not unknown and size > present:
        raise bad_request(FIELD, f"is truncated: {present} of {size} bytes of audio are present")
    if not (unknown or long):
        return data
    sizes = (len(data) - 8).to_bytes(4, "little"), (present if unknown else size).to_bytes(4, "little")
    header = b"RIFF" + sizes[0] + data[8 : start - 4] + sizes[1]
    return b"".join((header, *(data[at : at + _PIECE] for at in range(start, len(data), _PIECE))))


def _start_of_samples(data: bytes) -> int | None:
    """Returns where the samples of a WAV file begin; None if they do not follow its first chunks."""
    start = 12
    for _ in range(_MAX_CHUNKS):
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        if data[start : start + 4] == b"data":
            return start + 8
        start += 8 + size + size % 2
    return None


def _decode_track(data: bytes, demuxer: str) -> tuple[NDArray[np.float32], int]:
    """Returns the samples `[samples, channels]` of a file's audio track, and their rate. Raises 400."""
    program = (sys.executable, "-P", decode_track.__file__, demuxer, str(MAX_SECONDS))
    with _memory_file() as source, _memory_file() as decoded:
        source.write(data)
        source.seek(0)
        code = subprocess.run(program, stdin=source, stdout=decoded, stderr=subprocess.DEVNULL, check=False).returncode
        if code == decode_track.NO_AUDIO:
            raise bad_request(FIELD, f"has no audio track that can be read; send {FORMATS}")
        if code == decode_track.TOO_LONG:
            raise bad_request(FIELD, f"is longer than {MAX_SECONDS:.0f} seconds")
        if code != 0:
            raise _unreadable()
        decoded.seek(0)
        rate, channels = (int.from_bytes(decoded.read(4), "little") for _ in range(2))
        _check_format(channels, rate)
        return np.frombuffer(decoded.read(), "<f4").reshape(-1, channels), rate


def _memory_file() -> io.FileIO:
    return io.FileIO(os.memfd_create("reference"), "r+")


def _unreadable() -> ApiError:
    reason = "it is damaged or truncated, or takes too much memory or time"
    return bad_request(FIELD, f"cannot be decoded: {reason}; send a complete file: {FORMATS}")


def _check_format(channels: int, rate: int) -> None:
    if channels > 2:
        raise bad_request(FIELD, f"has {channels} channels; send mono or stereo")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise bad_request(FIELD, f"has {rate} samples per second; accepted: {MIN_RATE:,} to {MAX_RATE:,}")


def _check_length(seconds: float) -> None:
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise bad_request(FIELD, f"is {seconds:.2f} seconds long; accepted: {MIN_SECONDS:.0f} to {MAX_SECONDS:.0f}")


def _convert(samples: NDArray[np.float32], rate: int) -> bytes:
    _check_length(len(samples) / rate)
    # The comparison is also false for NaN.
    if not np.abs(samples).max() <= MAX_PEAK:
        raise bad_request(FIELD, f"contains samples that are not finite numbers, or above {MAX_PEAK} times full scale")
    mono: NDArray[np.float32] = soxr.resample(samples.mean(axis=1), rate, FAMILY.sample_rate)
    if np.abs(mono).max() < AUDIBLE_PEAK / 32768:
        raise bad_request(FIELD, "is silent; send speech")
    return mono.astype("<f4").tobytes()
