"""The public HTTP routes."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, WebSocketRoute
from starlette.types import ASGIApp

from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.api import NARI_STREAM_PATH, SPEECH_STREAM_PATH
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.gateway.canary.canary import CanaryForwarder
from syrinx_stages.gateway.clients.access import RequireKey
from syrinx_stages.gateway.clients.client import client_key
from syrinx_stages.gateway.clients.origins import RequireLocalHost, check_origin
from syrinx_stages.gateway.clients.refusals import BATCH_PATH, SPEECH_PATH, RefuseEarly
from syrinx_stages.gateway.errors import ApiError, bad_request, error_response, internal_error, quoted, unavailable
from syrinx_stages.gateway.fields.json_objects import RawBody
from syrinx_stages.gateway.fields.parse import parse_fields
from syrinx_stages.gateway.http import openapi, pages
from syrinx_stages.gateway.http.batch import BatchResponse, parse_batch, prepare
from syrinx_stages.gateway.http.body import FORM, JSON, Body, read_body
from syrinx_stages.gateway.http.delivery import SpeechResponse
from syrinx_stages.gateway.http.exchange import Exchanges
from syrinx_stages.gateway.http.form import parse_form
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.socket.nari import NariSockets
from syrinx_stages.gateway.socket.websocket import SpeechSockets
from syrinx_stages.gateway.speech.request import Delivery, model_not_found, text_limit, traced
from syrinx_stages.gateway.voices.voice_upload import keep_voice
from syrinx_stages.gateway.voices.voices import KeptVoice, describe_voice, parse_upload
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.http.server import READ
from syrinx_stages.runtime.telemetry.metrics import Metrics

VOICES_PATH = "/v1/audio/voices"
SMALL_BODY = 64 * 1024
"""Bytes of a body that is parsed in the event loop."""
_LIST = f"voices are listed at GET {VOICES_PATH}"
_PROBES = "metrics and probes have a port of their own, and GET /health says whether the gateway is ready"
_ELSEWHERE = {
    "/v1/audio/voice_consents": (
        "recordings of consents are neither checked nor kept here; keep yours, and send its id, or who agreed, as "
        f"consent of POST {VOICES_PATH}"
    ),
    "/v1/text-to-speech": f"send the same body with voice_id and output_format in it to POST {SPEECH_PATH}",
    "/v1/realtime": f"text that streams in is sent over the WebSocket {SPEECH_STREAM_PATH}",
    "/v1/audio/speech/voices": _LIST,
    "/v1/voices": _LIST,
    "/v2/voices": _LIST,
    "/voices": _LIST,
    "/metrics": _PROBES,
    "/healthz": _PROBES,
    "/readyz": _PROBES,
}
"""What to send instead to paths of other APIs and other ports, and to those below them."""
_MAX_PREFIX = 4
"""Parts of a path that may be a wrong prefix."""
_Parsed = TypeVar("_Parsed")


def build(
    config: StageConfig, connectors: Sequence[RedisConnector], metrics: Metrics
) -> tuple[GatewayService, ASGIApp]:
    """Creates the gateway service of a process and its public application. `connectors`: one for each cell."""
    service = GatewayService(config, connectors, metrics)
    return service, create_app(service)


# Every error has the shape of the OpenAI API, the framework's own errors included.


async def _api_error(http: Request, error: ApiError) -> Response:
    return error_response(error)


async def _routing_error(http: Request, error: HTTPException) -> Response:
    found = _right_path(http) if error.status_code == HTTPStatus.NOT_FOUND else _right_method(error)
    message = f"{http.method} {quoted(http.url.path)}: {found}"
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    response = error_response(ApiError(error.status_code, message, code=code))
    response.headers.update(error.headers or {})
    return response


def _right_path(http: Request) -> str:
    """Says which path a client means that has sent an unknown one: without /v1, with two of them, or another prefix."""
    for path, advice in _ELSEWHERE.items():
        if f"{http.url.path}/".startswith(f"{path}/"):
            return f"there is no such path; {advice}"
    parts = [part for part in http.url.path.split("/") if part]
    for start in range(min(len(parts), _MAX_PREFIX)):
        for prefix in ("/v1/", "/"):
            scope = {**http.scope, "path": prefix + "/".join(parts[start:])}
            if any(route.matches(scope)[0] is not Match.NONE for route in _routes.routes):
                return f"there is no such path; send it to {quoted(scope['path'])}"
    return f"there is no such path; speech is POST {SPEECH_PATH}, and GET /openapi.json lists all paths"


def _right_method(error: HTTPException) -> str:
    allowed = (error.headers or {}).get("Allow")
    return f"send {' or '.join(sorted(allowed.split(', ')))}" if allowed else error.detail


async def _unexpected_error(http: Request, error: Exception) -> Response:
    return await _api_error(http, internal_error("the gateway failed to process this request"))


_ERROR_HANDLERS: dict[int | type[Exception], Any] = {
    ApiError: _api_error,
    HTTPException: _routing_error,
    Exception: _unexpected_error,
}


def create_app(service: GatewayService) -> ASGIApp:
    """Creates the application. The caller starts and closes the service."""
    app: ASGIApp = CanaryForwarder(RefuseEarly(_routes, service), service)
    if service.api_keys is not None:
        app = RequireKey(app, service.api_keys)
    if service.is_private:
        app = RequireLocalHost(app)
    app = Exchanges(app, service)
    if not service.cors_origins:
        return app
    # Outermost, so that every response can be read by a web page. The headers of requests are those of OpenAI's client.
    return CORSMiddleware(
        app,
        allow_origins=service.cors_origins,
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Retry-After", *openapi.HEADERS],
    )


# A redirect would name this process's scheme and host, which a proxy in front may have changed.
_routes = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers=_ERROR_HANDLERS)


async def _speech(http: Request) -> Response:
    service, request = _service(http), http.state.request
    # While the body is unknown, a request counts as a stream, as most are.
    with service.counting_refusals(live=True), contextlib.ExitStack() as holding:
        body = await _receive(http, holding)
        accepted, accepted_at = monotonic(), time.time()
        sent = await _parse(parse_fields, body)
        with sent.naming():
            parsed, kept = await service.parse(sent.fields, request.id, accepted_at, client_key(http))
            parsed.warnings.extend(sent.warnings)
            parsed = traced(parsed, request.span, service.catalog.model)
            parsed, voice = await service.clone(sent.fields, parsed, kept)
    async with contextlib.AsyncExitStack() as submitted:
        opening = service.open_stream(parsed.request, voice, accepted, parsed.audio.speed, request.span)
        speech = await submitted.enter_async_context(opening)
        sse = parsed.delivery is Delivery.SSE
        tokens = await asyncio.to_thread(service.input_tokens, parsed.request) if sse else 0
        return SpeechResponse(speech, parsed, tokens, submitted.pop_all())


# Without FastAPI's resolution of arguments, which every refused request would pay for.
_routes.add_route(SPEECH_PATH, _speech, methods=["POST"])


@_routes.post(BATCH_PATH)
async def _speech_batch(http: Request) -> Response:
    service, request = _service(http), http.state.request
    with service.counting_refusals(live=False), contextlib.ExitStack() as holding:
        parsed = await _parse(parse_batch, await _receive(http, holding))
        items = await prepare(service, parsed, request.id, client_key(http))
    return BatchResponse(service, request.id, items, request.span.fields if request.span is not None else {})


_routes.router.routes.append(WebSocketRoute(SPEECH_STREAM_PATH, SpeechSockets()))
_routes.router.routes.append(WebSocketRoute(NARI_STREAM_PATH, NariSockets()))


@_routes.api_route(SPEECH_STREAM_PATH, methods=[*READ, "POST"])
@_routes.api_route(NARI_STREAM_PATH, methods=[*READ, "POST"])
async def _speech_stream(http: Request) -> Response:
    message = (
        f"{http.url.path} is a WebSocket: connect with ws:// or wss://; a whole text is sent to POST {SPEECH_PATH}"
    )
    raise ApiError(426, message, code="upgrade_required")


async def _receive(http: Request, holding: contextlib.ExitStack, media_type: str = JSON) -> Body:
    """Returns the body of a request for speech. Raises as `read_body`, and 503 unless new requests are accepted."""
    service = _service(http)
    service.check_open()
    body = await read_body(http, service.max_body, service.uploads, holding, media_type)
    service.requests.set_received(http.state.request)
    return body


async def _parse(parse: Callable[[RawBody], _Parsed], body: Body) -> _Parsed:
    """Parses a body, a large one outside the event loop."""
    return parse(body.take()) if len(body) <= SMALL_BODY else await asyncio.to_thread(lambda: parse(body.take()))


@_routes.api_route("/health", methods=READ)
async def _health(http: Request) -> Response:
    """200 while the gateway is ready to serve, as the health checks of other servers' clients expect."""
    if (reason := _service(http).ready()) is not None:
        raise unavailable(reason, 1, "not_ready")
    return JSONResponse({"status": "ok"})


