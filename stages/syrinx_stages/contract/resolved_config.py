"""The log line that a process writes at its start: its resolved configuration and the configuration's hash."""

from __future__ import annotations

import hashlib

import msgspec

HASH_DIGITS = 12


def resolved_config_line(process: str, replica: str, config: object) -> str:
    """Returns a JSON object with the fields `process`, `replica`, `config_sha256` and `config`.

    The hash is the first 12 hex digits of the SHA-256 of `config` as JSON with sorted keys. `config` is anything that
    msgspec encodes. It must hold no secrets, and not the replica's name: replicas of one release then log equal hashes.
    """
    encoded = msgspec.json.encode(config, order="sorted")
    digest = hashlib.sha256(encoded).hexdigest()[:HASH_DIGITS]
    line = {"process": process, "replica": replica, "config_sha256": digest, "config": msgspec.Raw(encoded)}
    return msgspec.json.encode(line).decode()
