"""The voices of the resource: their audio is read when a gateway starts, and prepared at their first use."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import SharedVoice
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.voices import reference
from syrinx_stages.gateway.voices.voices import KeptVoice
from syrinx_stages.runtime.errors import StartError

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the file at a URL on an allowed host. Raises `ApiError`."""
Decode = Callable[[bytes], Awaitable[bytes]]
"""Returns the PCM of an audio file. Raises `ApiError`."""


class LoadedVoice(Struct, frozen=True):
    """A shared voice and the audio that it is cloned from."""

    voice: KeptVoice
    source: bytes
    """The file, or its PCM if that is smaller: see `KeptVoice.keeps_samples`."""


async def load_voices(
    voices: Sequence[SharedVoice], created_at: int, fetch: Fetch, decode: Decode
) -> Mapping[str, LoadedVoice]:
    """Returns the voices by name. Raises `StartError` that names all that cannot be used."""
    loaded: dict[str, LoadedVoice] = {}
    problems: list[str] = []
    for each in voices:
        try:
            loaded[each.name] = await _load(each, created_at, fetch, decode)
        except ApiError as error:
            problems.append(f"{each.name!r}: {error.message.removeprefix(f'{reference.FIELD}: ')}")
        except OSError as error:
            problems.append(f"{each.name!r}: cannot read {each.file}: {error.strerror}")
    if problems:
        raise StartError(f"voices: {'; '.join(problems)}")
    return loaded


async def _load(config: SharedVoice, created_at: int, fetch: Fetch, decode: Decode) -> LoadedVoice:
    """Raises `ApiError` or `OSError`."""
    data = await (asyncio.to_thread(_read, config.file) if config.file is not None else fetch(config.url or ""))
    pcm = await decode(data)
    digest = hashlib.sha256(pcm + (config.transcript or "").encode())
    keeps_samples = len(pcm) < len(data)
    voice = KeptVoice(
        # That of the content: replicas share what a talker prepares, and an edit prepares it again.
        id=f"shared_{digest.hexdigest()[:24]}",
        owner="",
        name=config.name,
        created_at=created_at,
        consent=config.consent,
        transcript=config.transcript,
        seconds=len(pcm) / 4 / FAMILY.sample_rate,
        keeps_samples=keeps_samples,
    )
    return LoadedVoice(voice, pcm if keeps_samples else data)


def _read(file: str) -> bytes:
    """Returns at most one byte more than an audio file may have."""
    with Path(file).open("rb") as stream:
        return stream.read(reference.MAX_FILE + 1)
