"""One WebSocket for text that streams in, which a canary serves: passes messages both ways."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from syrinx_stages.contract.api import NARI_STREAM_PATH, SPEECH_STREAM_PATH
from syrinx_stages.gateway.canary.client_socket import NO_STATUS, ClientSocket, Closed
from syrinx_stages.gateway.errors import ApiError, internal_error
from syrinx_stages.gateway.http.active_requests import ActiveRequest, ActiveRequests
from syrinx_stages.gateway.http.delivery import ClientDisconnected
from syrinx_stages.gateway.socket import nari, stream_messages
from syrinx_stages.gateway.socket.sender import INTERNAL, NORMAL, RESTART, Sender


class _Messages(Struct, frozen=True):
    """What this gateway has to know of the messages of a path."""

    begins: tuple[str, ...]
    """Types of the client's messages after which something is to be spoken, as they are written."""
    ends: str
    """Type of the message with which everything before it is spoken."""
    error: Callable[[ApiError], dict[str, Any]]
    """Returns the message that reports an error."""


FORWARDED = {
    SPEECH_STREAM_PATH: _Messages(('"input.text"', '"input.done"'), '"session.done"', stream_messages.error_message),
    NARI_STREAM_PATH: _Messages(('"input_text.append"', '"input_text.end"'), '"response.done"', nari.error_message),
}
"""By path: the WebSockets that a canary gets."""


class ForwardedSession:
    """A session between a client, by `receive` and `send`, and the canary's gateway."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, requests: ActiveRequests, canary: ClientSocket
    ) -> None:
        self._messages = FORWARDED[scope["path"]]
        self._receive = receive
        self._sender = Sender(send)
        self._requests = requests
        self._request: ActiveRequest = scope["state"]["request"]
        self._canary = canary
        self._idle = asyncio.Event()
        """Nothing is to be spoken."""
        self._idle.set()

    async def run(self) -> str:
        """Runs until one side closes the session or it is idle in a drain. Returns the outcome of the forward."""
        with contextlib.suppress(ClientDisconnected):
            await self._sender.message({"type": "websocket.accept", "subprotocol": self._canary.subprotocol})
            tasks = [asyncio.create_task(each) for each in (self._to_client(), self._to_canary(), self._drained())]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                closed = next(task for task in tasks if task.done()).result()
            except OSError:
                await self._fail()
                return "failed"
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await self._sender.close(NORMAL if closed.code == NO_STATUS else closed.code, closed.reason)
        await self._canary.close(NORMAL)
        return "answered"

    async def _to_client(self) -> Closed:
        while not isinstance(message := await self._canary.receive(), Closed):
            if isinstance(message, bytes):
                await self._sender.binary(message)
                continue
            await self._sender.message({"type": "websocket.send", "text": message})
            if self._messages.ends in message:
                self._idle.set()
        return message

    async def _to_canary(self) -> Closed:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                raise ClientDisconnected
            if message["type"] != "websocket.receive":
                continue
            text = message.get("text")
            if text is not None and any(each in text for each in self._messages.begins):
                self._idle.clear()
                # A drain lets it finish.
                self._requests.set_received(self._request)
            await self._canary.send(message["bytes"] if text is None else text)

    async def _drained(self) -> Closed:
        await self._requests.drain_started.wait()
        await self._idle.wait()
        return Closed(RESTART, "the gateway is shutting down")

    async def _fail(self) -> None:
        """Reports that the canary was lost."""
        with contextlib.suppress(ClientDisconnected):
            failure = internal_error("the service failed; connect again and send the rest of the text")
            await self._sender.json(self._messages.error(failure))
            await self._sender.close(INTERNAL)
