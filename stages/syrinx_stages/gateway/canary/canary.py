"""Forwards a share of the speech requests and sessions to the gateways of a canary, over the public HTTP API.

The canary is a complete pipeline of another version with Redis keys of its own, so a forwarded request is served by it
alone. Its gateway checks the API key, the size and the content of the request, and counts its outcome.
"""

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import AsyncIterator

import httpx
from msgspec import UNSET
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from syrinx_stages.contract.settings import TlsFiles
from syrinx_stages.gateway.canary.canary_socket import FORWARDED, ForwardedSession
from syrinx_stages.gateway.canary.client_socket import open_socket
from syrinx_stages.gateway.clients.origins import check_origin
from syrinx_stages.gateway.clients.refusals import is_speech
from syrinx_stages.gateway.errors import ApiError, error_response, internal_error, unavailable
from syrinx_stages.gateway.http.active_requests import ActiveRequest, ActiveRequests
from syrinx_stages.gateway.http.delivery import EVENT_STREAM, ClientConnection, ClientDisconnected, error_event
from syrinx_stages.gateway.service import STALL_SECONDS, GatewayService

log = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
"""Timeout for connecting to a canary; after that this gateway serves the request."""
SILENCE_SECONDS = STALL_SECONDS + 30.0
"""Timeout for data from a canary, whose gateway itself ends a request without progress before that."""
_NOT_FORWARDED = frozenset(
    {b"connection", b"expect", b"host", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
    | {b"date", b"origin", b"server", b"x-request-id"}
)
"""Headers of one connection, and those that this gateway sets itself."""


class CanaryForwarder:
    """Wraps the application, which serves all other requests."""

    def __init__(self, app: ASGIApp, service: GatewayService) -> None:
        self._app = app
        self._service = service
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs one request."""
        route = self._service.live.current.canary
        if route is UNSET or not (is_speech(scope) or _is_session(scope)) or random.random() >= route.weight:
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await self._forward_session(scope, receive, send, random.choice(route.urls))
        forward = _Forward(scope, receive, send, self._service.requests)
        try:
            await forward.run(self._connections(), random.choice(route.urls))
            self._service.count_forward("answered")
        except (httpx.ConnectError, httpx.ConnectTimeout, CertificateError) as error:
            log.warning("a request could not be forwarded to the canary: %s", error)
            self._client = None  # The certificate may have changed.
            self._service.count_forward("fallback")
            await self._app(scope, receive, send)
        except httpx.HTTPError as error:
            log.warning("the canary failed a request: %s: %s", type(error).__name__, error)
            self._service.count_forward("failed")
            await forward.fail()

    async def _forward_session(self, scope: Scope, receive: Receive, send: Send, url: str) -> None:
        """Forwards a WebSocket. One that the canary does not accept is served here."""
        service = self._service
        try:
            # The canary does not see the origin of a web page.
            check_origin(HTTPConnection(scope), service.cors_origins)
        except ApiError:
            return await self._app(scope, receive, send)
        async with contextlib.AsyncExitStack() as opened:
            try:
                tls = None if service.tls is None else _own_certificate(service.tls)
                headers, subprotocols = _forwarded_headers(scope), scope.get("subprotocols", ())
                opening = open_socket(url, scope["path"], headers, subprotocols, tls, CONNECT_SECONDS)
                canary = await opened.enter_async_context(opening)
            except (OSError, CertificateError) as error:
                log.warning("a session could not be forwarded to the canary: %s", error)
                service.count_forward("fallback")
            else:
                session = ForwardedSession(scope, receive, send, service.requests, canary)
                service.count_forward(await session.run())
                return
        await self._app(scope, receive, send)

    def _connections(self) -> httpx.AsyncClient:
        """Returns the client. Raises CertificateError.

        It keeps no connection, because one that the canary just closed would fail a request.
        """
        if self._client is None:
            logging.getLogger("httpx").setLevel(logging.WARNING)  # It logs every request.
            timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=None)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            tls = self._service.tls
            verify = False if tls is None else _own_certificate(tls)
            self._client = httpx.AsyncClient(trust_env=False, timeout=timeout, limits=limits, verify=verify)
        return self._client


def _is_session(scope: Scope) -> bool:
    return bool(scope["type"] == "websocket" and scope["path"] in FORWARDED)


def _forwarded_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_FORWARDED]
    headers = [each for each in headers if not each[0].startswith(b"sec-websocket-")]
    return [*headers, (b"x-request-id", scope["state"]["request"].id.encode())]


class CertificateError(Exception):
    """The certificate of the public API cannot be read."""


def _own_certificate(tls: TlsFiles) -> ssl.SSLContext:
    """Returns a context that accepts only the certificate of this gateway, which the canary has too, by any address.

    Raises CertificateError.
    """
    try:
        context = ssl.create_default_context(cafile=tls.certificate)
    except OSError as error:
        raise CertificateError(f"{tls.certificate}: {error}") from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class _Forward:
    """One forwarded request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, requests: ActiveRequests) -> None:
        self._requests = requests
        self._scope = scope
        self._receive = receive
        self._send = send
        self._request: ActiveRequest = scope["state"]["request"]
        self._received = asyncio.Event()
        """The body of the request is complete."""
        self._media_type: str | None = None
        """None until the response has started."""

    async def run(self, client: httpx.AsyncClient, url: str) -> None:
        """Forwards the request and sends the response, until the client disconnects. Raises httpx.HTTPError."""

        async def after_body() -> Message:
            await self._received.wait()
            return await self._receive()

        await ClientConnection(after_body, self._send).run(self._relay(client, url))

    async def fail(self) -> None:
        """Ends the response in its own format; one that has begun without events remains incomplete."""
        if self._media_type is None:
            error = unavailable("the service failed to answer; send the request again", 1)
            await error_response(error)(self._scope, self._receive, self._send)
        elif self._media_type.startswith(EVENT_STREAM):
            event = error_event(internal_error("the stream failed"))
            await self._send({"type": "http.response.body", "body": event, "more_body": False})

    async def _relay(self, client: httpx.AsyncClient, url: str) -> None:
        headers = _forwarded_headers(self._scope)
        if self._request.span is not None:
            headers = [(name, value) for name, value in headers if name != b"traceparent"]
            headers.append((b"traceparent", self._request.span.traceparent.encode()))
        request = client.build_request("POST", url + self._scope["path"], headers=headers, content=self._body())
        async with contextlib.aclosing(await client.send(request, stream=True)) as response:
            raw = [(name.lower(), value) for name, value in response.headers.raw]
            raw = [(name, value) for name, value in raw if name not in _NOT_FORWARDED]
            await self._send({"type": "http.response.start", "status": response.status_code, "headers": raw})
            self._media_type = response.headers.get("content-type", "")
            async for data in response.aiter_raw():
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _body(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            more = message.get("more_body", False)
            if data := message.get("body", b""):
                yield data
        self._requests.set_received(self._request)
        self._received.set()
