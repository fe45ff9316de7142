"""A client of `/v1/audio/speech/stream`, and a gateway that serves it with the server of the processes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from prometheus_client import CollectorRegistry
from websockets.asyncio.client import ClientConnection, connect

from support.gateway import gateway_service
from support.streams import Streams
from support.waiting import DEADLINE
from syrinx_stages.contract.api import NARI_STREAM_PATH, SPEECH_STREAM_PATH
from syrinx_stages.gateway.http.api import create_app
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.runtime.http.server import HttpServer
from syrinx_stages.runtime.http.tls import Certificate


def message(kind: str, **content: object) -> str:
    """Returns a message of a client."""
    return json.dumps({"type": kind, **content})


class Client:
    """One connection. Received audio is kept by utterance and sentence."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []
        self.audio: dict[tuple[int, int], bytes] = {}
        self._place = (0, 0)

    async def send(self, kind: str, **content: object) -> None:
        await self.socket.send(message(kind, **content))

    async def receive(self) -> dict[str, Any] | bytes:
        async with asyncio.timeout(DEADLINE):
            data = await self.socket.recv()
        if isinstance(data, bytes):
            self.audio[self._place] = self.audio.get(self._place, b"") + data
            return data
        received = json.loads(data)
        self.messages.append(received)
        if received["type"] == "audio.start":
            self._place = received["utterance_index"], received["sentence_index"]
        return received

    async def until(self, kind: str) -> dict[str, Any]:
        """Receives up to a message of a type, and returns it."""
        while True:
            received = await self.receive()
            if not isinstance(received, bytes) and received["type"] == kind:
                return received

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.messages if each["type"] == kind]


@contextlib.asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Client]:
    async with connect(url.replace("http", "ws", 1) + SPEECH_STREAM_PATH, proxy=None, **options) as socket:
        yield Client(socket)


@contextlib.asynccontextmanager
async def serving(
    streams: Streams, certificate: Certificate | None = None, **config: object
) -> AsyncIterator[tuple[str, GatewayService, CollectorRegistry]]:
    """Runs a gateway of the bundled checkpoint without stages; yields its URL, its service and its metrics."""
    async with gateway_service([streams.connector()], **config) as (service, registry):
        app, paths = create_app(service), (SPEECH_STREAM_PATH, NARI_STREAM_PATH)
        server = HttpServer(app, "127.0.0.1", 0, 100, certificate=certificate, websocket_paths=paths)
        try:
            yield server.url, service, registry
            await asyncio.gather(service.drain(DEADLINE), server.drain(DEADLINE))
        finally:
            await server.close()
