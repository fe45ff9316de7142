"""What can go wrong with Redis, by what helps."""

from __future__ import annotations


class ReplyError(Exception):
    """Redis answered with an error; the connection is as good as before."""


class NoScript(ReplyError):
    """It does not know the script: it must be sent whole."""


class Refused(ReplyError):
    """It does not take the user or the password; trying again does not help."""


class Unavailable(ReplyError):
    """It cannot serve now, or another server has taken its place."""


LOST = (Unavailable, OSError)
"""What a new connection may cure: a restart, a failover, a network that dropped packets. (A `TimeoutError` is an
`OSError`, and so are a connection that was closed and a certificate that does not fit.)"""

_KINDS: dict[str, type[ReplyError]] = {
    "NOSCRIPT": NoScript,
    **dict.fromkeys(("NOAUTH", "WRONGPASS"), Refused),
    **dict.fromkeys(("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN"), Unavailable),
}
_SENTENCES: dict[str, type[ReplyError]] = {
    "ERR max number of clients reached": Unavailable,
    # A password for a server that has none.
    "ERR AUTH": Refused,
    "ERR Client sent AUTH": Refused,
}


def reply_error(text: str) -> ReplyError:
    """The error for an error reply."""
    kind = _KINDS.get(text.partition(" ")[0])
    if kind is None:
        kind = next((kind for start, kind in _SENTENCES.items() if text.startswith(start)), ReplyError)
    return kind(text)
