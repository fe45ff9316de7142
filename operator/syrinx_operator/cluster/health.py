"""The operator's own HTTP server: metrics, and whether it lives and is ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from syrinx_operator.cluster.telemetry import Telemetry

Probe = Callable[[], str | None]
"""None if all is well, else what is not."""


class HealthServer:
    """Serves /metrics, /healthz and /readyz on all addresses. Use as `async with`."""

    def __init__(
        self, port: int, telemetry: Telemetry, *, healthy: Probe, ready: Probe, before_scrape: Callable[[], None]
    ) -> None:
        self._port = port
        self._telemetry = telemetry
        self._before_scrape = before_scrape
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", _handler(healthy, "ok"))
        app.router.add_get("/readyz", _handler(ready, "ready"))
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> HealthServer:
        await self._runner.setup()
        # No host: all addresses, of both families.
        await web.TCPSite(self._runner, None, self._port).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        self._before_scrape()
        return web.Response(
            body=generate_latest(self._telemetry.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


def _handler(probe: Probe, well: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        problem = probe()
        return web.Response(text=f"{problem or well}\n", status=503 if problem else 200)

    return handle
