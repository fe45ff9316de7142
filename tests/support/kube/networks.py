"""Addresses of services and pods."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

_numbers = itertools.count()
"""Shared by all clusters of this process, so that addresses are never reused."""


class Addresses:
    """Allocates a loopback address for each pod and Service."""

    def __init__(self, families: Sequence[str] = ("IPv4",)) -> None:
        """`families` are those of Services, first the default."""
        self.families = families
        self._services: dict[tuple[str, str], str] = {}
        # Other test processes have other networks; the workers of one run have 64 each.
        worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
        self._own = os.getppid() % 32_000 + 64 * int(worker) if worker else os.getpid() % 32_000

    def pod(self) -> str:
        return self._next(1 + self._own // 256)

    def _next(self, first: int) -> str:
        network, number = divmod(next(_numbers), 250)
        return f"127.{first}.{(self._own + network) % 256}.{number + 2}"

    def service(self, namespace: str, name: str, family: str = "IPv4") -> str:
        """Returns the address of a Service, which need not exist yet. Nothing listens at one of IPv6."""
        key = (namespace, name)
        if key not in self._services:
            self._services[key] = self._next(128 + self._own // 256 % 126)
        return self._services[key] if family == "IPv4" else f"fd00::{self._services[key].replace('.', ':')}"