@_routes.api_route("/", methods=READ)
async def _root(http: Request) -> Response:
    return pages.page(http, pages.PLAYGROUND) if _service(http).playground else pages.links()


@_routes.api_route("/docs", methods=READ)
async def _docs(http: Request) -> Response:
    return pages.page(http, pages.DOCS)


@_routes.api_route(pages.ASSETS_PATH, methods=READ)
async def _asset(http: Request, name: str) -> Response:
    return pages.asset(http, name, _service(http).playground)


@_routes.api_route("/openapi.json", methods=READ)
async def _openapi(http: Request) -> Response:
    service = _service(http)
    return JSONResponse(openapi.document(service.api_keys is not None, text_limit(service.catalog)))


# One route for all methods of a path: a 405 names those of one route only.


@_routes.api_route(VOICES_PATH, methods=[*READ, "POST"])
async def _voices(http: Request) -> Response:
    return await (_keep_voice(http) if http.method == "POST" else _list_voices(http))


@_routes.api_route(VOICES_PATH + "/{name:path}", methods=[*READ, "DELETE"])
async def _voice(http: Request, name: str) -> Response:
    return await (_delete_voice(http, name) if http.method == "DELETE" else _show_voice(http, name))


async def _list_voices(http: Request) -> Response:
    service = _service(http)
    own = [describe_voice(voice) for voice in await service.voices.of_client()]
    durable = await service.voices.durable() if own else None
    return JSONResponse(service.catalog.voice_list(own) | ({} if durable is None else {"durable": durable}))


