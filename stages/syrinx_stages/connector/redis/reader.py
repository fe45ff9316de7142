"""The Redis reader: reads many request streams through its inbox."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from syrinx_stages.connector.base import Cancelled, ConnectorError, Event, StreamEntry
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.connection import ReplyError
from syrinx_stages.connector.redis.inbox import Entries, InboxTail, stream_name, unpack
from syrinx_stages.connector.redis.pool import CommandPool, backoff
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

    def __init__(self, request_id: str, kind: StreamKind, after: Position) -> None:
        self.request_id = request_id
        self.kind = kind
        self.after = after
        """Where to read on."""
        self.reading = False
        """A read of the stream is in progress; it may or may not include entries written meanwhile."""
        self.has_inbox = False
        """Writers know that the inbox is a reader of the stream."""
        self.may_be_ahead = False
        """The server may have lost the last entries that were read, and its stream may end before them."""
        self._delivered = after

    @property
    def name(self) -> bytes:
        """The name of the stream in the inbox."""
        return stream_name(self.request_id, self.kind)

    def is_new(self, position: Position, entry: Entry) -> bool:
        """Advances to an entry that was read. Returns whether to deliver it.

        After a fail-over, the end may come before entries that were delivered.
        """
        self.after = position
        if position <= self._delivered and not isinstance(entry, End):
            return False
        self._delivered = max(self._delivered, position)
        return True

    def event(self, position: Position, payload: bytes) -> StreamEntry | None:
        """Advances to an entry that was read, and returns it if it is new."""
        entry = decode_or_end(payload)
        return StreamEntry(self.request_id, self.kind, position, entry) if self.is_new(position, entry) else None


class RedisReader:
    """Implements `base.Reader`.

    The inbox delivers the entries of the streams. A stream itself is read when the subscription is new, when the inbox
    only names it, and when entries may have been missed. The script that reads it first also makes the inbox one of its
    readers, so nothing is written in between. Until the reply, inbox entries of the stream only cause another read.
    """

    def __init__(self, pool: CommandPool, keys: Keys) -> None:
        self._pool = pool
        self._keys = keys
        self._inbox = keys.inbox(f"{random.getrandbits(64):x}")
        self._control = keys.control.encode()
        self._tail = InboxTail(pool, self._inbox, keys.control, self._on_connected, self._on_entries)
        self._subscriptions: dict[bytes, _Subscription] = {}
        """By the name of the stream in the inbox."""
        self._to_read: dict[bytes, _Subscription] = {}
        self._read_requested = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self._closed = False

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        self._discard(request_id, kind)
        subscription = _Subscription(request_id, kind, after)
        self._subscriptions[subscription.name] = subscription
        self._request_read(subscription)
        self._start()

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        self._discard(request_id, kind)
        name = stream_name(request_id, kind)
        self._subscriptions.pop(name, None)
        self._to_read.pop(name, None)

    async def read(self) -> Sequence[Event]:
        self._start()
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
        tasks, self._tasks, self._closed = self._tasks, [], True
        self._wake.set()
        if not tasks:
            return
        self._pool.on_reconnect.remove(self._on_connected)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(ConnectorError):
            await self._pool.call(b"UNLINK", self._inbox)

    def _start(self) -> None:
        if self._tasks or self._closed:
            return
        # What this process has sent to a former primary did not make its inbox one of the readers on the present one.
        self._pool.on_reconnect.append(self._on_connected)
        self._spawn(self._tail.run())
        self._spawn(self._read_loop())

    def _spawn(self, loop: Coroutine[Any, Any, None]) -> None:
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

    # The inbox --------------------------------------------------------------------------------------------------

    def _on_connected(self) -> None:
        for subscription in self._subscriptions.values():
            self._read_anew(subscription)

    def _on_entries(self, key: bytes, entries: Entries) -> None:
        if key == self._control:
            self._deliver([Cancelled(fields[1].decode()) for _, fields in entries])
            return
        events = []
        for _, fields in entries:
            for name, position, message in unpack(fields[1]):
                subscription = self._subscriptions.get(name)
                if subscription and (event := self._received(subscription, Position.parse(position), message)):
                    events.append(event)
        self._deliver(events)

    def _received(self, subscription: _Subscription, position: Position, message: bytes) -> StreamEntry | None:
        """Returns an entry from the inbox if it is to be delivered now."""
        if subscription.name in self._to_read:
            return None
        if subscription.reading or not message:
            self._request_read(subscription)
            return None
        return subscription.event(position, message) if position > subscription.after else None

    # The streams ------------------------------------------------------------------------------------------------

    def _read_anew(self, subscription: _Subscription) -> None:
        """Requests a read of a stream of which entries or the inbox's place among its readers may be lost."""
        subscription.has_inbox, subscription.may_be_ahead = False, True
        self._request_read(subscription)

    def _request_read(self, subscription: _Subscription) -> None:
        self._to_read[subscription.name] = subscription
        # Writers add only to an inbox that exists.
        if self._tail.started:
            self._read_requested.set()

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
                if batch:
                    await self._read(list(batch.values()))
                pauses, failing = backoff(), False
            except ConnectorError as error:
                if not failing:
                    log.warning("%s", error)
                pause, failing = next(pauses), True
                for subscription in filter(self._is_current, batch.values()):
                    self._read_anew(subscription)
            for subscription in batch.values():
                subscription.reading = False
            await asyncio.sleep(pause)

    async def _read(self, batch: Sequence[_Subscription]) -> None:
        """Reads streams and delivers their entries."""
        if known := [item for item in batch if item.has_inbox]:
            await self._read_known(known)
        if others := [item for item in batch if not item.has_inbox]:
            await self._read_first(others)

    async def _read_known(self, batch: Sequence[_Subscription]) -> None:
        """Reads streams that the inbox has named: it is one of their readers. If one fails, all are read anew."""
        streams = {self._keys.stream(item.request_id, item.kind).encode(): item for item in batch}
        reply = await self._pool.call_in_turn(b"XREAD", b"STREAMS", *streams, *(str(item.after) for item in batch))
        for key, entries in reply or ():
            self._deliver_read(streams[key], entries)

    async def _read_first(self, batch: Sequence[_Subscription]) -> None:
        """Reads streams and becomes one of their readers. One that Redis refuses to read ends with an error."""
        keys, arguments = [self._inbox, self._keys.writers], list[bytes | str | int]()
        for item in batch:
            keys += (self._keys.stream(item.request_id, item.kind), self._keys.owners(item.request_id))
            arguments += (item.kind, str(item.after), int(item.may_be_ahead))
            # A reconnection meanwhile resets both.
            item.has_inbox, item.may_be_ahead = True, False
        for subscription, (was_ahead, entries) in zip(
            batch, await self._pool.run(scripts.READ, keys, arguments), strict=True
        ):
            if was_ahead and self._is_current(subscription):
                subscription.after = STREAM_START
            if isinstance(entries, ReplyError):
                self._deliver([self._end(subscription, entries)] if self._is_current(subscription) else [])
            else:
                self._deliver_read(subscription, entries)

    def _deliver_read(self, subscription: _Subscription, entries: Entries) -> None:
        if self._is_current(subscription):
            read = (subscription.event(Position.parse(entry_id), fields[1]) for entry_id, fields in entries)
            self._deliver([event for event in read if event is not None])

    def _is_current(self, subscription: _Subscription) -> bool:
        return self._subscriptions.get(subscription.name) is subscription

    def _end(self, subscription: _Subscription, error: ReplyError) -> StreamEntry:
        """Ends a stream that cannot be read."""
        request_id, kind = subscription.request_id, subscription.kind
        message = "the %s stream of request %s cannot be read: %s"
        log.error(message, kind, request_id, error, extra=logs.of_request(request_id))
        self.unsubscribe(request_id, kind)
        end = End(EndReason.ERROR, f"the {kind} stream of this request cannot be read")
        return StreamEntry(request_id, kind, Position(subscription.after.frames, END_SEQUENCE), end)
