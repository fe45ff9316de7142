"""`syrinx key`: generates an API key, and its entry for the file of API keys."""

import secrets

import msgspec

from syrinx_stages.contract.api_keys import KeysError, digest, parse_keys

_PREFIX = "sk-syrinx-"
"""By which people and scanners of source code recognize a key."""
_RANDOM_BYTES = 32


class KeyOptionsError(Exception):
    """The name or the limits are not accepted."""


def generate_key(
    name: str,
    *,
    requests_per_second: float | None = None,
    burst: int | None = None,
    streams: int | None = None,
) -> tuple[str, str]:
    """Returns a new key and its entry, a line of JSON. Raises `KeyOptionsError`."""
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    limits = {"requestsPerSecond": requests_per_second, "burst": burst, "streams": streams}
    given = {field: limit for field, limit in limits.items() if limit is not None}
    entry = msgspec.json.encode({"name": name, "sha256": digest(key.encode()).hex(), **given})
    try:
        parse_keys(entry)
    except KeysError as error:
        raise KeyOptionsError(str(error).removeprefix("line 1: ").removeprefix(f"line 1 ({name}): ")) from None
    return key, entry.decode()
