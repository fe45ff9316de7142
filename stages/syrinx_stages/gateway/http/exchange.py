"""The outermost ASGI layer: identifies each HTTP request, and ends those that a drain cuts off in their own format."""

import asyncio
import contextlib
import logging
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from syrinx_stages.contract import logs
from syrinx_stages.gateway.clients.refusals import is_speech
from syrinx_stages.gateway.errors import error_response, unavailable
from syrinx_stages.gateway.http.active_requests import ActiveRequests
from syrinx_stages.gateway.http.delivery import EVENT_STREAM, ClientDisconnected, error_event
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.socket.sender import RESTART, Sender
from syrinx_stages.gateway.speech.trace import SpeechSpan

log = logging.getLogger(__name__)

_IDENTIFIER = re.compile(r"[A-Za-z0-9._:-]{1,128}")
END_SECONDS = 1.0
"""How long a client may take to accept the end of a request that was cut off."""


class Exchanges:
    """Wraps the application, which finds the service and its record of the request in the state of an HTTP request.

    Every response has an `X-Request-Id`, that of the request if it has one; during a drain it closes its connection.
    """

    def __init__(self, app: ASGIApp, service: GatewayService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs one request, or a WebSocket, on which each utterance is traced and admitted by itself."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        # Of the path as it was sent: the name of a voice may end with an escaped slash.
        if scope.get("raw_path", b"").endswith(b"/"):
            scope["path"] = scope["path"].rstrip("/") or "/"
        exchange = _Exchange(send, self._service.requests)
        if self._service.tracer is not None and is_speech(scope):
            exchange.span = SpeechSpan(self._service.tracer, scope)
        try:
            async with self._service.requests.track() as request:
                request.span = exchange.span
                exchange.request_id = _client_id(scope) or request.id
                scope.setdefault("state", {}).update(service=self._service, request=request)
                await self._app(scope, receive, exchange.send)
        except TimeoutError:
            if not request.limit.expired():
                raise
            fields = logs.of_request(request.id, exchange.span.traceparent if exchange.span else "")
            kind = "request" if scope["type"] == "http" else "connection"
            log.warning("%s %s was cut off: the gateway is shutting down", kind, request.id, extra=fields)
            with contextlib.suppress(TimeoutError, ClientDisconnected):
                async with asyncio.timeout(END_SECONDS):
                    await exchange.cut_off(scope, receive)
        finally:
            if exchange.span is not None:
                exchange.span.end()


def _client_id(scope: Scope) -> str | None:
    """Returns the client's `X-Request-Id`, or None if it is missing or not a plain identifier."""
    sent = Headers(scope=scope).get("x-request-id", "")
    return sent if _IDENTIFIER.fullmatch(sent) else None


class _Exchange:
    """The response to one request."""

    def __init__(self, send: Send, requests: ActiveRequests) -> None:
        self.request_id = ""
        self.span: SpeechSpan | None = None
        self._send = send
        self._requests = requests
        self._media_type: str | None = None
        """None until the response has started."""
        self._complete = False

    async def send(self, message: Message) -> None:
        """Sends a part of the response."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            if self.span is not None:
                headers["traceparent"] = self.span.traceparent
                self.span.set_status(message["status"])
            if self._requests.draining:
                headers["Connection"] = "close"
            await self._send(message)
            self._media_type = headers.get("content-type", "")
        elif message["type"] in ("websocket.accept", "websocket.http.response.start"):
            message.setdefault("headers", [])
            MutableHeaders(scope=message)["X-Request-Id"] = self.request_id
            await self._send(message)
        else:
            await self._send(message)
            self._complete = not message.get("more_body", False)

    async def cut_off(self, scope: Scope, receive: Receive) -> None:
        """Ends the response: with a 503 if nothing was sent, and with an error event in a stream of events.

        Any other response remains incomplete: the server closes the connection without the final chunk.
        A WebSocket is closed; its client may connect again.
        """
        if scope["type"] == "websocket":
            return await Sender(self._send).close(RESTART, "the gateway is shutting down")
        error = unavailable("the gateway is shutting down; send the request again", 1, "draining")
        if self._media_type is None:
            await error_response(error)(scope, receive, self.send)
        elif self._media_type == EVENT_STREAM and not self._complete:
            await self.send({"type": "http.response.body", "body": error_event(error), "more_body": False})
