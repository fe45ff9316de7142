"""The connector within one process and one event loop: for tests and for stages that share a process.

Every `MemoryConnector` given the same `MemoryStreams` is one replica of the same pipeline. Waiting is by event: the
waiting side looks and then waits without yielding in between, so a wake-up cannot fall into the gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from syrinx_stages.connector.base import (
    CLAIM_SECONDS,
    AdmissionLimits,
    Append,
    Cancelled,
    Claim,
    ConnectorError,
    Event,
    Gone,
    QueueState,
    StreamEntry,
    Superseded,
    Ticket,
)
from syrinx_stages.connector.memory_streams import MemoryStream, MemoryStreams, Reads
from syrinx_stages.contract.keys import Group, Position, StreamKind
from syrinx_stages.contract.messages import SpeechRequest


class Source(Protocol):
    """What a reader in memory follows."""

    readers: set[Reads]
    """Told of what is written and cancelled."""

    def stream(self, request_id: str, kind: StreamKind) -> MemoryStream | None:
        """A request's stream, unless it is gone."""


class MemoryReader:
    """See `base.Reader`."""

    def __init__(self, streams: Source) -> None:
        self._streams = streams
        self._watched: dict[tuple[str, StreamKind], Position] = {}
        self._news: dict[tuple[str, StreamKind], None] = {}
        self._cancelled: list[str] = []
        self._wake = asyncio.Event()
        self._closed = False
        streams.readers.add(self)

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        """Follows a stream from behind `after`."""
        self._watched[request_id, kind] = after
        self.notice(request_id, kind)

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        """Stops following it."""
        self._watched.pop((request_id, kind), None)

    def notice(self, request_id: str, kind: StreamKind) -> None:
        """A stream was written to."""
        if (request_id, kind) in self._watched:
            self._news[request_id, kind] = None
            self._wake.set()

    def cancel(self, request_id: str) -> None:
        """A request was released before its end."""
        self._cancelled.append(request_id)
        self._wake.set()

    async def read(self) -> Sequence[Event]:
        """Waits for the next events."""
        while not self._closed:
            if events := self._take():
                return events
            self._wake.clear()
            await self._wake.wait()
        return ()

    def _take(self) -> list[Event]:
        events: list[Event] = [Cancelled(request_id) for request_id in self._cancelled]
        self._cancelled.clear()
        for request_id, kind in self._news:
            position = self._watched.get((request_id, kind))
            stream = self._streams.stream(request_id, kind)
            if position is None or stream is None:
                continue
            for at, entry in stream.after(position):
                events.append(StreamEntry(request_id, kind, at, entry))
                self._watched[request_id, kind] = at
        self._news.clear()
        return events

    async def close(self) -> None:
        """Ends a waiting `read`."""
        self._closed = True
        self._watched.clear()
        self._streams.readers.discard(self)
        self._wake.set()


