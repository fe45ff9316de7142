"""Inboxes: one stream for each reader, to which the writers of the request streams that it reads add what they write.

A reader of a thousand request streams thus waits for one key. An inbox entry has all entries of a batch in one field,
see `pack`.
Writers find the inboxes of a stream in the `owners` hash of its request, in the script that writes.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from syrinx_stages.connector.redis.connection import LOST, Command, Connection, ReplyError
from syrinx_stages.connector.redis.pool import COMMAND_SECONDS, CommandPool, backoff
from syrinx_stages.connector.redis.scripts import (
    INBOX_RETENTION_SECONDS,
    INBOX_TTL_SECONDS,
    OPEN_INBOX,
    TOUCH_SECONDS,
)
from syrinx_stages.contract.keys import StreamKind

log = logging.getLogger(__name__)

BLOCK_MS = 1000
"""How long a read blocks in Redis: well below the timeout of a command and the retention of an inbox."""

Entries = Sequence[tuple[bytes, Sequence[bytes]]]
"""The ID and the fields of each entry, as Redis replies."""


_SIZES = struct.Struct(">HBH")
"""The sizes of an entry's parts in an inbox: the name of its stream, its position and its message."""


def stream_name(request_id: str, kind: StreamKind) -> bytes:
    """Returns the name of a stream in inboxes."""
    return f"{request_id}:{kind}".encode()


def pack(name: bytes, position: str, message: bytes) -> bytes:
    """Encodes an entry of the stream `<request id>:<kind>`. Without a message the reader reads the stream."""
    return b"".join((_SIZES.pack(len(name), len(position), len(message)), name, position.encode(), message))


def unpack(batch: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yields the stream, the position and the message of each encoded entry."""
    at = 0
    while at < len(batch):
        name_size, position_size, message_size = _SIZES.unpack_from(batch, at)
        position_at = at + _SIZES.size + name_size
        message_at = position_at + position_size
        end = message_at + message_size
        yield batch[at + _SIZES.size : position_at], batch[position_at:message_at], batch[message_at:end]
        at = end


def _time(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


class InboxTail:
    """Reads the new entries of an inbox and of a stream that all readers share, on a connection of its own.

    `on_entries` is called with a key and its new entries. `on_start` is called before the first ones, and again when
    some may have been missed: after a lost connection, or if this process was stopped for longer than the retention.
    """

    def __init__(
        self,
        pool: CommandPool,
        inbox: str,
        shared: str,
        on_start: Callable[[], None],
        on_entries: Callable[[bytes, Entries], None],
    ) -> None:
        self._pool = pool
        self._inbox = inbox
        self._on_start = on_start
        self._on_entries = on_entries
        self._connection: Connection | None = None
        self._lost: asyncio.Future[None]
        self._pauses = backoff()
        self._failure = ""
        """Why the inbox cannot be read; empty if it can. Logged once, not four times a second."""
        self._last_read = self._touched_at = 0.0
        """Start time of the last read that got a reply, and when the life of the inbox was last extended."""
        self._after: dict[bytes, bytes] = {inbox.encode(): b"", shared.encode(): b""}
        """ID of the last entry of each key that was passed to `on_entries`; empty before the start."""

    @property
    def started(self) -> bool:
        """Whether the inbox exists: what is written from now on will be read."""
        return all(self._after.values())

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._connection = None
            try:
                self._connection = await self._pool.open_connection("inbox")
                await self._start(self._connection)
                self._lost = asyncio.get_running_loop().create_future()
                self._read()
                await self._lost
            except (ReplyError, *LOST) as error:
                self._pool.on_error()
                failure = str(self._pool.failure(error))
                if failure != self._failure:
                    log.warning("%s", failure)
                self._failure = failure
                await asyncio.sleep(next(self._pauses))
            finally:
                if self._connection is not None:
                    self._connection.close()

    async def _start(self, connection: Connection) -> None:
        self._last_read = self._touched_at = asyncio.get_running_loop().time()
        await connection.call((b"EVAL", OPEN_INBOX.source, 1, self._inbox, b"0"), COMMAND_SECONDS)
        for key, after in self._after.items():
            last = await connection.call((b"XREVRANGE", key, b"+", b"-", b"COUNT", 1), COMMAND_SECONDS)
            newest = last[0][0] if last else b"0-0"
            if not after:
                self._after[key] = newest
            elif _time(newest) < _time(after):
                # The stream was recreated, perhaps by a server whose clock is behind: new IDs may be below `after`.
                self._after[key] = b"0-0"
        self._failure = ""
        self._on_start()

    def _read(self) -> None:
        if self._connection is None:
            return
        started = asyncio.get_running_loop().time()
        if started - self._touched_at > TOUCH_SECONDS:
            self._touched_at = started
            self._send((b"EXPIRE", self._inbox, INBOX_TTL_SECONDS), self._touched)
        command: Command = (b"XREAD", b"BLOCK", BLOCK_MS, b"STREAMS", *self._after, *self._after.values())
        self._send(command, lambda reply: self._handle(reply, started))

    def _send(self, command: Command, handle: Callable[[Any], None]) -> None:
        """Handles the reply in the callback: waking a task for it would add latency."""

        def on_reply(reply: Any) -> None:
            try:
                if isinstance(reply, Exception):
                    raise reply
                handle(reply)
            except Exception as error:
                if not self._lost.done():
                    self._lost.set_exception(error)

        assert self._connection is not None
        self._connection.send_with_callback(command, COMMAND_SECONDS, on_reply)

    def _touched(self, exists: int) -> None:
        if not exists:
            raise ConnectionResetError(f"the inbox {self._inbox} has expired")

    def _handle(self, reply: Any, started: float) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._last_read > INBOX_RETENTION_SECONDS - 1:
            self._on_start()
        self._last_read = started
        self._pauses = backoff()
        for key, entries in reply or ():
            self._after[key] = entries[-1][0]
            self._on_entries(key, entries)
        # After the tasks that were just woken.
        loop.call_soon(self._read)
