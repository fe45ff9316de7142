"""The public routes."""

from __future__ import annotations

import contextlib
import time
import uuid
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from syrinx_stages.connector.base import Connector
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.gateway.body import parse_json, read_body
from syrinx_stages.gateway.delivery import SpeechResponse
from syrinx_stages.gateway.errors import ApiError, error_response, failed, shown
from syrinx_stages.gateway.order import place
from syrinx_stages.gateway.schema import parse_fields
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.voices import model_card, voice_list
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.server import allow_head


def build(config: StageConfig, connector: Connector, metrics: Metrics) -> tuple[GatewayService, FastAPI]:
    """The gateway of a process and its public application."""
    service = GatewayService(config, connector, metrics)
    return service, create_app(service)


def create_app(service: GatewayService) -> FastAPI:
    """The application. The service is started and closed by its owner."""
    # A redirect would name this process's own scheme and host, which a proxy in front has changed.
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.add_middleware(_Leaving, service=service)
    _add_errors(app)

    @app.post("/v1/audio/speech")
    async def speech(http: Request) -> Response:
        http.state.request_id = request_id = uuid.uuid4().hex
        with contextlib.ExitStack() as held:
            try:
                service.check_open()
                body = await read_body(http, service.large_bodies, held)
                accepted, accepted_at = time.monotonic(), time.time()
                fields = parse_fields(parse_json(body))
                order = place(fields, service.checkpoint, service.model_name, request_id, accepted_at)
                reference = await service.reference(order.ref_audio) if order.ref_audio is not None else None
            except ApiError:
                service.refused()
                raise
            # The decoded reference goes on; what was sent for it, many times larger, does not.
            return SpeechResponse(service, msgspec.structs.replace(order, ref_audio=None), reference, accepted)

    @app.get("/v1/audio/voices")
    async def voices() -> Response:
        return JSONResponse(voice_list(service.checkpoint))

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [model_card(service.model_name, service.created)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != service.model_name:
            message = f"model {shown(name)} is not served here; accepted: {service.model_name}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return JSONResponse(model_card(service.model_name, service.created))

    allow_head(app)
    return app


class _Leaving:
    """Ends kept connections while the gateway leaves, so that its clients' next requests find another."""

    def __init__(self, app: ASGIApp, service: GatewayService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if self._service.leaving and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_last)


def _add_errors(app: FastAPI) -> None:
    """Every error has OpenAI's shape, the framework's own included."""

    @app.exception_handler(ApiError)
    async def known(http: Request, error: ApiError) -> Response:
        return error_response(error, getattr(http.state, "request_id", None))

    @app.exception_handler(HTTPException)
    async def routing(http: Request, error: HTTPException) -> Response:
        message = f"{http.method} {shown(http.url.path)}: {error.detail}"
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        response = error_response(ApiError(error.status_code, message, code=code))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def unknown(http: Request, error: Exception) -> Response:
        request_id = getattr(http.state, "request_id", None)
        return error_response(failed("the gateway failed at this request"), request_id)