async def _keep_voice(http: Request) -> Response:
    service, request = _service(http), http.state.request
    check_origin(http, service.cors_origins)
    size = service.voices.embedding_size("audio_sample")
    with contextlib.ExitStack() as holding:
        form = await parse_form(http.headers, await _receive(http, holding, FORM))
        voice = describe_voice(await keep_voice(service, parse_upload(form, size), request.id, client_key(http)))
    durable = await service.voices.durable()
    # vLLM-Omni's clients read `voice`, OpenAI's the fields beside it.
    return JSONResponse({**voice, "success": True, "voice": voice, "durable": durable})


async def _show_voice(http: Request, name: str) -> Response:
    service = _service(http)
    if (card := service.catalog.voice_card(name)) is not None:
        return JSONResponse(card)
    return JSONResponse(describe_voice(await _find(service, name)))


async def _delete_voice(http: Request, name: str) -> Response:
    service = _service(http)
    if service.catalog.has_voice(name):
        raise bad_request("voice", f"{quoted(name)} is a voice or an alias of this service and cannot be deleted")
    voice = await _find(service, name)
    await service.voices.delete(voice)
    body = {"id": voice.id, "object": "audio.voice.deleted", "deleted": True}
    return JSONResponse({**body, "success": True, "message": f"voice {voice.name!r} was deleted"})


async def _find(service: GatewayService, name: str) -> KeptVoice:
    """Returns a voice of the client. Raises 404."""
    if (voice := await service.voices.find(name)) is None:
        raise ApiError(404, f"voice {quoted(name)} does not exist", param="voice", code="voice_not_found")
    return voice


@_routes.api_route("/v1/models", methods=READ)
@_routes.api_route("/v1/audio/models", methods=READ)
async def _models(http: Request) -> Response:
    cards = _model_cards(_service(http))
    # Open WebUI reads `models` from the second path.
    return JSONResponse({"object": "list", "data": cards, "models": cards})


@_routes.api_route("/v1/models/{name:path}", methods=READ)
async def _model(http: Request, name: str) -> Response:
    service = _service(http)
    if not service.catalog.has_model(name):
        raise model_not_found(name, service.catalog)
    return JSONResponse(service.catalog.model_card(name, service.created))


def _service(http: Request) -> GatewayService:
    service: GatewayService = http.state.service
    return service


def _model_cards(service: GatewayService) -> list[dict[str, Any]]:
    return service.catalog.model_list(service.created)
