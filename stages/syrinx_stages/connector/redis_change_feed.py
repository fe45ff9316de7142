"""A kind's news: one stream that says what was written to all request streams of that kind, as it is written.

Whoever follows a thousand streams waits for one. A news entry has the written entries themselves (`d`), or, where they
are large or some were refused, only the requests whose streams are to be looked at (`l`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_stages.connector.base import Append
from syrinx_stages.connector.redis_connection import Connection
from syrinx_stages.connector.redis_errors import LOST, ReplyError
from syrinx_stages.connector.redis_link import COMMAND_SECONDS, Commands, pauses
from syrinx_stages.connector.redis_scripts import FEED_RETENTION_SECONDS
from syrinx_stages.contract.messages import Entry

log = logging.getLogger(__name__)

BLOCK_MS = 1000
"""How long a read waits inside Redis: well below the deadline of a command, and what news are kept for."""
MOST_BYTES = 32 * 1024
"""Of entries in one news entry: a step's codes, or the first chunks of audio. What plays on is larger: it would reach
many that do not follow it, and lie in Redis twice."""

Entries = Sequence[tuple[bytes, Sequence[bytes]]]
"""Id and fields of each, as Redis sends them."""


class Item(Struct, frozen=True, array_like=True, gc=False):
    """An entry that was written."""

    request_id: str
    frames: int
    sequence: int
    entry: Entry


_encoder = msgspec.msgpack.Encoder()
_items = msgspec.msgpack.Decoder(list[Item])
_requests = msgspec.msgpack.Decoder(list[str])


def pack(appends: Iterable[Append], payload_bytes: int) -> tuple[bytes, bytes]:
    """Entries of one kind as news: themselves, empty if they are too large; and whose streams have something new."""
    requests = _encoder.encode([append.request_id for append in appends])
    if payload_bytes > MOST_BYTES:
        return b"", requests
    items = [Item(append.request_id, *append.position, append.entry) for append in appends]
    return _encoder.encode(items), requests


def unpack(fields: Sequence[bytes]) -> tuple[Sequence[Item], Sequence[str]]:
    """Entries that were written, and requests to look at. Raises `msgspec.DecodeError`."""
    name, content = fields[:2]
    return (_items.decode(content), ()) if name == b"d" else ((), _requests.decode(content))


def _time(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


class StreamTail:
    """Follows one stream from now on by blocking reads on a connection of its own.

    `arrived` is called with what is written. `began` is called first, and again whenever something may have been
    missed: after a lost connection, or if this process stood still for longer than news are kept.
    """

    def __init__(
        self, commands: Commands, key: str, began: Callable[[], None], arrived: Callable[[Entries], None]
    ) -> None:
        self._commands = commands
        self._key = key
        self._began = began
        self._arrived = arrived
        self._connection: Connection | None = None
        self._lost: asyncio.Future[None]
        self._asked = 0.0
        """When the last read that was answered began."""
        self.after = b""
        """The last entry that `arrived` was given; empty before the beginning."""

    async def run(self) -> None:
        """Until cancelled."""
        waits = pauses()
        while True:
            self._connection = None
            try:
                self._connection = await Connection.open(self._commands.address)
                await self._begin(self._connection)
                waits = pauses()
                self._lost = asyncio.get_running_loop().create_future()
                self._ask()
                await self._lost
            except (ReplyError, *LOST) as error:
                self._commands.errors += 1
                log.warning("%s", self._commands.address.failure(error))
                await asyncio.sleep(next(waits))
            finally:
                if self._connection is not None:
                    self._connection.close()

    async def _begin(self, connection: Connection) -> None:
        self._asked = asyncio.get_running_loop().time()
        command = (b"XREVRANGE", self._key, b"+", b"-", b"COUNT", 1)
        last = await connection.call(command, COMMAND_SECONDS)
        newest = last[0][0] if last else b"0-0"
        if not self.after:
            self.after = newest
        elif _time(newest) < _time(self.after):
            # The stream was made anew, by a clock that may be behind: what is written to it could lie before `after`.
            self.after = b"0-0"
        self._began()

    def _ask(self) -> None:
        if self._connection is None:
            return
        began = asyncio.get_running_loop().time()
        read = (b"XREAD", b"BLOCK", BLOCK_MS, b"STREAMS", self._key, self.after)
        self._connection.ask(read, COMMAND_SECONDS, lambda reply: self._replied(reply, began))

    def _replied(self, reply: Any, began: float) -> None:
        """Takes a reply: here, and not in a task that would have to be woken first."""
        try:
            self._take(reply, began)
        except Exception as error:
            if not self._lost.done():
                self._lost.set_exception(error)

    def _take(self, reply: Any, began: float) -> None:
        if isinstance(reply, Exception):
            raise reply
        loop = asyncio.get_running_loop()
        if loop.time() - self._asked > FEED_RETENTION_SECONDS - 1:
            self._began()
        self._asked = began
        for _, entries in reply or ():
            self.after = entries[-1][0]
            self._arrived(entries)
        # Behind those who were just woken.
        loop.call_soon(self._ask)
