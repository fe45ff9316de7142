"""The address of the primary of one slot of a Redis Cluster.

A fail-over or a move of the slot gives it a new owner. Every node knows the owner and the configuration epoch in which
it became that; the newest epoch holds, as among the nodes themselves.
"""

import asyncio
import binascii
import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from syrinx_stages.connector.redis.connection import LOST, PORT, Address, Connection, ReplyError
from syrinx_stages.connector.servers.primary import OBSERVER_SECONDS, PrimaryAddress, View

SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
SLOTS = 16_384
MAX_OBSERVERS = 5
"""How many nodes are asked for the owner of the slot: it, its replicas, and others."""


def slot_of(key: str) -> int:
    """Returns the slot of a key with a hash tag, or of one without braces."""
    tag = key.partition("{")[2].partition("}")[0] or key
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


class ClusterAddress(PrimaryAddress):
    """A redis+cluster://HOST:PORT,HOST:PORT URL of some nodes, or rediss+cluster:// with TLS to all nodes.

    User and password are those of all nodes. The others are found by the addresses that they announce.
    `for_key` returns the address to connect to.
    """

    redirects = True

    def __init__(self, url: str, password: str = "", ca_file: str | None = None, slot: int = 0) -> None:
        try:
            parts = urlsplit(url)
            user, at, hosts = parts.netloc.rpartition("@")
            base = f"{SCHEMES[parts.scheme]}://{user}{at}"
            if parts.path or parts.query or parts.fragment:
                raise ValueError
            seeds = [Address(f"{base}{_with_port(host)}", password, ca_file) for host in hosts.split(",")]
            super().__init__(base, "", seeds, password, ca_file)
        except ValueError:
            raise ValueError(
                "the Redis URL is not valid: redis+cluster://HOST:PORT,HOST:PORT or rediss+cluster://…"
            ) from None
        self.name = f"Redis Cluster at {hosts}"
        self._arguments = url, password, ca_file
        self._slot = slot
        self._failure: Exception | None = None
        """Why the last node that was asked did not name an owner of the slot."""

    def for_key(self, key: str) -> Address:
        return ClusterAddress(*self._arguments, slot_of(key))

    def _unknown(self) -> Exception:
        return self._failure or ConnectionError(f"no node serves slot {self._slot}")

    async def _view(self, observer: Address) -> View | None:
        try:
            async with asyncio.timeout(OBSERVER_SECONDS):
                connection = await Connection.open(observer)
            with contextlib.closing(connection):
                nodes = await connection.call((b"CLUSTER", b"NODES"), OBSERVER_SECONDS)
                ranges = await connection.call((b"CLUSTER", b"SLOTS"), OBSERVER_SECONDS)
        except (ReplyError, *LOST) as error:
            self._failure = error
            return None
        self._failure = None
        owner = _owner(nodes.decode(), self._slot)
        addresses = _addresses(ranges, self._slot, observer)
        if owner is None or owner.node not in addresses:
            return None
        others = [address for node, address in addresses.items() if node != owner.node]
        return View(
            addresses[owner.node],
            owner.epoch,
            failing_over="fail" in owner.flags,
            down="fail?" in owner.flags,
            node=owner.node,
            observers=[addresses[owner.node], *others][:MAX_OBSERVERS],
        )


class _Owner(NamedTuple):
    node: str
    flags: Sequence[str]
    epoch: int


def _owner(nodes: str, slot: int) -> _Owner | None:
    """Returns the owner of a slot according to the reply to CLUSTER NODES; None if it has none.

    A slot that is moved, `[slot->-node]`, belongs to its owner until the move has ended.
    """
    for line in nodes.splitlines():
        node, _, flags, _, _, _, epoch, _, *ranges = line.split()
        for first, _, last in (each.partition("-") for each in ranges if not each.startswith("[")):
            if int(first) <= slot <= int(last or first):
                return _Owner(node, flags.split(","), int(epoch))
    return None


def _addresses(ranges: Sequence[Sequence[Any]], slot: int, observer: Address) -> dict[str, tuple[str, int]]:
    """Returns the addresses of the nodes in the reply to CLUSTER SLOTS, those that serve the slot first.

    A node whose address is not known is reached as the observer is.
    """
    addresses: dict[str, tuple[str, int]] = {}
    for each in sorted(ranges, key=lambda each: not each[0] <= slot <= each[1]):
        for host, port, node, *_ in each[2:]:
            name = observer.host if host in (None, b"", b"?") else host.decode()
            addresses.setdefault(node.decode(), (name, port))
    return addresses


def _with_port(host: str) -> str:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError
    return host if parts.port else f"{host}:{PORT}"
