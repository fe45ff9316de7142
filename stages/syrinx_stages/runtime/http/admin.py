"""The admin server of a process: health and metrics. Read-only, for the kubelet, Prometheus and the operator."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from syrinx_stages.runtime.http.server import READ
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.telemetry.exposition import Exposition


class Service(Protocol):
    """A stage, which a process runs."""

    failed: asyncio.Event
    """Set when the service cannot continue: the process exits and is restarted."""

    @property
    def live(self) -> LiveSettings[Any]:
        """The stage's settings."""

    def ready(self) -> str | None:
        """Returns None if the stage is ready, else the reason why not."""

    def warnings(self) -> Sequence[str]:
        """Returns what may cost requests or streams although the stage is ready."""

    def settings_changed(self) -> None:
        """Makes the stage apply the settings that are now in force."""

    async def start(self) -> None:
        """Loads the model, warms up and starts to serve."""

    async def drain(self, seconds: float) -> None:
        """Accepts no new work and waits up to `seconds` for the current work."""

    async def close(self) -> None:
        """Hands over the remaining work and frees all resources."""


def create_admin(
    ready: Callable[[], str | None], exposition: Exposition, warnings: Callable[[], Sequence[str]] = tuple
) -> FastAPI:
    """Returns the admin application. `/healthz`: the process responds; `/readyz`: the stage is ready.

    `ready` returns the reason why it is not; `warnings` follow it, one a line. `/metrics` is the `exposition`.
    """
    app = FastAPI(openapi_url=None)
    encoding = asyncio.Lock()

    @app.api_route("/healthz", methods=READ)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.api_route("/readyz", methods=READ)
    async def readyz() -> Response:
        reason = ready()
        lines = [reason or "ready", *(f"warning: {each}" for each in warnings())]
        return PlainTextResponse("".join(f"{line}\n" for line in lines), status_code=503 if reason else 200)

    @app.api_route("/metrics", methods=READ)
    async def metrics(request: Request) -> Response:
        # In a thread, which prometheus-client's locks allow: a large registry would delay audio. One at a time, so that
        # scrapes take at most one thread from the gateway's encoders.
        async with encoding:
            content, content_type = await asyncio.to_thread(exposition.encode, request.headers.get("Accept", ""))
            return Response(content, media_type=content_type)

    return app
