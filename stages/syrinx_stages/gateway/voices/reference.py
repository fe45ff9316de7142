"""Decodes the reference audio of a voice clone: base64, a data: URI or a URL to mono float32 samples at 24 kHz."""

import binascii
import io
import re
from base64 import b64decode
from collections.abc import Iterator, Sequence

import httpx
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, too_large

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
_PIECE = 2**20
"""Characters of base64 that are decoded at once: a call of C code holds the event loop from any thread."""

_DATA_URI = re.compile(r"\s{0,9}data:(?:[^,]{0,200};\s{0,9}base64\s{0,9},)?", re.IGNORECASE)
_URL = re.compile(r"\s{0,9}([A-Za-z][A-Za-z0-9+.-]{0,30}://|file:)", re.IGNORECASE)
_MAX_URL = 8192
"""Characters."""
_STANDARD_ALPHABET, _WHITE_SPACE = bytes.maketrans(b"-_", b"+/"), b" \t\r\n\f\v"
_ACCEPTED = "wav, flac, ogg (vorbis, opus) or mp3"


def is_url(ref_audio: str) -> bool:
    """Whether `ref_audio` is a URL."""
    return _URL.match(ref_audio) is not None


def check_url(ref_audio: str, hosts: Sequence[str]) -> httpx.URL:
    """Returns a URL that may be fetched: http(s), its host (or `host:port`) in `hosts`, no credentials. Raises 400."""
    if len(ref_audio) > _MAX_URL:
        raise bad_request(FIELD, f"is a URL of {len(ref_audio):,} characters; at most {_MAX_URL:,} are accepted")
    try:
        url = httpx.URL(ref_audio.strip())
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

    White space is ignored, the alphabet may be that of URLs, and padding may be absent: all have one meaning.
    """
    prefix = _DATA_URI.match(ref_audio)
    if prefix is not None and not prefix[0].endswith(","):
        raise bad_request(FIELD, "the data: URI is not base64; send data:audio/wav;base64,...")
    decoded, size = list[bytes](), 0
    try:
        for quads in _quads(ref_audio, prefix.end() if prefix else 0):
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
    for piece in range(start, len(text), _PIECE):
        rest += text[piece : piece + _PIECE].encode("ascii").translate(_STANDARD_ALPHABET, _WHITE_SPACE)
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
    _check_container(data)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_header(file)
            # The header may be wrong: at most one sample more than it says is decoded.
            samples = file.read(file.frames + 1, dtype="float32", always_2d=True)
            expected, rate = file.frames, file.samplerate
    except soundfile.SoundFileError:
        raise bad_request(
            FIELD, f"cannot be decoded: it is damaged or truncated; send a complete {_ACCEPTED} file"
        ) from None
    if len(samples) < expected:
        raise bad_request(FIELD, f"is truncated: {len(samples)} of {expected} samples are present")
    return _convert(samples, rate)


def _check_container(data: bytes) -> None:
    """Refuses containers other than the accepted ones, and WAV files that are shorter than their header says."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        size = int.from_bytes(data[4:8], "little")
        # Programs that write to a pipe set the size to 0 or to the maximum.
        if size not in (0, 0xFFFFFFFF) and size + 8 > len(data) + 1:
            raise bad_request(FIELD, f"is truncated: {len(data)} of {size + 8} bytes are present")
        return
    mp3 = data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0)
    if not (mp3 or data[:4] in (b"fLaC", b"OggS")):
        raise bad_request(FIELD, f"is not a supported audio file; send {_ACCEPTED}")


def _check_header(file: soundfile.SoundFile) -> None:
    if file.channels > 2:
        raise bad_request(FIELD, f"has {file.channels} channels; send mono or stereo")
    if not MIN_RATE <= file.samplerate <= MAX_RATE:
        raise bad_request(FIELD, f"has {file.samplerate} samples per second; accepted: {MIN_RATE:,} to {MAX_RATE:,}")
    _check_length(file.frames / file.samplerate)


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
