"""Secrets of pipelines. The operator may read them only by name, so they cannot be watched."""

import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from syrinx_operator.cluster.api import Api, if_found
from syrinx_operator.cluster.kinds import SECRET
from syrinx_operator.cluster.state import Manifest


class _Read(Struct, frozen=True):
    found: Manifest | None
    at: float


class Secrets:
    """Reads each Secret at most once per period; one that is missing is read again the next time."""

    def __init__(self, api: Api, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._seconds = seconds
        self._clock = clock
        self._read: dict[tuple[str, str], _Read] = {}

    async def get(self, namespace: str, name: str) -> Manifest | None:
        """Returns a Secret. Raises ApiError."""
        return await self._once(namespace, name, lambda: self._api.get(SECRET, namespace, name))

    async def get_metadata(self, namespace: str, name: str) -> Manifest | None:
        """Returns a Secret without its data. Raises ApiError."""
        return await self._once(namespace, name, lambda: self._api.get_metadata(SECRET, namespace, name))

    def forget(self, namespace: str, name: str) -> None:
        """Makes the next call read a Secret again."""
        self._read.pop((namespace, name), None)

    async def _once(self, namespace: str, name: str, request: Callable[[], Awaitable[Manifest]]) -> Manifest | None:
        known = self._read.get((namespace, name))
        if known is None or known.found is None or self._clock() - known.at >= self._seconds:
            known = self._read[namespace, name] = _Read(await if_found(request()), self._clock())
        return known.found
