"""The admin server of a stage: health, metrics and settings. Not for the public: only Prometheus and the operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from syrinx_stages.runtime.errors import SettingsError
from syrinx_stages.runtime.server import allow_head
from syrinx_stages.runtime.settings import LiveSettings, SettingsUpdate

log = logging.getLogger(__name__)

MAX_BODY = 65_536
"""Bytes of a settings update at most."""


class AdminTarget(Protocol):
    """What an admin port shows of a stage, and changes."""

    @property
    def live(self) -> LiveSettings[Any]:
        """Its settings."""

    def ready(self) -> str | None:
        """None if ready, else why not."""

    def settings_changed(self) -> None:
        """Other settings are in force: work that waits looks again."""


class Service(Protocol):
    """What is run in a process."""

    failed: asyncio.Event
    """Set when the service cannot go on: the process ends and is started anew."""

    async def start(self) -> None:
        """Loads, warms up and begins to serve."""

    async def drain(self, seconds: float) -> None:
        """Takes nothing new and finishes what is owned, for `seconds` at the most."""

    async def close(self) -> None:
        """Hands over what is left and frees everything."""


class Stage(AdminTarget, Service, Protocol):
    """What every stage's service offers to its process."""


def add_health(app: FastAPI, stage: AdminTarget) -> None:
    """`/healthz` (the process answers) and `/readyz` (it is warm and reads its group)."""

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        reason = stage.ready()
        return PlainTextResponse(f"{reason or 'ready'}\n", status_code=503 if reason else 200)


class _Expiry:
    """Tells a stage that its limited settings have ended, so that what it waits for and shows follows the base."""

    def __init__(self, stage: AdminTarget) -> None:
        self._stage = stage
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Looks at what is in force, and again when that ends."""
        if self._timer is not None:
            self._timer.cancel()
        left = self._stage.live.seconds_left
        self._timer = None if left is None else asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        # A timer may be a hair early: then it is set once more.
        self.watch()
        if self._timer is None:
            log.info("limited settings have ended: generation %d is in force", self._stage.live.generation)
            self._stage.settings_changed()


def create_admin(stage: AdminTarget, registry: CollectorRegistry, before_scrape: Callable[[], None]) -> FastAPI:
    """The admin application; `before_scrape` brings metrics up to date."""
    app = FastAPI(openapi_url=None)
    add_health(app, stage)
    expiry = _Expiry(stage)

    @app.get("/metrics")
    async def metrics() -> Response:
        before_scrape()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/settings")
    async def get_settings() -> Response:
        return JSONResponse(_report(stage.live))

    @app.put("/settings")
    async def put_settings(request: Request) -> Response:
        body = await _bounded_body(request)
        if body is None:
            return _refuse(413, f"the body is larger than {MAX_BODY} bytes")
        try:
            stage.live.apply(msgspec.json.decode(body, type=SettingsUpdate))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            return _refuse(422, f'{error}; expected {{"settings": {{...}}, "generation": N, "seconds": S}}')
        except SettingsError as error:
            return _refuse(error.status, str(error))
        expiry.watch()
        stage.settings_changed()
        return JSONResponse(_report(stage.live))

    allow_head(app)
    return app


def _report(live: LiveSettings[Any]) -> dict[str, Any]:
    """What `GET /settings` answers: `seconds` only while a limited setting is in force."""
    left = live.seconds_left
    told = {
        "generation": live.generation,
        "settings": msgspec.to_builtins(live.current),
        "base": msgspec.to_builtins(live.base),
    }
    return told if left is None else {**told, "seconds": left}


async def _bounded_body(request: Request) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


def _refuse(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
