"""Change feeds: for each stream kind, one stream that lists every write to the request streams of that kind.

A reader of a thousand request streams blocks on one feed. A feed entry holds the written entries themselves (field
`d`) or, if they are large or some were refused, only the IDs of the requests whose streams to read (field `l`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.connector.redis_connection import LOST, Connection, ReplyError
from syrinx_stages.connector.redis_pool import COMMAND_SECONDS, CommandPool, backoff
from syrinx_stages.connector.redis_scripts import FEED_RETENTION_SECONDS
from syrinx_stages.contract.messages import Entry

log = logging.getLogger(__name__)

BLOCK_MS = 1000
"""How long a read blocks in Redis: well below the timeout of a command and the retention of a feed."""
MAX_INLINE_BYTES = 32 * 1024
"""Maximum size of the entries in a feed entry: a step's codes, or the first chunks of audio. Larger ones would be
stored in Redis twice and sent to many readers that do not need them."""

Entries = Sequence[tuple[bytes, Sequence[bytes]]]
"""The ID and the fields of each entry, as Redis replies."""


class Change(Struct, frozen=True, array_like=True, gc=False):
    """A written entry."""

    request_id: str
    frames: int
    sequence: int
    entry: Entry


_encoder = msgspec.msgpack.Encoder()
_changes = msgspec.msgpack.Decoder(list[Change])
_request_ids = msgspec.msgpack.Decoder(list[str])


def pack(entries: Sequence[StreamEntry], payload_bytes: int) -> tuple[bytes, bytes]:
    """Encodes entries of one kind for the feed: the entries (empty if too large), and the IDs of their requests."""
    request_ids = _encoder.encode([item.request_id for item in entries])
    if payload_bytes > MAX_INLINE_BYTES:
        return b"", request_ids
    changes = [Change(item.request_id, *item.position, item.entry) for item in entries]
    return _encoder.encode(changes), request_ids


def unpack(fields: Sequence[bytes]) -> tuple[Sequence[Change], Sequence[str]]:
    """Decodes a feed entry: written entries, and IDs of requests whose streams to read. Raises `DecodeError`."""
    name, content = fields[:2]
    return (_changes.decode(content), ()) if name == b"d" else ((), _request_ids.decode(content))


def _time(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


class StreamTail:
    """Reads the new entries of one stream with blocking reads on its own connection.

    `on_entries` is called with new entries. `on_start` is called before the first ones, and again whenever entries may
    have been missed: after a lost connection, or if this process was stopped for longer than the feed's retention.
    """

    def __init__(
        self, pool: CommandPool, key: str, on_start: Callable[[], None], on_entries: Callable[[Entries], None]
    ) -> None:
        self._pool = pool
        self._key = key
        self._on_start = on_start
        self._on_entries = on_entries
        self._connection: Connection | None = None
        self._lost: asyncio.Future[None]
        self._pauses = backoff()
        self._last_read = 0.0
        """Start time of the last read that got a reply."""
        self.after = b""
        """ID of the last entry passed to `on_entries`; empty before the start."""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._connection = None
            try:
                self._connection = await Connection.open(self._pool.address)
                await self._start(self._connection)
                self._lost = asyncio.get_running_loop().create_future()
                self._read()
                await self._lost
            except (ReplyError, *LOST) as error:
                self._pool.on_error()
                log.warning("%s", self._pool.failure(error))
                await asyncio.sleep(next(self._pauses))
            finally:
                if self._connection is not None:
                    self._connection.close()

    async def _start(self, connection: Connection) -> None:
        self._last_read = asyncio.get_running_loop().time()
        command = (b"XREVRANGE", self._key, b"+", b"-", b"COUNT", 1)
        last = await connection.call(command, COMMAND_SECONDS)
        newest = last[0][0] if last else b"0-0"
        if not self.after:
            self.after = newest
        elif _time(newest) < _time(self.after):
            # The stream was recreated, perhaps by a server whose clock is behind: new IDs may be below `after`.
            self.after = b"0-0"
        self._on_start()

    def _read(self) -> None:
        if self._connection is None:
            return
        started = asyncio.get_running_loop().time()
        command = (b"XREAD", b"BLOCK", BLOCK_MS, b"STREAMS", self._key, self.after)
        self._connection.send_with_callback(command, COMMAND_SECONDS, lambda reply: self._replied(reply, started))

    def _replied(self, reply: Any, started: float) -> None:
        """Handles a reply in the callback: waking a task for it would add latency."""
        try:
            self._handle(reply, started)
        except Exception as error:
            if not self._lost.done():
                self._lost.set_exception(error)

    def _handle(self, reply: Any, started: float) -> None:
        if isinstance(reply, Exception):
            raise reply
        loop = asyncio.get_running_loop()
        if loop.time() - self._last_read > FEED_RETENTION_SECONDS - 1:
            self._on_start()
        self._last_read = started
        self._pauses = backoff()
        for _, entries in reply or ():
            self.after = entries[-1][0]
            self._on_entries(entries)
        # After the tasks that were just woken.
        loop.call_soon(self._read)
