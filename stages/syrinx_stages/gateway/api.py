"""The public HTTP routes."""

import asyncio
import contextlib
import time
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.gateway.body import read_body
from syrinx_stages.gateway.client import client_key
from syrinx_stages.gateway.delivery import SpeechResponse
from syrinx_stages.gateway.errors import ApiError, error_response, internal_error, quoted
from syrinx_stages.gateway.exchange import Exchanges
from syrinx_stages.gateway.fields import parse_fields
from syrinx_stages.gateway.refusals import SPEECH_PATH, RefuseEarly
from syrinx_stages.gateway.request import model_not_found, parse_request
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.model.describe import Description
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.server import READ


def build(config: StageConfig, connector: RedisConnector, metrics: Metrics) -> tuple[GatewayService, ASGIApp]:
    """Creates the gateway service of a process and its public application."""
    service = GatewayService(config, connector, metrics)
    return service, create_app(service)


# Every error has the shape of the OpenAI API, the framework's own errors included.


async def _api_error(http: Request, error: ApiError) -> Response:
    return error_response(error)


async def _routing_error(http: Request, error: HTTPException) -> Response:
    message = f"{http.method} {quoted(http.url.path)}: {error.detail}"
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    response = error_response(ApiError(error.status_code, message, code=code))
    response.headers.update(error.headers or {})
    return response


async def _unexpected_error(http: Request, error: Exception) -> Response:
    return await _api_error(http, internal_error("the gateway failed to process this request"))


_ERROR_HANDLERS: dict[int | type[Exception], Any] = {
    ApiError: _api_error,
    HTTPException: _routing_error,
    Exception: _unexpected_error,
}


def create_app(service: GatewayService) -> ASGIApp:
    """Creates the application. The caller starts and closes the service."""
    return Exchanges(RefuseEarly(_routes, service), service)


# A redirect would name this process's scheme and host, which a proxy in front may have changed.
_routes = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers=_ERROR_HANDLERS)


@_routes.post(SPEECH_PATH)
async def _speech(http: Request) -> Response:
    service, request = _service(http), http.state.request
    with contextlib.ExitStack() as releases:
        try:
            service.check_open()
            body = await read_body(http, service.large_bodies, releases)
            service.requests.set_received(request)
            accepted, accepted_at = time.monotonic(), time.time()
            fields = parse_fields(body)
            parsed = parse_request(
                fields, service.checkpoint, service.model_name, request.id, accepted_at, client_key(http)
            )
            reference = await service.decode_reference(fields.ref_audio) if fields.ref_audio else None
        except (ApiError, asyncio.CancelledError):
            service.count_refusal()
            raise
        return SpeechResponse(service, parsed, reference, accepted)


@_routes.api_route("/v1/audio/voices", methods=READ)
async def _voices(http: Request) -> Response:
    return JSONResponse(voice_list(_service(http).checkpoint))


@_routes.api_route("/v1/models", methods=READ)
async def _models(http: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_model_card(_service(http))]})


@_routes.api_route("/v1/models/{name:path}", methods=READ)
async def _model(http: Request, name: str) -> Response:
    service = _service(http)
    if name != service.model_name:
        raise model_not_found(name, service.model_name)
    return JSONResponse(_model_card(service))


def _service(http: Request) -> GatewayService:
    service: GatewayService = http.state.service
    return service


def voice_list(checkpoint: Description) -> dict[str, Any]:
    """The body of `GET /v1/audio/voices`."""
    return {
        "object": "list",
        "voices": list(checkpoint.voices),
        "default": checkpoint.voices[0] if checkpoint.voices else None,
        "languages": list(checkpoint.languages),
        "task_types": [checkpoint.task_type],
        "instructions": checkpoint.supports_instructions,
    }


def _model_card(service: GatewayService) -> dict[str, Any]:
    return {"id": service.model_name, "object": "model", "created": service.created, "owned_by": "syrinx"}