class MemoryConsumer:
    """See `base.Consumer`."""

    def __init__(self, streams: MemoryStreams, group: Group, name: str) -> None:
        self._streams = streams
        self._group = group
        self._name = name
        self._held: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._interrupted = False
        self._closed = False
        streams.consumers.add(self)

    def notice(self) -> None:
        """A request was submitted."""
        self._wake.set()

    async def claim(self, count: int) -> Sequence[Claim]:
        """Waits for up to `count` unclaimed requests."""
        self._interrupted = False
        deadline = asyncio.get_running_loop().time() + CLAIM_SECONDS
        while not (self._interrupted or self._closed):
            if claims := self._streams.deliver(self._group, self._name, count):
                return self._hold(claims)
            self._wake.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()
            except TimeoutError:
                break
        return ()

    async def take_over(self, count: int) -> Sequence[Claim]:
        """Up to `count` requests whose owner fell silent, and this consumer's own from an earlier life."""
        return self._hold(self._streams.take_over(self._group, self._name, count, self._held.keys()))

    def _hold(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        self._held.update((claim.entry_id, claim.request.id) for claim in claims)
        return claims

    def forget(self, request_id: str) -> None:
        """Serves a request no longer and says nothing."""
        for entry_id in [entry_id for entry_id, held in self._held.items() if held == request_id]:
            del self._held[entry_id]

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        """Keeps claims; returns those that are no longer this consumer's."""
        lost = [entry_id for entry_id in entry_ids if not self._streams.refresh(self._group, self._name, entry_id)]
        self._drop(lost)
        return lost

    async def finish(self, entry_id: str) -> None:
        """Gives a claim up for good without writing."""
        self._streams.finish(self._group, entry_id)
        self._drop([entry_id])

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        """Lets others take these claims over at once."""
        for entry_id in entry_ids:
            self._streams.hand_over(self._group, self._name, entry_id)
        self._drop(entry_ids)

    def _drop(self, entry_ids: Sequence[str]) -> None:
        for entry_id in entry_ids:
            self._held.pop(entry_id, None)

    def interrupt(self) -> None:
        """Makes a waiting `claim` return soon."""
        self._interrupted = True
        self._wake.set()

    async def close(self) -> None:
        """Ends a waiting `claim`."""
        self._closed = True
        self._streams.consumers.discard(self)
        self._streams.leave(self._group, self._name)
        self._wake.set()


class MemoryConnector:
    """See `base.Connector`."""

    def __init__(self, streams: MemoryStreams) -> None:
        self._streams = streams
        self._readers: list[MemoryReader] = []
        self._consumers: list[MemoryConsumer] = []
        self._closed = False

    def _open(self) -> MemoryStreams:
        if self._closed:
            raise ConnectorError("the connector is closed")
        return self._streams

    async def submit(self, request: SpeechRequest, limits: AdmissionLimits, reference: bytes | None = None) -> Ticket:
        """Creates the request's streams and queues it."""
        return self._open().submit(request, limits, reference)

    def deliver_locally(self, appends: Sequence[Append]) -> None:
        """Readers have what was appended as soon."""

    async def append(self, appends: Sequence[Append]) -> Sequence[Gone | Superseded | None]:
        """Writes entries; one outcome each."""
        return [self._append(append) for append in appends]

    def _append(self, append: Append) -> Gone | Superseded | None:
        outcome = self._open().append(append)
        if outcome is not None or append.finishes is not None:
            for consumer in self._consumers:
                consumer.forget(append.request_id)
        return outcome

    async def report_playback(self, frames: Mapping[str, int]) -> None:
        """Says how far clients have been served."""
        for request_id, count in frames.items():
            self._open().report_playback(request_id, count)

    async def release(self, ticket: Ticket) -> None:
        """Deletes the request and all its streams and tells the stages."""
        self._open().release(ticket)

    async def history(self, request_id: str, kind: StreamKind) -> Sequence[StreamEntry]:
        """What a stream holds now."""
        stream = self._open().stream(request_id, kind)
        return [StreamEntry(request_id, kind, at, entry) for at, entry in stream.entries] if stream else ()

    async def last_position(self, request_id: str, kind: StreamKind) -> Position | None:
        """The last position ever written to a stream."""
        stream = self._open().stream(request_id, kind)
        return stream.last if stream else None

    async def reference(self, request_id: str) -> bytes | None:
        """The reference audio."""
        return self._open().reference(request_id)

    async def queue(self, group: Group) -> QueueState:
        """Requests waiting for a group."""
        return self._open().queue(group)

    async def has_live_consumer(self, group: Group, seconds: float) -> bool:
        """Whether a replica of the group has looked for work of late."""
        return self._open().has_live_consumer(group, seconds)

    async def ping(self) -> None:
        """Raises `ConnectorError` once closed."""
        self._open()

    def reader(self) -> MemoryReader:
        """A reader of cancellations and streams."""
        reader = MemoryReader(self._open())
        self._readers.append(reader)
        return reader

    def consumer(self, group: Group, name: str) -> MemoryConsumer:
        """Joins a group."""
        consumer = MemoryConsumer(self._open(), group, name)
        self._consumers.append(consumer)
        return consumer

    async def close(self) -> None:
        """Ends everything that waits."""
        self._closed = True
        for consumer in self._consumers:
            await consumer.close()
        for reader in self._readers:
            await reader.close()

    def statistics(self) -> Mapping[str, float]:
        """Memory has no errors."""
        return {"errors": 0.0}
