"""One connection to Redis, using hiredis directly on the socket: redis-py would double the cost of a command.

Replies are RESP2 values: bytes, int, None and lists of these.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult, unquote, urlsplit

import hiredis

Command = Sequence[bytes | str | int]
P = TypeVar("P", bound=asyncio.BaseProtocol)

PORT = 6379
CONNECT_SECONDS = 3.0
RECEIVE_BYTES = 256 * 1024
"""Size of the preallocated receive buffer."""
MAX_PARSER_BUFFER = 1024 * 1024
"""Parser memory kept after a large reply; by default hiredis frees all but 16 KiB each time."""
LARGE_ARGUMENT_BYTES = 4 * 1024
"""Arguments of at least this size are sent without an extra copy."""
SEND_BLOCK_BYTES = 64 * 1024
"""Size of one write. The allocator reuses blocks of this size; a megabyte would be mapped anew page by page."""
TURN_BLOCKS = 8
"""Blocks that are written in one turn of the event loop, which a large reference would hold for milliseconds."""


class ReplyError(Exception):
    """Redis replied with an error. The connection can still be used."""


class NoScript(ReplyError):
    """Redis does not have the script: its source must be sent."""


class Refused(ReplyError):
    """Redis refuses the user or password; a retry does not help."""


class OutOfMemory(ReplyError):
    """Redis has reached its memory limit and refuses commands that need more."""


class Unavailable(ReplyError):
    """Redis cannot serve commands now, or is no longer the primary."""


LOST = (Unavailable, OSError)
"""Errors that a new connection may resolve: a restart, a failover, dropped packets. (`TimeoutError`, a closed
connection and a certificate error are `OSError`s.)"""

_BY_PREFIX: dict[str, type[ReplyError]] = {
    "NOSCRIPT": NoScript,
    # `ERR AUTH`: a password was sent to a server that has none.
    **dict.fromkeys(("NOAUTH", "WRONGPASS", "ERR AUTH", "ERR Client sent AUTH"), Refused),
    **dict.fromkeys(("LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY "), Unavailable),
    "ERR max number of clients reached": Unavailable,
}
_BY_PART: dict[str, type[ReplyError]] = {
    "OOM command not allowed": OutOfMemory,
    **dict.fromkeys(("READONLY You can't write", "NOREPLICAS Not enough"), Unavailable),
}
"""Parts of the error reply of a command that writes, and of a script that runs it."""


def reply_error(text: str) -> ReplyError:
    """Returns the exception for an error reply."""
    by_part = (error for part, error in _BY_PART.items() if part in text)
    by_prefix = (error for prefix, error in _BY_PREFIX.items() if text.startswith(prefix))
    return next(itertools.chain(by_part, by_prefix), ReplyError)(text)


class Address:
    """A redis://, rediss:// (TLS) or unix:// URL. Passwords appear in no message. Raises ValueError for an invalid URL.

    `password` is used if the URL has none. A rediss:// server must present a certificate for its host name, signed by a
    certificate authority of the system or, if `ca_file` (PEM) is given, by one in that file.
    """

    def __init__(self, url: str, password: str = "", ca_file: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            self._parse(parts, password)
        except ValueError:
            raise ValueError(
                "the Redis URL is not valid: redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix://PATH"
            ) from None
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "rediss" else None
        self.name = f"Redis at {self._path or f'{self._host}:{self._port}'}"

    def _parse(self, parts: SplitResult, default_password: str) -> None:
        if parts.scheme not in ("redis", "rediss", "unix") or parts.fragment:
            raise ValueError
        self._path = unquote(parts.path) if parts.scheme == "unix" else ""
        if parts.scheme == "unix" and not self._path:
            raise ValueError
        self._host, self._port = unquote(parts.hostname or "localhost"), parts.port or PORT
        option, _, database = parts.query.partition("=")
        if option not in ("", "db"):
            raise ValueError
        if not option and not self._path:
            database = parts.path.removeprefix("/")
        user, password = unquote(parts.username or ""), unquote(parts.password or "") or default_password
        self.setup_commands: list[Command] = []
        """Commands to send at the start of every connection."""
        if password:
            self.setup_commands.append((b"AUTH", user, password) if user else (b"AUTH", password))
        if database and int(database):
            self.setup_commands.append((b"SELECT", int(database)))

    async def connect(self, protocol: Callable[[], P]) -> P:
        """Opens a connection to the server. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self._path:
            return (await loop.create_unix_connection(protocol, self._path))[1]
        return (await self._open(protocol))[1]

    async def verify(self, connection: Connection) -> None:
        """Raises `ReplyError` if a new connection is of no use."""

    async def confirm_primary(self) -> None:
        """Raises `Unavailable` if the server is known to be no longer the primary; its connections are closed then."""

    def close(self) -> None:
        """Ends what the address does in the background."""

    async def _open(self, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        loop = asyncio.get_running_loop()
        transport, connected = await loop.create_connection(protocol, self._host, self._port, ssl=self._tls)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return transport, connected


class Connection(asyncio.BufferedProtocol):
    """A connection, open until it is closed or lost or a call fails. One call at a time."""

    def __init__(self) -> None:
        self._parser = hiredis.Reader(replyError=reply_error)
        self._parser.setmaxbuf(MAX_PARSER_BUFFER)
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._transport: asyncio.Transport
        self._on_reply: Callable[[Any], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connects and authenticates. Raises `OSError` or `ReplyError`."""
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await address.connect(cls)
        try:
            for command in address.setup_commands:
                await connection.call(command, CONNECT_SECONDS)
            await address.verify(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def send_with_callback(self, command: Command, seconds: float, on_reply: Callable[[Any], None]) -> None:
        """Sends a command. `on_reply` is called once: with the reply, a `ReplyError` or an `OSError`.

        The callback runs as soon as the reply is parsed, ahead of everything that is scheduled on the event loop.
        Raises RuntimeError if the reply to an earlier command is outstanding.
        """
        if self._on_reply is not None:
            raise RuntimeError("the connection still waits for the reply to an earlier command")
        if not self.is_open:
            on_reply(ConnectionResetError("the connection is closed"))
            return
        self._on_reply = on_reply
        # `asyncio.timeout` would cost as much as the rest of the call.
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out, seconds)
        self._write(_blocks(command))

    async def call(self, command: Command, seconds: float) -> Any:
        """Sends a command and returns its reply. Raises `ReplyError`, or closes the connection and raises `OSError`."""
        future = asyncio.get_running_loop().create_future()
        self.send_with_callback(command, seconds, lambda reply: None if future.done() else future.set_result(reply))
        try:
            reply = await future
        except BaseException:
            self.close()
            raise
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Closes the connection at once."""
        self._fail(ConnectionResetError("the connection was closed"))

    # Called by the event loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionResetError("the connection was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._parser.feed(self._received[:nbytes])  # type: ignore[arg-type]
            reply = self._parser.gets()
        except hiredis.ProtocolError as error:
            self._fail(ConnectionError(f"the server is not Redis: {error}"))
            return
        if reply is not False:
            self._resolve(reply)

    def _write(self, blocks: Iterator[bytes]) -> None:
        for number, block in enumerate(blocks, 1):
            if not self.is_open:
                return
            self._transport.write(block)
            if number == TURN_BLOCKS:
                asyncio.get_running_loop().call_soon(self._write, blocks)
                return

    def _time_out(self, seconds: float) -> None:
        self._fail(TimeoutError(f"no reply within {seconds:.0f} s"))

    def _fail(self, error: Exception) -> None:
        self.is_open = False
        self._transport.abort()
        self._resolve(error)

    def _resolve(self, reply: Any) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if self._timer is not None:
            self._timer.cancel()
        if on_reply is not None:
            on_reply(reply)


def _blocks(command: Command) -> Iterator[bytes]:
    """Encodes a command as RESP, in blocks to write."""
    for part in command:
        if isinstance(part, bytes) and len(part) >= LARGE_ARGUMENT_BYTES:
            break
    else:
        yield hiredis.pack_command(tuple(command))  # type: ignore[arg-type]
        return
    pieces, size = [b"*%d\r\n" % len(command)], 0
    for part in command:
        data = part if isinstance(part, bytes) else str(part).encode()
        pieces.append(b"$%d\r\n" % len(data))
        start = 0
        while len(data) - start > SEND_BLOCK_BYTES:
            yield b"".join((*pieces, data[start : start + SEND_BLOCK_BYTES]))
            pieces, size, start = [], 0, start + SEND_BLOCK_BYTES
        pieces += (data[start:], b"\r\n")
        size += len(data) - start
        if size >= SEND_BLOCK_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join(pieces)
