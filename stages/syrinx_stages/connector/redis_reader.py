"""Follows many request streams with one blocking XREAD."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from syrinx_stages.connector.base import Cancelled, ConnectorError, Event, StreamEntry
from syrinx_stages.connector.redis_blocking import Blocking
from syrinx_stages.connector.redis_link import Command, Commands
from syrinx_stages.contract.keys import Keys, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason, Entry, decode_entry

log = logging.getLogger(__name__)

BLOCK_MS = 1000
"""How long a read waits inside Redis: well below the deadline of a command."""
_UNREADABLE = End(EndReason.ERROR, "a stage wrote what this one cannot read; stages of one generation must be alike")


def entry_of(payload: bytes) -> Entry:
    """Reads an entry; one that cannot be read ends its stream with an error."""
    try:
        return decode_entry(payload)
    except msgspec.DecodeError as error:
        log.error("a stream entry cannot be read: %s", error)
        return _UNREADABLE


class _Watched:
    """A stream and how far it was read. Watching again makes a new one: what was asked for the old does not count."""

    def __init__(self, request_id: str, kind: StreamKind, after: Position) -> None:
        self.request_id = request_id
        self.kind = kind
        self.after = str(after).encode()


class RedisReader:
    """See `base.Reader`."""

    def __init__(self, commands: Commands, keys: Keys) -> None:
        self._keys = keys
        self._control = keys.control.encode()
        self._commands = commands
        self._cancelled_after = b""
        self._watched: dict[bytes, _Watched] = {}
        self._asked: dict[bytes, _Watched] = {}
        self._blocking = Blocking(commands, self._find_control)
        self._closed = False

    def watch(self, request_id: str, kind: StreamKind, after: Position) -> None:
        """Follows a stream from behind `after`."""
        self._watched[self._keys.stream(request_id, kind).encode()] = _Watched(request_id, kind, after)
        self._blocking.wake()

    def unwatch(self, request_id: str, kind: StreamKind) -> None:
        """Stops following it."""
        self._watched.pop(self._keys.stream(request_id, kind).encode(), None)

    async def read(self) -> Sequence[Event]:
        """Waits for the next events."""
        while not self._closed:
            try:
                reply = await self._blocking.call(self._command)
            except ConnectorError:
                continue  # it was logged, and time has passed
            except ResponseError as error:
                log.error("Redis refused to read: %s", error)
                continue
            if events := self._events(reply or ()):
                return events
        return ()

    async def close(self) -> None:
        """Ends a waiting `read` and frees the connection."""
        self._closed = True
        self._watched.clear()
        await self._blocking.close()

    async def _find_control(self) -> None:
        """Cancellations count from the first connection on, also across later ones: `$` would leave gaps."""
        if not self._cancelled_after:
            last = await self._commands.call(b"XREVRANGE", self._control, b"+", b"-", b"COUNT", 1)
            self._cancelled_after = last[0][0] if last else b"0-0"

    def _command(self) -> Command:
        self._asked = self._watched.copy()
        after = [watched.after for watched in self._asked.values()]
        return (b"XREAD", b"BLOCK", BLOCK_MS, b"STREAMS", self._control, *self._asked, self._cancelled_after, *after)

    def _events(self, reply: Sequence[Any]) -> list[Event]:
        events: list[Event] = []
        for key, entries in reply:
            if key == self._control:
                self._cancelled_after = entries[-1][0]
                events += [Cancelled(fields[1].decode()) for _, fields in entries]
                continue
            watched = self._watched.get(key)
            if watched is None or watched is not self._asked.get(key):
                continue
            watched.after = entries[-1][0]
            events += [
                StreamEntry(watched.request_id, watched.kind, Position.parse(at), entry_of(fields[1]))
                for at, fields in entries
            ]
        return events
