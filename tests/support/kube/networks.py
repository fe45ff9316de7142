"""Addresses of services and pods."""

from __future__ import annotations

import itertools
import os

_numbers = itertools.count()
"""Shared by all clusters of this process, so that addresses are never reused."""


class Addresses:
    """Allocates a loopback address for each pod and Service."""

    def __init__(self) -> None:
        self._services: dict[tuple[str, str], str] = {}
        # Other test processes have other networks; the workers of one run have 64 each.
        worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
        self._own = os.getppid() % 32_000 + 64 * int(worker) if worker else os.getpid() % 32_000

    def pod(self) -> str:
        return self._next(1 + self._own // 256)

    def _next(self, first: int) -> str:
        network, number = divmod(next(_numbers), 250)
        return f"127.{first}.{(self._own + network) % 256}.{number + 2}"

    def service(self, namespace: str, name: str) -> str:
        """Returns the address of a Service, which need not exist yet."""
        key = (namespace, name)
        if key not in self._services:
            self._services[key] = self._next(128 + self._own // 256 % 126)
        return self._services[key]
