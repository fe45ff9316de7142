"""A client's side of a WebSocket, on wsproto, with which the gateway's server parses WebSockets, too."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit

from msgspec import Struct
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

READ_BYTES = 64 * 1024
MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes, or characters, of a received message."""
NO_STATUS = 1005
"""wsproto's code for a close frame without one."""

Headers = Sequence[tuple[bytes, bytes]]


class Closed(Struct, frozen=True):
    """How the server has closed a connection."""

    code: int
    reason: str


class ClientSocket:
    """An open WebSocket. Use `open_socket`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.subprotocol: str | None = None
        """The one that the server has chosen."""
        self._reader = reader
        self._writer = writer
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._events = self._connection.events()

    async def handshake(self, request: Request) -> None:
        """Sends the request. Raises ConnectionError if the server does not accept it."""
        await self._send(request)
        while True:
            event = await self._next()
            if isinstance(event, AcceptConnection):
                self.subprotocol = event.subprotocol
                return
            if isinstance(event, RejectConnection):
                raise ConnectionError(f"the WebSocket was refused with status {event.status_code}")

    async def send(self, message: str | bytes) -> None:
        """Sends a message. Raises OSError if the connection is lost."""
        await self._send(TextMessage(message) if isinstance(message, str) else BytesMessage(message))

    async def receive(self) -> str | bytes | Closed:
        """Returns the next message, or how the server has closed the connection. Raises OSError if it is lost."""
        parts: list[str] | list[bytes] = []
        size = 0
        while True:
            event = await self._next()
            if isinstance(event, CloseConnection):
                with contextlib.suppress(OSError):
                    await self._send(event.response())
                return Closed(event.code, event.reason or "")
            if isinstance(event, Ping):
                await self._send(event.response())
            elif isinstance(event, Message):
                parts.append(event.data)
                size += len(event.data)
                if size > MAX_MESSAGE:
                    raise ConnectionError(f"a message is larger than {MAX_MESSAGE // 2**20} MB")
                if event.message_finished:
                    return (b"" if isinstance(event, BytesMessage) else "").join(parts)  # type: ignore[arg-type]

    async def close(self, code: int) -> None:
        """Closes the connection, unless it is lost."""
        with contextlib.suppress(OSError):
            await self._send(CloseConnection(code))

    async def _send(self, event: Event) -> None:
        try:
            data = self._connection.send(event)
        except LocalProtocolError as error:
            raise ConnectionError(str(error)) from None
        self._writer.write(data)
        await self._writer.drain()

    async def _next(self) -> Event:
        while True:
            try:
                if (event := next(self._events, None)) is not None:
                    return event
                data = await self._reader.read(READ_BYTES)
                self._connection.receive_data(data or None)
            except RemoteProtocolError as error:
                raise ConnectionError(str(error)) from None
            if not data:
                raise ConnectionError("the connection was lost")
            self._events = self._connection.events()


@contextlib.asynccontextmanager
async def open_socket(
    url: str, path: str, headers: Headers, subprotocols: Sequence[str], tls: ssl.SSLContext | None, seconds: float
) -> AsyncIterator[ClientSocket]:
    """Connects to a server within so many seconds. url: as for HTTP; tls: for https.

    Raises OSError, of which TimeoutError is one, if it cannot be reached or does not accept the WebSocket.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or (443 if secure else 80), ssl=(tls or True) if secure else None
        )
    with contextlib.closing(writer):
        socket = ClientSocket(reader, writer)
        request = Request(host=parts.netloc, target=path, extra_headers=list(headers), subprotocols=list(subprotocols))
        async with asyncio.timeout(seconds):
            await socket.handshake(request)
        yield socket
