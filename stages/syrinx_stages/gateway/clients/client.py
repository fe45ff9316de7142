"""Identifies the client of a request, whose share of the queue is limited while others wait, and counts its usage."""

import functools
import hashlib
import ipaddress
from contextvars import ContextVar

from msgspec import Struct
from starlette.requests import HTTPConnection

from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.messages import EndReason, TaskType
from syrinx_stages.gateway.clients.allowance import Allowance
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.runtime.telemetry.metrics import Metrics


class Client(Struct, frozen=True):
    """A client with API keys."""

    name: str
    allowance: Allowance


current_client: ContextVar[Client | None] = ContextVar("current_client", default=None)
"""The client whose API key the current request has; None if the gateway requires no key."""
_DIGITS = 16
"""Hex digits of the hash: enough to tell clients apart."""
_IPV6_PREFIX = 64
"""Bits of an IPv6 address that identify a client: a network usually has all addresses with these bits."""
REPEAT_SECONDS = 0.05
"""A refusal also applies to the client's requests of this time: less than a request waits for a replica."""
MAX_CLIENTS = 1024


def client_key(http: HTTPConnection) -> str:
    """Returns a hash of the name of the client's API key, else of the client's address.

    Headers that the gateway does not check identify nobody. Behind a proxy the address is the proxy's, unless
    `trusted_proxies` lists it.
    """
    if (client := current_client.get()) is not None:
        identity = f"name {client.name}"
    else:
        identity = f"address {_network(http.client.host if http.client else '')}"
    return hashlib.sha256(identity.encode()).hexdigest()[:_DIGITS]


@functools.lru_cache(MAX_CLIENTS)
def _network(host: str) -> str:
    """Returns the address or network that identifies a client."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_PREFIX), strict=False))


def voice_owner() -> str:
    """Returns a hash of the name of the client's API key: the owner of its voices; empty without keys."""
    client = current_client.get()
    return "" if client is None else hashlib.sha256(f"name {client.name}".encode()).hexdigest()[:_DIGITS]


def count_request(metrics: Metrics, task_type: TaskType | str, outcome: EndReason) -> None:
    """Counts a speech request that is over."""
    metrics[m.REQUESTS].labels(task_type, outcome).inc()
    if (client := current_client.get()) is not None:
        metrics[m.CLIENT_REQUESTS].labels(client.name, outcome).inc()


def count_audio(metrics: Metrics, seconds: float) -> None:
    """Counts the audio of a request as that of its client."""
    if (client := current_client.get()) is not None:
        metrics[m.CLIENT_AUDIO_SECONDS].labels(client.name).inc(seconds)


class Refusal(Struct, frozen=True):
    """A refused request."""

    until: float
    """Monotonic seconds until which the refusal applies to further requests of the client."""
    error: ApiError
    live: bool
    """Whether it was a stream. A request that is refused like it, with an unread body, counts as what it was."""


class Refusals:
    """The last refusal of each client, while it applies to further requests. Times are in monotonic seconds."""

    def __init__(self) -> None:
        self._last: dict[str, Refusal] = {}

    def add(self, client: str, error: ApiError, live: bool, now: float) -> None:
        """Records a refusal of a stream (`live`) or of a whole file."""
        if len(self._last) >= MAX_CLIENTS:
            self._last = {name: last for name, last in self._last.items() if last.until > now}
        self._last[client] = Refusal(now + REPEAT_SECONDS, error, live)

    def recent(self, client: str, now: float) -> Refusal | None:
        """Returns the refusal that also applies to a request of the client now, if any."""
        last = self._last.get(client)
        return last if last is not None and last.until > now else None
