"""Two gateways of different model generations on one Redis, with scripted stages behind both."""

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from support.gateway import Gateway, gateway
from support.waiting import until
from syrinx_stages.runtime.settings import SettingsUpdate

OUTCOMES = ("answered", "fallback", "failed")


@dataclass
class Pair:
    """A gateway, and that of the canary to which it forwards a share of its requests."""

    stable: Gateway
    canary: Gateway
    url: str
    canary_url: str
    refusing_url: str
    """Of a port that refuses connections."""

    def route(self, url: str = "", weight: float = 1.0, seconds: float = 60.0) -> None:
        """Sets the share of requests that go to the canary, or to another server, as the operator does."""
        canary = {"weight": weight, "urls": [url or self.canary_url]}
        self.stable.service.live.apply(SettingsUpdate({"canary": canary}, seconds=seconds))

    def forwards(self, outcome: str) -> float:
        return self.stable.metric("syrinx_canary_forwards_total", outcome=outcome)

    async def forwarded(self, outcome: str) -> None:
        """Waits until one forward is counted, with this outcome."""
        await until(lambda: self.forwards(outcome) == 1, f"one is {outcome}")
        assert sum(map(self.forwards, OUTCOMES)) == 1


@contextlib.asynccontextmanager
async def gateways(**config: object) -> AsyncIterator[Pair]:
    with socket.socket() as unused:
        # It does not listen, and no other process can take its port.
        unused.bind(("127.0.0.1", 0))
        refusing_url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with gateway(**config) as stable, gateway(generation="canary", **config) as canary:
            yield Pair(stable, canary, stable.url, canary.url, refusing_url)
