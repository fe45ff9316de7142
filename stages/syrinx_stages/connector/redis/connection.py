"""One connection to Redis, using hiredis directly on the socket: redis-py would double the cost of a command.

Commands are pipelined: they are sent at once, and Redis replies in their order.

Replies are RESP2 values: bytes, int, None and lists of these.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections import deque
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


class CannotSave(ReplyError):
    """Redis cannot save its data to its disk and refuses writes."""


class Unavailable(ReplyError):
    """Redis cannot serve commands now, or is no longer the primary."""


class Redirected(ReplyError):
    """The node of a Redis Cluster does not serve the slot of the keys."""


class Migrating(Redirected):
    """The slot is being moved to another node, and this one lacks some of the keys."""


LOST = (Unavailable, OSError)
"""Errors that a new connection may resolve: a restart, a failover, dropped packets. (`TimeoutError`, a closed
connection and a certificate error are `OSError`s.)"""

_BY_PREFIX: dict[str, type[ReplyError]] = {
    "NOSCRIPT": NoScript,
    # `ERR AUTH`: a password was sent to a server that has none.
    **dict.fromkeys(("NOAUTH", "WRONGPASS", "ERR AUTH", "ERR Client sent AUTH"), Refused),
    **dict.fromkeys(("LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY "), Unavailable),
    "ERR max number of clients reached": Unavailable,
    "MOVED ": Redirected,
    **dict.fromkeys(("ASK ", "TRYAGAIN "), Migrating),
}
_BY_PART: dict[str, type[ReplyError]] = {
    "OOM command not allowed": OutOfMemory,
    "MISCONF Redis is configured to save": CannotSave,
    "attempted to access a non local key": Migrating,
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

    redirects = False
    """The server is found by the keys, so another connection may resolve `Redirected`."""

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

    @property
    def host(self) -> str:
        """The host of the server; empty for a socket of this machine."""
        return "" if self._path else self._host

    def for_key(self, key: str) -> Address:
        """Returns the address of the server that has a key: this one, unless servers share the keys."""
        return self

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
    """A connection, open until it is closed or lost or a reply is late."""

    def __init__(self) -> None:
        self._parser = hiredis.Reader(replyError=reply_error)
        self._parser.setmaxbuf(MAX_PARSER_BUFFER)
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._transport: asyncio.Transport
        self._pending: deque[tuple[Callable[[Any], None], float]] = deque()
        """What to call with each outstanding reply, and when it is late (seconds of the event loop)."""
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: deque[Iterator[bytes]] = deque()
        """Commands that are not written yet: the rest of a large one, and those after it."""
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
        """
        if not self.is_open:
            on_reply(ConnectionResetError("the connection is closed"))
            return
        late_at = asyncio.get_running_loop().time() + seconds
        self._pending.append((on_reply, late_at))
        # One timer for all: `asyncio.timeout` would cost as much as the rest of the call.
        if self._timer is None or self._timer.when() > late_at:
            self._set_timer(late_at)
        self._unsent.append(_blocks(command))
        if len(self._unsent) == 1:
            self._write()

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
            while (reply := self._parser.gets()) is not False:
                if self._pending:
                    self._pending.popleft()[0](reply)
        except hiredis.ProtocolError as error:
            self._fail(ConnectionError(f"the server is not Redis: {error}"))

    def _write(self) -> None:
        """Writes what is unsent, up to the blocks of one turn of the event loop."""
        for _ in range(TURN_BLOCKS):
            while (block := next(self._unsent[0], None)) is None:
                self._unsent.popleft()
                if not self._unsent:
                    return
            self._transport.write(block)
        asyncio.get_running_loop().call_soon(self._write_on)

    def _write_on(self) -> None:
        if self.is_open:
            self._write()

    def _check_time(self) -> None:
        self._timer = None
        if not self._pending:
            return
        late_at = self._pending[0][1]
        if asyncio.get_running_loop().time() < late_at:
            self._set_timer(late_at)
        else:
            self._fail(TimeoutError("no reply in time"))

    def _set_timer(self, late_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(late_at, self._check_time)

    def _fail(self, error: Exception) -> None:
        self.is_open = False
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, deque()
        for on_reply, _ in pending:
            on_reply(error)


def _blocks(command: Command) -> Iterator[bytes]:
    """Encodes a command as RESP, in blocks to write."""
    if sum(map(_large_bytes, command)) < SEND_BLOCK_BYTES:
        yield hiredis.pack_command(tuple(command))  # type: ignore[arg-type]
        return
    pieces, size, small = [b"*%d\r\n" % len(command)], 0, list[Any]()
    for part in command:
        if not (isinstance(part, bytes) and _large_bytes(part)):
            small.append(part)
            continue
        before = _packed(small)
        pieces += (before, b"$%d\r\n" % len(part))
        small, size, start = [], size + len(before), 0
        while len(part) - start > SEND_BLOCK_BYTES:
            yield b"".join((*pieces, part[start : start + SEND_BLOCK_BYTES]))
            pieces, size, start = [], 0, start + SEND_BLOCK_BYTES
        pieces += (part[start:], b"\r\n")
        size += len(part) - start
        if size >= SEND_BLOCK_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join((*pieces, _packed(small)))


def _large_bytes(part: bytes | str | int) -> int:
    """Returns the size of an argument that is sent without an extra copy; 0 for others."""
    return len(part) if isinstance(part, bytes) and len(part) >= LARGE_ARGUMENT_BYTES else 0


def _packed(arguments: Sequence[bytes | str | int]) -> bytes:
    """Returns arguments in RESP, without the number of them."""
    if not arguments:
        return b""
    packed: bytes = hiredis.pack_command(tuple(arguments))  # type: ignore[arg-type]
    return packed[packed.index(b"\n") + 1 :]
