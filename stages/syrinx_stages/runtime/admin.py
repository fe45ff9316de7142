"""The admin server of a stage: health, metrics and settings. Not for the public: only Prometheus and the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from syrinx_stages.runtime.errors import SettingsError
from syrinx_stages.runtime.server import answer_head
from syrinx_stages.runtime.settings import Live, Update

MAX_BODY = 65_536
"""Bytes of a settings update at most."""


class Stage(Protocol):
    """What every stage's service offers to its process."""

    live: Live[Any]
    failed: asyncio.Event
    """Set when the service cannot go on: the process ends and is started anew."""

    async def start(self) -> None:
        """Loads, warms up and begins to serve."""

    def ready(self) -> str | None:
        """None if ready, else why not."""

    def settings_changed(self) -> None:
        """New settings are in force: work that waits looks again."""

    async def drain(self, seconds: float) -> None:
        """Takes nothing new and finishes what is owned, for `seconds` at the most."""

    async def close(self) -> None:
        """Hands over what is left and frees everything."""


def add_health(app: FastAPI, stage: Stage) -> None:
    """`/healthz` (the process answers) and `/readyz` (it is warm and reads its group)."""

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        reason = stage.ready()
        return PlainTextResponse(f"{reason or 'ready'}\n", status_code=503 if reason else 200)


def create_admin(stage: Stage, registry: CollectorRegistry, before_scrape: Callable[[], None]) -> FastAPI:
    """The admin application; `before_scrape` brings metrics up to date."""
    app = FastAPI(openapi_url=None)
    add_health(app, stage)

    def report() -> dict[str, Any]:
        return {"generation": stage.live.generation, "settings": msgspec.to_builtins(stage.live.current)}

    @app.get("/metrics")
    async def metrics() -> Response:
        before_scrape()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/settings")
    async def get_settings() -> Response:
        return JSONResponse(report())

    @app.put("/settings")
    async def put_settings(request: Request) -> Response:
        body = await _bounded_body(request)
        if body is None:
            return _refuse(413, f"the body is larger than {MAX_BODY} bytes")
        try:
            stage.live.apply(msgspec.json.decode(body, type=Update))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            return _refuse(422, f'{error}; expected {{"settings": {{...}}, "generation": N}}')
        except SettingsError as error:
            return _refuse(error.status, str(error))
        stage.settings_changed()
        return JSONResponse(report())

    answer_head(app)
    return app


async def _bounded_body(request: Request) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


def _refuse(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
