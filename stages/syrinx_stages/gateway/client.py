"""Identifies the client of a request, whose share of the queue is limited while others wait."""

import hashlib

from starlette.requests import HTTPConnection

from syrinx_stages.gateway.errors import ApiError

_DIGITS = 16
"""Hex digits of the hash: enough to tell clients apart."""
REPEAT_SECONDS = 0.05
"""A refusal also applies to the client's requests of this time: less than a request waits for a replica."""
MAX_CLIENTS = 1024


def client_key(http: HTTPConnection) -> str:
    """Returns a hash of the `Authorization` header, else of the peer's address.

    Behind a proxy the address is the proxy's, unless the server trusts its `X-Forwarded-For` (FORWARDED_ALLOW_IPS).
    """
    peer = http.client.host if http.client else ""
    identity = http.headers.get("authorization") or f"address {peer}"
    return hashlib.sha256(identity.encode()).hexdigest()[:_DIGITS]


class Refusals:
    """The last refusal of each client, while it applies to further requests. Times are in monotonic seconds."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, ApiError]] = {}
        """When it ends, and the error."""

    def add(self, client: str, error: ApiError, now: float) -> None:
        """Records a refusal."""
        if len(self._last) >= MAX_CLIENTS:
            self._last = {name: last for name, last in self._last.items() if last[0] > now}
        self._last[client] = now + REPEAT_SECONDS, error

    def recent(self, client: str, now: float) -> ApiError | None:
        """Returns the error that a request of the client gets at once, if any."""
        until, error = self._last.get(client, (now, None))
        return error if until > now else None
