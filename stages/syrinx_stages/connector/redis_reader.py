"""The Redis reader: reads many request streams through the change feeds of their kinds."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from syrinx_stages.connector import redis_scripts as scripts
from syrinx_stages.connector.base import Cancelled, ConnectorError, Event, StreamEntry
from syrinx_stages.connector.redis_change_feed import Entries, StreamTail, unpack
from syrinx_stages.connector.redis_pool import CommandPool, Rejected, backoff
from syrinx_stages.contract import logs
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_START, Keys, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason, Entry, decode_entry

log = logging.getLogger(__name__)

_UNDECODABLE = End(
    EndReason.ERROR, "a stage wrote an entry that cannot be decoded; stages of one generation must be alike"
)


def decode_or_end(payload: bytes) -> Entry:
    """Decodes an entry. An entry that cannot be decoded becomes an `End` with an error."""
    try:
        return decode_entry(payload)
    except msgspec.DecodeError as error:
        log.error("a stream entry cannot be decoded: %s", error)
        return _UNDECODABLE


class _Subscription:
    """A stream and the position it was read to. Subscribing again creates a new one, which ignores pending reads."""

    def __init__(self, request_id: str, after: Position) -> None:
        self.request_id = request_id
        self.after = after
        """Where to read on."""
        self.reading = False
        """A read of the stream is in progress; it may or may not include entries written meanwhile."""
        self.may_be_ahead = False
        """The server may have lost the last entries that were read, and its stream may end before them."""
        self._delivered = after

    def is_new(self, position: Position, entry: Entry) -> bool:
        """Advances to an entry that was read. Returns whether to deliver it.

        After a fail-over, the end may come before entries that were delivered.
        """
        self.after = position
        if position <= self._delivered and not isinstance(entry, End):
            return False
        self._delivered = max(self._delivered, position)
        return True


class _Channel:
    """The subscriptions to streams of one kind.

    The change feed delivers their entries. A stream itself is read when the subscription is new, when the feed names
    only its request, and when feed entries may have been missed. Until that read has returned, feed entries of the
    stream only cause another read.
    """

    def __init__(
        self, pool: CommandPool, keys: Keys, kind: StreamKind, deliver: Callable[[Sequence[StreamEntry]], None]
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._kind = kind
        self._deliver = deliver
        self._subscriptions: dict[str, _Subscription] = {}
        self._to_read: dict[str, _Subscription] = {}
        self._read_requested = asyncio.Event()
        self._tail = StreamTail(pool, keys.change_feed(kind), self._on_connected, self._on_changes)

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Returns the coroutines to run until cancelled."""
        return self._tail.run(), self._read_loop()

    def subscribe(self, request_id: str, after: Position) -> None:
        """Reads a stream from `after` (exclusive)."""
        subscription = self._subscriptions[request_id] = _Subscription(request_id, after)
        self._request_read(subscription)

    def unsubscribe(self, request_id: str) -> None:
        """Stops reading a stream."""
        self._subscriptions.pop(request_id, None)
        self._to_read.pop(request_id, None)

    def _request_read(self, subscription: _Subscription) -> None:
        self._to_read[subscription.request_id] = subscription
        # A read before the feed is tailed would leave a gap between the two.
        if self._tail.after:
            self._read_requested.set()

    def _on_connected(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.may_be_ahead = True
        self._request_read_of_all()

    def _request_read_of_all(self) -> None:
        for subscription in self._subscriptions.values():
            self._request_read(subscription)

    def _on_changes(self, entries: Entries) -> None:
        for _, fields in entries:
            try:
                changes, request_ids = unpack(fields)
            except msgspec.DecodeError:
                # An undecodable entry must end its own stream only, not all that were written with it.
                self._request_read_of_all()
                continue
            events = []
            for change in changes:
                subscription = self._subscriptions.get(change.request_id)
                if subscription is None or change.request_id in self._to_read:
                    continue
                if subscription.reading:
                    self._request_read(subscription)
                    continue
                position = Position(change.frames, change.sequence)
                if position > subscription.after and subscription.is_new(position, change.entry):
                    events.append(StreamEntry(change.request_id, self._kind, position, change.entry))
            self._deliver(events)
            for request_id in request_ids:
                if (subscription := self._subscriptions.get(request_id)) is not None:
                    self._request_read(subscription)

    async def _read_loop(self) -> None:
        pauses, failing = backoff(), False
        while True:
            await self._read_requested.wait()
            self._read_requested.clear()
            batch, self._to_read = self._to_read, {}
            for subscription in batch.values():
                subscription.reading = True
            pause = 0.0
            try:
                await self._read(list(batch.values()))
                pauses, failing = backoff(), False
            except ConnectorError as error:
                if not failing:
                    log.warning("%s", error)
                pause, failing = next(pauses), True
                for subscription in filter(self._is_current, batch.values()):
                    self._request_read(subscription)
            for subscription in batch.values():
                subscription.reading = False
            await asyncio.sleep(pause)

    async def _read(self, batch: Sequence[_Subscription]) -> None:
        """Reads streams and delivers their entries. A stream that Redis refuses to read ends with an error."""
        if not batch:
            return
        for subscription in batch:
            await self._rewind_if_ahead(subscription)
        by_key = {self._keys.stream(item.request_id, self._kind).encode(): item for item in batch}
        after = [str(item.after) for item in batch]
        try:
            reply = await self._pool.call(b"XREAD", b"STREAMS", *by_key, *after)
        except Rejected as error:
            # One refused stream fails the command for all.
            if len(batch) == 1:
                self._end(batch[0], error)
            else:
                middle = len(batch) // 2
                await self._read(batch[:middle])
                await self._read(batch[middle:])
            return
        events = []
        for key, entries in reply or ():
            subscription = by_key[key]
            if not self._is_current(subscription):
                continue
            for entry_id, fields in entries:
                position, entry = Position.parse(entry_id), decode_or_end(fields[1])
                if subscription.is_new(position, entry):
                    events.append(StreamEntry(subscription.request_id, self._kind, position, entry))
        self._deliver(events)

    async def _rewind_if_ahead(self, subscription: _Subscription) -> None:
        """Reads a stream from its start if the server has lost its last entries: its end may come before them."""
        if not subscription.may_be_ahead:
            return
        key = self._keys.stream(subscription.request_id, self._kind)
        # A stream that cannot be read is ended by the read that follows.
        with contextlib.suppress(Rejected):
            last = await self._pool.run(scripts.LAST_POSITION, [key], [])
            if last is not None and Position.parse(last) < subscription.after:
                subscription.after = STREAM_START
        subscription.may_be_ahead = False

    def _is_current(self, subscription: _Subscription) -> bool:
        return self._subscriptions.get(subscription.request_id) is subscription

    def _end(self, subscription: _Subscription, error: Rejected) -> None:
        """Ends a stream that cannot be read."""
        if not self._is_current(subscription):
            return
        request_id = subscription.request_id
        message = "the %s stream of request %s cannot be read: %s"
        log.error(message, self._kind, request_id, error, extra=logs.of_request(request_id))
        self.unsubscribe(request_id)
        end = End(EndReason.ERROR, f"the {self._kind} stream of this request cannot be read")
        at = Position(subscription.after.frames, END_SEQUENCE)
        self._deliver([StreamEntry(request_id, self._kind, at, end)])


class RedisReader:
    """Implements `base.Reader`."""

    def __init__(self, pool: CommandPool, keys: Keys) -> None:
        self._pool = pool
        self._keys = keys
        self._channels: dict[StreamKind, _Channel] = {}
        self._control = StreamTail(pool, keys.control, lambda: None, self._on_cancelled)
        self._tasks: list[asyncio.Task[None]] = []
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self._started = False
        self._closed = False

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        self._discard(request_id, kind)
        channel = self._channels.get(kind)
        if channel is None:
            channel = self._channels[kind] = _Channel(self._pool, self._keys, kind, self._deliver)
            self._spawn(*channel.loops())
        channel.subscribe(request_id, after)

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        self._discard(request_id, kind)
        if (channel := self._channels.get(kind)) is not None:
            channel.unsubscribe(request_id)

    async def read(self) -> Sequence[Event]:
        if not self._started and not self._closed:
            self._started = True
            self._spawn(self._control.run())
        while not self._closed:
            if self._events:
                events, self._events = self._events, []
                return events
            if self._failure is not None:
                raise self._failure
            self._wake.clear()
            await self._wake.wait()
        return ()

    async def close(self) -> None:
        self._closed = True
        self._wake.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, *loops: Coroutine[Any, Any, None]) -> None:
        for loop in loops:
            task = asyncio.create_task(loop)
            task.add_done_callback(self._on_task_done)
            self._tasks.append(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Passes an unexpected exception on to the caller of `read`."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._wake.set()

    def _discard(self, request_id: str, kind: StreamKind) -> None:
        self._events = [
            event
            for event in self._events
            if isinstance(event, Cancelled) or (event.request_id, event.kind) != (request_id, kind)
        ]

    def _deliver(self, events: Sequence[Event]) -> None:
        if events:
            self._events += events
            self._wake.set()

    def _on_cancelled(self, entries: Entries) -> None:
        self._deliver([Cancelled(fields[1].decode()) for _, fields in entries])
