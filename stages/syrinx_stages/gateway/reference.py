"""Reference audio of a cloned voice: from what a client sent to mono 16-bit PCM at 24 kHz, within limits."""

from __future__ import annotations

import binascii
import io
import re
from base64 import b64decode
from collections.abc import Sequence

import httpx
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from syrinx_stages.gateway.errors import bad, shown, too_large

FIELD = "ref_audio"
MIN_SECONDS = 1.0
MAX_SECONDS = 30.0
MAX_FILE = 16 * 2**20
"""Bytes of the audio file."""
MAX_RATE = 192_000
FETCH_SECONDS = 10.0
"""A URL's whole answer must arrive within this time."""

_DATA_URI = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://|file:", re.IGNORECASE)
_ACCEPTED = "wav, flac, ogg (vorbis, opus) or mp3"


def is_url(ref_audio: str) -> bool:
    """Whether the audio has to be fetched."""
    return _URL.match(ref_audio) is not None


def check_url(ref_audio: str, hosts: Sequence[str]) -> httpx.URL:
    """A URL that may be fetched: http(s), its host (or `host:port`) among `hosts`, no credentials. Raises 400."""
    try:
        url = httpx.URL(ref_audio)
    except httpx.InvalidURL as error:
        raise bad(FIELD, f"is not a URL: {error}") from None
    if url.scheme not in ("http", "https"):
        raise bad(FIELD, f"{shown(url.scheme)} URLs are not accepted; send http(s), a data: URI or base64 audio")
    if url.userinfo:
        raise bad(FIELD, "the URL holds credentials; send one without")
    host = url.host if url.port is None else f"{url.host}:{url.port}"
    if host not in hosts:
        listed = f"one of {', '.join(hosts)}" if hosts else "none is allowed; send the audio itself as base64"
        raise bad(FIELD, f"host {shown(host)} is not one this server may fetch from ({listed})")
    return url


async def fetch(client: httpx.AsyncClient, url: httpx.URL) -> bytes:
    """The file behind a checked URL, redirects not followed. Raises 400, or 413 past `MAX_FILE`."""
    data = bytearray()
    async with client.stream("GET", url, headers={"Accept-Encoding": "identity"}, follow_redirects=False) as answer:
        if answer.status_code != 200:
            raise bad(FIELD, f"the URL answered {answer.status_code}; it must answer 200 with the file")
        async for chunk in answer.aiter_raw():
            data += chunk
            if len(data) > MAX_FILE:
                raise too_large(FIELD, f"the file behind the URL is larger than {MAX_FILE // 2**20} MB")
    return bytes(data)


def unpack(ref_audio: str) -> bytes:
    """The file in a data: URI or in bare base64. Raises 400 or 413."""
    prefix = _DATA_URI.match(ref_audio)
    if prefix is None and ref_audio[:5].lower() == "data:":
        raise bad(FIELD, "the data: URI is not base64; send data:audio/wav;base64,...")
    text = ref_audio[prefix.end() :] if prefix else ref_audio
    if len(text) > MAX_FILE * 4 // 3 + 4:
        raise too_large(FIELD, f"the file is larger than {MAX_FILE // 2**20} MB")
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad(FIELD, f"is neither base64 audio nor a data: URI nor a URL: {error}") from None


def decode(data: bytes) -> bytes:
    """Mono 16-bit little-endian PCM at 24 kHz of an audio file. Raises 400 saying what is wrong with it."""
    _check_kind(data)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_claims(file)
            # Claims may be wrong: never more is decoded than they may say.
            samples = file.read(file.frames + 1, dtype="float32", always_2d=True)
            claimed, rate = file.frames, file.samplerate
    except soundfile.SoundFileError:
        raise bad(FIELD, f"cannot be decoded: it is damaged or truncated; send a complete {_ACCEPTED} file") from None
    if len(samples) < claimed:
        raise bad(FIELD, f"is truncated: {len(samples)} of {claimed} samples are there")
    return _convert(samples, rate)


def _check_kind(data: bytes) -> None:
    """Only well-known containers reach the decoder, and a WAV file must be as long as it says."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        size = int.from_bytes(data[4:8], "little")
        # 0 and the largest are what programs write that stream to a pipe.
        if size not in (0, 0xFFFFFFFF) and size + 8 > len(data) + 1:
            raise bad(FIELD, f"is truncated: {len(data)} of {size + 8} bytes are there")
        return
    mp3 = data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0)
    if not (mp3 or data[:4] in (b"fLaC", b"OggS")):
        raise bad(FIELD, f"is not audio that can be read here; send {_ACCEPTED}")


def _check_claims(file: soundfile.SoundFile) -> None:
    if file.channels > 2:
        raise bad(FIELD, f"has {file.channels} channels; send mono or stereo")
    if not 8_000 <= file.samplerate <= MAX_RATE:
        raise bad(FIELD, f"has {file.samplerate} samples a second; accepted: 8,000 to {MAX_RATE:,}")
    _check_length(file.frames / file.samplerate)


def _check_length(seconds: float) -> None:
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise bad(FIELD, f"is {seconds:.2f} seconds long; accepted: {MIN_SECONDS:.0f} to {MAX_SECONDS:.0f}")


def _convert(samples: NDArray[np.float32], rate: int) -> bytes:
    if not np.isfinite(samples).all():
        raise bad(FIELD, "holds samples that are not finite numbers")
    _check_length(len(samples) / rate)
    mono = soxr.resample(samples.mean(axis=1), rate, FAMILY.sample_rate)
    pcm: NDArray[np.int16] = np.clip(np.rint(mono * 32768), -32768, 32767).astype("<i2")
    if max(int(pcm.max()), -int(pcm.min())) < AUDIBLE_PEAK:
        raise bad(FIELD, "is silent; send speech")
    return pcm.tobytes()
