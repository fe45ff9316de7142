"""The admin server of a stage: health, metrics and settings, for Prometheus and the operator only."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from syrinx_stages.runtime.errors import SettingsError
from syrinx_stages.runtime.server import READ
from syrinx_stages.runtime.settings import LiveSettings, SettingsUpdate

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 65_536
"""Maximum size of a settings update."""
BODY_SECONDS = 10.0
"""Time limit for receiving one."""


class AdminTarget(Protocol):
    """A stage as its admin server sees it."""

    @property
    def live(self) -> LiveSettings[Any]:
        """The stage's settings."""

    def ready(self) -> str | None:
        """Returns None if the stage is ready, else the reason why not."""

    def settings_changed(self) -> None:
        """Makes the stage apply the settings that are now in force."""


class Service(Protocol):
    """What a process runs."""

    failed: asyncio.Event
    """Set when the service cannot continue: the process exits and is restarted."""

    @property
    def admin_targets(self) -> Sequence[AdminTarget]:
        """The stages of the service, in the order of their configurations."""

    async def start(self) -> None:
        """Loads the model, warms up and starts to serve."""

    async def drain(self, seconds: float) -> None:
        """Accepts no new work and waits up to `seconds` for the current work."""

    async def close(self) -> None:
        """Hands over the remaining work and frees all resources."""


def create_admin(stage: AdminTarget, registry: CollectorRegistry) -> FastAPI:
    """Returns the admin application. `/healthz`: the process responds; `/readyz`: the stage is ready."""
    app = FastAPI(openapi_url=None)
    timer: asyncio.TimerHandle | None = None

    def set_timer() -> None:
        """Sets the timer to the end of the temporary settings, if there are any."""
        nonlocal timer
        if timer is not None:
            timer.cancel()
        left = stage.live.seconds_left
        timer = None if left is None else asyncio.get_running_loop().call_later(left, on_timer)

    def on_timer() -> None:
        """Makes an idle stage apply its base settings."""
        # A timer may fire slightly early; it is then set again.
        set_timer()
        if timer is None:
            log.info("temporary settings have expired: generation %d is in force", stage.live.generation)
            stage.settings_changed()

    @app.api_route("/healthz", methods=READ)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.api_route("/readyz", methods=READ)
    async def readyz() -> Response:
        reason = stage.ready()
        return PlainTextResponse(f"{reason or 'ready'}\n", status_code=503 if reason else 200)

    @app.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/settings", methods=READ)
    async def get_settings() -> Response:
        return JSONResponse(_report(stage.live))

    @app.put("/settings")
    async def put_settings(request: Request) -> Response:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _bounded_body(request)
        except TimeoutError:
            return _error(408, f"the body did not arrive within {BODY_SECONDS:g} seconds")
        if body is None:
            return _error(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        try:
            stage.live.apply(msgspec.json.decode(body, type=SettingsUpdate))
        except msgspec.DecodeError as error:
            return _error(422, f'{error}; expected {{"settings": {{...}}, "generation": N, "seconds": S}}')
        except SettingsError as error:
            return _error(error.status, str(error))
        set_timer()
        stage.settings_changed()
        return JSONResponse(_report(stage.live))

    return app


def _report(live: LiveSettings[Any]) -> dict[str, Any]:
    """Returns the body of `GET /settings`; it has `seconds` only while temporary settings are in force."""
    report = {
        "generation": live.generation,
        "settings": msgspec.to_builtins(live.current),
        "base": msgspec.to_builtins(live.base),
    }
    left = live.seconds_left
    return report if left is None else {**report, "seconds": left}


async def _bounded_body(request: Request) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
