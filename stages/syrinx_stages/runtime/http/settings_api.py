"""The settings server of a process: the live settings of its stage, for holders of the token only."""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from syrinx_stages.contract.settings import TOKEN_HEADER
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.errors import SettingsError
from syrinx_stages.runtime.http.admin import Service
from syrinx_stages.runtime.http.server import READ
from syrinx_stages.runtime.settings import LiveSettings, SettingsUpdate

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 65_536
"""Maximum size of a settings update."""
BODY_SECONDS = 10.0
"""Time limit for receiving one."""


class _LiveStage:
    """A stage whose temporary settings end on time, even if it is idle."""

    def __init__(self, name: str, target: Service) -> None:
        self._name = name
        self._target = target
        self._timer: asyncio.TimerHandle | None = None

    def apply(self, update: SettingsUpdate) -> None:
        """Applies an update. Raises `SettingsError`."""
        self._target.live.apply(update)
        self._set_timer()
        self._target.settings_changed()

    def report(self) -> dict[str, Any]:
        """Returns the body of `GET /settings/STAGE`; it has `seconds` only while temporary settings are in force."""
        live: LiveSettings[Any] = self._target.live
        report = {
            "generation": live.generation,
            "settings": msgspec.to_builtins(live.current),
            "base": msgspec.to_builtins(live.base),
            "limits": live.limits,
            "warnings": list(self._target.warnings()),
        }
        left = live.seconds_left
        return report if left is None else {**report, "seconds": left}

    def _set_timer(self) -> None:
        """Sets the timer to the end of the temporary settings, if there are any."""
        if self._timer is not None:
            self._timer.cancel()
        left = self._target.live.seconds_left
        self._timer = None if left is None else asyncio.get_running_loop().call_later(left, self._on_timer)

    def _on_timer(self) -> None:
        """Makes an idle stage apply its base settings."""
        # A timer may fire slightly early; it is then set again.
        self._set_timer()
        if self._timer is None:
            generation = self._target.live.generation
            log.info("%s: temporary settings have expired: generation %d is in force", self._name, generation)
            self._target.settings_changed()


def create_settings_api(stage: Stage, service: Service, token: str) -> FastAPI:
    """Returns the application with `/settings/STAGE`. Every request needs the token."""
    app = FastAPI(openapi_url=None)
    served, path = _LiveStage(stage, service), f"/settings/{stage}"
    expected = token.encode()

    @app.middleware("http")
    async def authenticate(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.headers.get(TOKEN_HEADER, "").encode()
        if not hmac.compare_digest(given, expected):
            return _error(401, f"the header {TOKEN_HEADER} must hold this process's token")
        return await call_next(request)

    @app.api_route(path, methods=READ)
    async def get_settings() -> Response:
        return JSONResponse(served.report())

    @app.put(path)
    async def put_settings(request: Request) -> Response:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _bounded_body(request)
        except TimeoutError:
            return _error(408, f"the body did not arrive within {BODY_SECONDS:g} seconds")
        if body is None:
            return _error(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        try:
            served.apply(msgspec.json.decode(body, type=SettingsUpdate))
        except msgspec.DecodeError as error:
            return _error(422, f'{error}; expected {{"settings": {{...}}, "generation": N, "seconds": S}}')
        except SettingsError as error:
            return _error(error.status, str(error))
        return JSONResponse(served.report())

    @app.api_route("/settings/{other}", methods=[*READ, "PUT"])
    async def no_settings(other: str) -> Response:
        return _error(404, f"this process has no stage {other!r}; it serves {path}")

    return app


async def _bounded_body(request: Request) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
