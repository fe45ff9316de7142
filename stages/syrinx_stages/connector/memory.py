"""The connector within one process and one event loop, for tests and for stages that share a process.

Every `MemoryConnector` on the same `MemoryStreams` is one replica of the same pipeline. Waiting uses events: a waiter
checks and then waits without yielding in between, so no wake-up is lost.
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
from syrinx_stages.connector.memory_streams import MemoryStream, MemoryStreams, StreamListener
from syrinx_stages.contract.keys import Group, Position, StreamKind
from syrinx_stages.contract.messages import SpeechRequest


class StreamSource(Protocol):
    """The streams that a `MemoryReader` reads."""

    listeners: set[StreamListener]
    """Notified of writes and cancellations."""

    def stream(self, request_id: str, kind: StreamKind) -> MemoryStream | None:
        """Returns a request's stream, or None if it is gone."""


class MemoryReader:
    """Implements `base.Reader`."""

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._positions: dict[tuple[str, StreamKind], Position] = {}
        self._changed: dict[tuple[str, StreamKind], None] = {}
        self._cancelled: list[str] = []
        self._wake = asyncio.Event()
        self._closed = False
        source.listeners.add(self)

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        self._positions[request_id, kind] = after
        self.notify(request_id, kind)

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        self._positions.pop((request_id, kind), None)

    def notify(self, request_id: str, kind: StreamKind) -> None:
        """Notes that a stream was written to."""
        if (request_id, kind) in self._positions:
            self._changed[request_id, kind] = None
            self._wake.set()

    def cancel(self, request_id: str) -> None:
        """Notes that a request was released before its end."""
        self._cancelled.append(request_id)
        self._wake.set()

    async def read(self) -> Sequence[Event]:
        while not self._closed:
            if events := self._take():
                return events
            self._wake.clear()
            await self._wake.wait()
        return ()

    def _take(self) -> list[Event]:
        events: list[Event] = [Cancelled(request_id) for request_id in self._cancelled]
        self._cancelled.clear()
        for request_id, kind in self._changed:
            after = self._positions.get((request_id, kind))
            stream = self._source.stream(request_id, kind)
            if after is None or stream is None:
                continue
            for position, entry in stream.after(after):
                events.append(StreamEntry(request_id, kind, position, entry))
                self._positions[request_id, kind] = position
        self._changed.clear()
        return events

    async def close(self) -> None:
        self._closed = True
        self._positions.clear()
        self._source.listeners.discard(self)
        self._wake.set()


class MemoryConsumer:
    """Implements `base.Consumer`."""

    def __init__(self, streams: MemoryStreams, group: Group, name: str) -> None:
        self._streams = streams
        self._group = group
        self._name = name
        self._held: dict[str, str] = {}
        """Claimed requests: request ID by entry ID."""
        self._wake = asyncio.Event()
        self._interrupted = False
        self._closed = False
        streams.queue_changed.add(self._wake)

    async def claim(self, count: int) -> Sequence[Claim]:
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
        return self._hold(self._streams.take_over(self._group, self._name, count, self._held.keys()))

    def _hold(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        self._held.update((claim.entry_id, claim.request.id) for claim in claims)
        return claims

    def forget(self, request_id: str) -> None:
        self._remove([entry_id for entry_id, held in self._held.items() if held == request_id])

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        lost = [entry_id for entry_id in entry_ids if not self._streams.refresh(self._group, self._name, entry_id)]
        self._remove(lost)
        return lost

    async def finish(self, entry_id: str) -> None:
        self._streams.finish(self._group, entry_id)
        self._remove([entry_id])

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        for entry_id in entry_ids:
            self._streams.hand_over(self._group, self._name, entry_id)
        self._remove(entry_ids)

    def _remove(self, entry_ids: Sequence[str]) -> None:
        for entry_id in entry_ids:
            self._held.pop(entry_id, None)

    def interrupt(self) -> None:
        self._interrupted = True
        self._wake.set()

    async def close(self) -> None:
        self._closed = True
        self._streams.queue_changed.discard(self._wake)
        self._streams.leave(self._group, self._name)
        self._wake.set()


class MemoryConnector:
    """Implements `base.Connector`. Every method raises `ConnectorError` after `close`."""

    errors = 0

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
        return self._open().submit(request, limits, reference)

    def deliver_locally(self, appends: Sequence[Append]) -> None:
        """Does nothing: `append` delivers just as fast."""

    async def append(self, appends: Sequence[Append]) -> Sequence[Gone | Superseded | None]:
        return [self._append(append) for append in appends]

    def _append(self, append: Append) -> Gone | Superseded | None:
        outcome = self._open().append(append)
        if outcome is not None or append.finishes is not None:
            for consumer in self._consumers:
                consumer.forget(append.request_id)
        return outcome

    async def report_playback(self, frames: Mapping[str, int]) -> None:
        for request_id, count in frames.items():
            self._open().report_playback(request_id, count)

    async def release(self, ticket: Ticket) -> None:
        self._open().release(ticket)

    async def history(self, request_id: str, kind: StreamKind) -> Sequence[StreamEntry]:
        stream = self._open().stream(request_id, kind)
        return [StreamEntry(request_id, kind, at, entry) for at, entry in stream.entries] if stream else ()

    async def last_position(self, request_id: str, kind: StreamKind) -> Position | None:
        stream = self._open().stream(request_id, kind)
        return stream.last if stream else None

    async def reference(self, request_id: str) -> bytes | None:
        return self._open().reference(request_id)

    async def queue(self, group: Group) -> QueueState:
        return self._open().queue(group)

    async def has_live_consumer(self, group: Group, seconds: float) -> bool:
        return self._open().has_live_consumer(group, seconds)

    async def ping(self) -> None:
        self._open()

    def reader(self) -> MemoryReader:
        reader = MemoryReader(self._open())
        self._readers.append(reader)
        return reader

    def consumer(self, group: Group, name: str) -> MemoryConsumer:
        consumer = MemoryConsumer(self._open(), group, name)
        self._consumers.append(consumer)
        return consumer

    async def close(self) -> None:
        self._closed = True
        for consumer in self._consumers:
            await consumer.close()
        for reader in self._readers:
            await reader.close()
