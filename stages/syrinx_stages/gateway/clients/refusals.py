"""Refuses requests of a client that was just refused, before their bodies are read: in an overload, refusals must cost
little."""

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from syrinx_stages.gateway.clients.client import client_key
from syrinx_stages.gateway.errors import error_response
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.runtime.clock import monotonic

SPEECH_PATH = "/v1/audio/speech"
BATCH_PATH = "/v1/audio/speech/batch"


def is_speech(scope: Scope) -> bool:
    """Returns whether a connection is a request for speech, or for a batch of them."""
    return bool(scope["type"] == "http" and scope["path"] in (SPEECH_PATH, BATCH_PATH) and scope["method"] == "POST")


class RefuseEarly:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, service: GatewayService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs one request."""
        if is_speech(scope):
            refusal = self._service.refusals.recent(client_key(HTTPConnection(scope)), monotonic())
            if refusal is not None:
                self._service.count_refusal(self._service.checkpoint.task_type)
                if refusal.live and scope["path"] == SPEECH_PATH:
                    self._service.outcomes.refuse()
                return await error_response(refusal.error)(scope, receive, send)
        await self._app(scope, receive, send)
