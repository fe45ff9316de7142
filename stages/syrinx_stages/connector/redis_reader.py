"""Follows many request streams by the news of their kinds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from syrinx_stages.connector.base import Cancelled, ConnectorError, Event, StreamEntry
from syrinx_stages.connector.redis_change_feed import Entries, StreamTail, unpack
from syrinx_stages.connector.redis_link import Commands
from syrinx_stages.contract.keys import Keys, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason, Entry, decode_entry

log = logging.getLogger(__name__)

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

    def __init__(self, request_id: str, after: Position) -> None:
        self.request_id = request_id
        self.after = after
        self.looked_at = False
        """A look is on its way: what is written meanwhile may be in it or not."""


class _Channel:
    """The watched streams of one kind.

    The news bring their entries as they are written. A stream itself is looked at when it is new here, when the news
    say so, and when news may have been missed; until that look is back its news are only a reason to look again.
    """

    def __init__(
        self, commands: Commands, keys: Keys, kind: StreamKind, deliver: Callable[[Sequence[StreamEntry]], None]
    ) -> None:
        self._commands = commands
        self._keys = keys
        self._kind = kind
        self._deliver = deliver
        self._watched: dict[str, _Watched] = {}
        self._to_look_at: dict[str, _Watched] = {}
        self._look = asyncio.Event()
        self._follower = StreamTail(commands, keys.change_feed(kind), self._look_at_all, self._arrived)

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        """To be run until cancelled."""
        return self._follower.run(), self._look_loop()

    def subscribe(self, request_id: str, after: Position) -> None:
        """Follows a stream from behind `after`."""
        watched = self._watched[request_id] = _Watched(request_id, after)
        self._look_at(watched)

    def unsubscribe(self, request_id: str) -> None:
        """Stops following it."""
        self._watched.pop(request_id, None)
        self._to_look_at.pop(request_id, None)

    def _look_at(self, watched: _Watched) -> None:
        self._to_look_at[watched.request_id] = watched
        # A look before the news are followed would leave a gap between the two.
        if self._follower.after:
            self._look.set()

    def _look_at_all(self) -> None:
        for watched in self._watched.values():
            self._look_at(watched)

    def _arrived(self, news: Entries) -> None:
        for _, fields in news:
            try:
                items, requests = unpack(fields)
            except msgspec.DecodeError:
                # An entry that cannot be read spoils its own stream, not all that were written with it.
                self._look_at_all()
                continue
            events = []
            for item in items:
                watched = self._watched.get(item.request_id)
                if watched is None or item.request_id in self._to_look_at:
                    continue
                if watched.looked_at:
                    self._look_at(watched)
                elif (position := Position(item.frames, item.sequence)) > watched.after:
                    watched.after = position
                    events.append(StreamEntry(item.request_id, self._kind, position, item.entry))
            self._deliver(events)
            for request_id in requests:
                if (watched := self._watched.get(request_id)) is not None:
                    self._look_at(watched)

    async def _look_loop(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            asked, self._to_look_at = self._to_look_at, {}
            for watched in asked.values():
                watched.looked_at = True
            try:
                found = await self._read(list(asked.values()))
            except ConnectorError as error:
                log.warning("%s", error)
                found = []
                for watched in asked.values():
                    if self._watched.get(watched.request_id) is watched:
                        self._look_at(watched)
            for watched in asked.values():
                watched.looked_at = False
            self._deliver(found)

    async def _read(self, asked: Sequence[_Watched]) -> list[StreamEntry]:
        """The entries of streams that were not read yet."""
        by_key = {self._keys.stream(watched.request_id, self._kind).encode(): watched for watched in asked}
        if not by_key:
            return []
        after = [str(watched.after) for watched in asked]
        events = []
        for key, entries in await self._commands.call(b"XREAD", b"STREAMS", *by_key, *after) or ():
            watched = by_key[key]
            if self._watched.get(watched.request_id) is not watched:
                continue
            for at, fields in entries:
                watched.after = Position.parse(at)
                events.append(StreamEntry(watched.request_id, self._kind, watched.after, entry_of(fields[1])))
        return events


class RedisReader:
    """See `base.Reader`."""

    def __init__(self, commands: Commands, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys
        self._channels: dict[StreamKind, _Channel] = {}
        self._control = StreamTail(commands, keys.control, lambda: None, self._cancelled)
        self._tasks: list[asyncio.Task[None]] = []
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._started = False
        self._closed = False

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        """Follows a stream from behind `after`."""
        self._drop(request_id, kind)
        channel = self._channels.get(kind)
        if channel is None:
            channel = self._channels[kind] = _Channel(self._commands, self._keys, kind, self._deliver)
            self._run(*channel.loops())
        channel.subscribe(request_id, after)

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        """Stops following it."""
        self._drop(request_id, kind)
        if (channel := self._channels.get(kind)) is not None:
            channel.unsubscribe(request_id)

    async def read(self) -> Sequence[Event]:
        """Waits for the next events."""
        self._start()
        while not self._closed:
            if self._events:
                events, self._events = self._events, []
                return events
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        return ()

    async def close(self) -> None:
        """Ends a waiting `read` and frees the connections."""
        self._closed = True
        self._news.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self) -> None:
        """Cancellations are followed from the first `read` on."""
        if not self._started and not self._closed:
            self._started = True
            self._run(self._control.run())

    def _run(self, *loops: Coroutine[Any, Any, None]) -> None:
        for loop in loops:
            task = asyncio.create_task(loop)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What nobody thought of is for who reads."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._news.set()

    def _drop(self, request_id: str, kind: StreamKind) -> None:
        """What was read and not yet returned is not for who watches now."""
        self._events = [
            event
            for event in self._events
            if isinstance(event, Cancelled) or (event.request_id, event.kind) != (request_id, kind)
        ]

    def _deliver(self, events: Sequence[Event]) -> None:
        if events:
            self._events += events
            self._news.set()

    def _cancelled(self, entries: Entries) -> None:
        self._deliver([Cancelled(fields[1].decode()) for _, fields in entries])
