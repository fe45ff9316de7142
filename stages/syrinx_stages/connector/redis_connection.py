"""One connection to Redis: a command out, its reply in, and nothing between them and the socket but hiredis.

Replies are those of RESP2: bytes, whole numbers, None and lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import hiredis

from syrinx_stages.connector.redis_address import Address
from syrinx_stages.connector.redis_errors import reply_error

Command = Sequence[bytes | str | int]

CONNECT_SECONDS = 3.0
RECEIVE_BYTES = 256 * 1024
"""Taken from the socket at a time, into memory that is there already."""
KEPT_BYTES = 1024 * 1024
"""Of the memory that a large reply took, for the next one: hiredis would give all but 16 KiB back each time."""
LARGE_BYTES = 4 * 1024
"""An argument from this size on is not copied more often than it must be."""
BLOCK_BYTES = 64 * 1024
"""Sent at a time: memory of this size is used again, where a megabyte would be had from the system page by page."""


class Connection(asyncio.BufferedProtocol):
    """Open until it is closed, lost, or a call did not end well. One call at a time."""

    def __init__(self) -> None:
        self._parser = hiredis.Reader(replyError=reply_error)
        self._parser.setmaxbuf(KEPT_BYTES)
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._transport: asyncio.Transport
        self._replied: Callable[[Any], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connects and signs in. Raises `OSError` or a `ReplyError`."""
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await address.connect(cls)
        try:
            for command in address.greeting:
                await connection.call(command, CONNECT_SECONDS)
        except BaseException:
            connection.close()
            raise
        return connection

    def ask(self, command: Command, seconds: float, replied: Callable[[Any], None]) -> None:
        """Sends a command. `replied` is called once: with the reply, with a `ReplyError`, or with an `OSError`.

        It is called as soon as the reply is there, ahead of all that waits for the event loop.
        """
        if not self.is_open:
            replied(ConnectionResetError("the connection is closed"))
            return
        self._replied = replied
        # A timer, as `asyncio.timeout` costs as much as the rest of the call.
        late = TimeoutError(f"no answer within {seconds:.0f} s")
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fail, late)
        for block in _blocks(command):
            self._transport.write(block)

    def send(self, command: Command, seconds: float) -> asyncio.Future[Any]:
        """Sends a command; its reply, or what `ask` would say in its place."""
        answer = asyncio.get_running_loop().create_future()
        self.ask(command, seconds, lambda reply: None if answer.done() else answer.set_result(reply))
        return answer

    async def receive(self, answer: asyncio.Future[Any]) -> Any:
        """The reply to what was sent. Raises `ReplyError`, or an `OSError` and is closed."""
        try:
            reply = await answer
        except BaseException:
            self.close()
            raise
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def call(self, command: Command, seconds: float) -> Any:
        """Sends a command and returns its reply. Raises `ReplyError`, or an `OSError` and is closed."""
        return await self.receive(self.send(command, seconds))

    def close(self) -> None:
        """Closes it at once."""
        self._fail(ConnectionResetError("the connection was closed"))

    # What the event loop calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        """It is no longer."""
        self._fail(error or ConnectionResetError("the connection was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where what arrives is put."""
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Something arrived."""
        try:
            self._parser.feed(self._received[:nbytes])  # type: ignore[arg-type]
            reply = self._parser.gets()
        except hiredis.ProtocolError as error:
            self._fail(ConnectionError(f"this is no Redis: {error}"))
            return
        if reply is not False:
            self._answer(reply)

    def _fail(self, error: Exception) -> None:
        self.is_open = False
        self._transport.abort()
        self._answer(error)

    def _answer(self, reply: Any) -> None:
        replied, self._replied = self._replied, None
        if self._timer is not None:
            self._timer.cancel()
        if replied is not None:
            replied(reply)


def _blocks(command: Command) -> Iterator[bytes]:
    """What is sent for a command, as RESP."""
    for part in command:
        if isinstance(part, bytes) and len(part) >= LARGE_BYTES:
            break
    else:
        yield hiredis.pack_command(tuple(command))  # type: ignore[arg-type]
        return
    pieces, size = [b"*%d\r\n" % len(command)], 0
    for part in command:
        data = part if isinstance(part, bytes) else str(part).encode()
        pieces += (b"$%d\r\n" % len(data), data, b"\r\n")
        size += len(data)
        if size >= BLOCK_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join(pieces)
