"""Error replies of Redis, classified by how to recover from them."""

from __future__ import annotations


class ReplyError(Exception):
    """Redis replied with an error. The connection can still be used."""


class NoScript(ReplyError):
    """Redis does not have the script: its source must be sent."""


class Refused(ReplyError):
    """Redis refuses the user or password; a retry does not help."""


class Unavailable(ReplyError):
    """Redis cannot serve commands now, or is no longer the primary."""


LOST = (Unavailable, OSError)
"""Errors that a new connection may resolve: a restart, a failover, dropped packets. (`TimeoutError`, a closed
connection and a certificate error are `OSError`s.)"""

_BY_CODE: dict[str, type[ReplyError]] = {
    "NOSCRIPT": NoScript,
    **dict.fromkeys(("NOAUTH", "WRONGPASS"), Refused),
    **dict.fromkeys(("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN"), Unavailable),
}
_BY_PREFIX: dict[str, type[ReplyError]] = {
    "ERR max number of clients reached": Unavailable,
    # A password was sent to a server that has none.
    "ERR AUTH": Refused,
    "ERR Client sent AUTH": Refused,
}


def reply_error(text: str) -> ReplyError:
    """Returns the exception for an error reply."""
    error = _BY_CODE.get(text.partition(" ")[0])
    if error is None:
        error = next((error for prefix, error in _BY_PREFIX.items() if text.startswith(prefix)), ReplyError)
    return error(text)
