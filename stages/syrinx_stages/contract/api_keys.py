"""The file of API keys: one JSON object a line, of which the file holds only the keys' hashes."""

import hashlib
import math
from typing import Annotated

import msgspec
from msgspec import Meta

MAX_BYTES = 2**20
"""Size of the file; a Secret cannot be larger."""
MAX_KEYS = 1000

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._@]*[A-Za-z0-9])?$", max_length=63)]
"""A client in metrics and logs."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a client may use of one gateway. None: no limit."""

    requests_per_second: Annotated[float, Meta(gt=0, le=10_000)] | None = None
    """Requests a second on average."""
    burst: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Requests at once after a pause. Default: those of one second, at least one."""
    streams: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """Requests in progress at the same time."""

    @property
    def max_tokens(self) -> float:
        """The largest burst."""
        return float(self.burst or math.ceil(self.requests_per_second or 1))


class Entry(Limits, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A line of the file."""

    name: Name
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """The SHA-256 of the key in hexadecimal digits."""

    @property
    def limits(self) -> Limits:
        """The limits of its client."""
        return Limits(**{field: getattr(self, field) for field in Limits.__struct_fields__})


class KeysError(ValueError):
    """The file is invalid. The message names the line, and nothing that could be a key."""


class Keys(msgspec.Struct, frozen=True):
    """The content of a file."""

    names: dict[bytes, str]
    """The client of each key, by the key's digest."""
    limits: dict[str, Limits]
    """By client."""


def digest(key: bytes) -> bytes:
    """Returns the SHA-256 of a key."""
    return hashlib.sha256(key).digest()


def parse_keys(data: bytes) -> Keys:
    """Parses a file; blank lines and lines that start with `#` are ignored. Raises `KeysError`."""
    if len(data) > MAX_BYTES:
        raise KeysError(f"larger than {MAX_BYTES // 2**20} MiB")
    keys = Keys({}, {})
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith(b"#"):
            _add(keys, line, f"line {number}")
    if not keys.names:
        raise KeysError("contains no key, so every request would be refused")
    return keys


def _add(keys: Keys, line: bytes, where: str) -> None:
    try:
        entry = msgspec.json.decode(line, type=Entry)
    except msgspec.DecodeError as error:
        raise KeysError(f"{where}: {error}") from None
    where = f"{where} ({entry.name})"
    if entry.burst is not None and entry.requests_per_second is None:
        raise KeysError(f"{where}: burst needs requestsPerSecond")
    if keys.limits.setdefault(entry.name, entry.limits) != entry.limits:
        raise KeysError(f"{where}: other limits than an earlier key of this name; they share their limits")
    key = bytes.fromhex(entry.sha256)
    if key in keys.names:
        raise KeysError(f"{where}: the same key as one of {keys.names[key]}")
    if len(keys.names) == MAX_KEYS:
        raise KeysError(f"{where}: more than {MAX_KEYS} keys")
    keys.names[key] = entry.name
