"""The state behind the memory connector, the counterpart of Redis: plain synchronous operations."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple, Protocol

from msgspec import Struct

from syrinx_stages.connector.base import (
    LEASE_SECONDS,
    OUTPUT_STREAM,
    STREAM_TTL_SECONDS,
    WRITER_GROUP,
    AdmissionLimits,
    Append,
    Claim,
    ConnectorError,
    Gone,
    QueueState,
    Superseded,
    Ticket,
    queue_full_error,
)
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, Group, Position, StreamKind
from syrinx_stages.contract.messages import Entry, PlaybackProgress, SpeechRequest, StreamCreated


class StreamListener(Protocol):
    """Is notified of writes and cancellations."""

    def notify(self, request_id: str, kind: StreamKind) -> None:
        """A stream was written to."""

    def cancel(self, request_id: str) -> None:
        """A request was released before its end."""


class MemoryStream:
    """One stream of a request."""

    def __init__(self, expires: float) -> None:
        self.entries: list[tuple[Position, Entry]] = [(STREAM_CREATED, StreamCreated())]
        self.last = STREAM_CREATED
        self.expires = expires

    def after(self, position: Position) -> Sequence[tuple[Position, Entry]]:
        """Returns the entries after a position."""
        return self.entries[bisect_right(self.entries, position, key=lambda item: item[0]) :]

    def write(self, position: Position, entry: Entry) -> bool:
        """Appends an entry. Returns False if the stream is already at or past the position."""
        if position <= self.last:
            return False
        self.entries.append((position, entry))
        self.last = position
        return True


class _Queued(NamedTuple):
    """A request in the queue."""

    request: SpeechRequest
    at: float


class _Pending(Struct):
    """A request that was delivered and not finished."""

    owner: str
    since: float
    deliveries: int = 1


class _GroupState(Struct):
    """The requests that a group has to claim or to finish, by entry ID."""

    waiting: dict[str, None] = {}
    pending: dict[str, _Pending] = {}
    last_seen: dict[str, float] = {}
    """Time of each consumer's last `take_over` or `refresh`."""


class MemoryStreams:
    """All streams of one shard. `clock` returns seconds; leases and expiry follow it."""

    def __init__(self, lease_seconds: float = LEASE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease_seconds
        self._clock = clock
        self._submitted = 0
        self._queued: dict[str, _Queued] = {}
        self._groups = {group: _GroupState() for group in Group}
        self._streams: dict[tuple[str, StreamKind], MemoryStream] = {}
        self._references: dict[str, bytes] = {}
        self.listeners: set[StreamListener] = set()
        self.queue_changed: set[asyncio.Event] = set()
        """Set when a request is submitted; each waiting consumer adds its own."""

    def __len__(self) -> int:
        """Returns the number of queued requests, streams and references."""
        self._expire()
        return len(self._queued) + len(self._streams) + len(self._references)

    # Streams ------------------------------------------------------------------------------------------------------

    def stream(self, request_id: str, kind: StreamKind) -> MemoryStream | None:
        """Returns a request's stream, or None if it is gone."""
        stream = self._streams.get((request_id, kind))
        return stream if stream and stream.expires > self._clock() else None

    def reference(self, request_id: str) -> bytes | None:
        """Returns a request's reference audio, or None if it is gone."""
        self._expire()
        return self._references.get(request_id)

    def append(self, append: Append) -> Gone | Superseded | None:
        """Writes one entry and, if it was accepted, finishes the claim that it names."""
        stream = self.stream(append.request_id, append.kind)
        if stream is None:
            return Gone(f"request {append.request_id} was released or has expired")
        if not stream.write(append.position, append.entry):
            return Superseded(f"the {append.kind} stream of request {append.request_id} is past {append.position}")
        stream.expires = self._clock() + STREAM_TTL_SECONDS
        if append.finishes is not None:
            self.finish(WRITER_GROUP[append.kind], append.finishes)
        self._notify(append.request_id, append.kind)
        return None

    def report_playback(self, request_id: str, frames: int) -> None:
        """Records the client's position, trims the audio, and renews the expiry of the request's streams."""
        playback = self.stream(request_id, StreamKind.PLAYBACK)
        if playback is None or not playback.write(Position(frames), PlaybackProgress()):
            return
        del playback.entries[:-1]
        if audio := self.stream(request_id, StreamKind.AUDIO):
            audio.entries = [item for item in audio.entries if item[0] >= Position(frames, END_SEQUENCE)]
        for kind in StreamKind:
            if stream := self.stream(request_id, kind):
                stream.expires = max(stream.expires, self._clock() + STREAM_TTL_SECONDS)
        self._notify(request_id, StreamKind.PLAYBACK)

    def _notify(self, request_id: str, kind: StreamKind) -> None:
        for listener in self.listeners:
            listener.notify(request_id, kind)

    def _expire(self) -> None:
        for key in [key for key in self._streams if self.stream(*key) is None]:
            del self._streams[key]
        alive = {request_id for request_id, _ in self._streams}
        for request_id in [request_id for request_id in self._references if request_id not in alive]:
            del self._references[request_id]

    # Requests -----------------------------------------------------------------------------------------------------

    def submit(self, request: SpeechRequest, limits: AdmissionLimits, reference: bytes | None) -> Ticket:
        """Queues a request for both groups and creates its streams. Raises `QueueFull`."""
        self._expire()
        state = self.queue(Group.TALKERS)
        if state.length >= limits.max_queue or state.oldest_seconds > limits.max_queue_seconds:
            raise queue_full_error(state)
        if self.stream(request.id, StreamKind.CODES):
            raise ConnectorError(f"request id {request.id} is in use")
        self._submitted += 1
        entry_id = f"{self._submitted}-0"
        self._queued[entry_id] = _Queued(request, self._clock())
        expires = self._clock() + STREAM_TTL_SECONDS + limits.max_queue_seconds
        for kind in StreamKind:
            self._streams[request.id, kind] = MemoryStream(expires)
        if reference is not None:
            self._references[request.id] = reference
        for group in self._groups.values():
            group.waiting[entry_id] = None
        for event in self.queue_changed:
            event.set()
        for kind in StreamKind:
            self._notify(request.id, kind)
        return Ticket(request.id, entry_id)

    def queue(self, group: Group) -> QueueState:
        """Returns the state of the requests that no consumer of the group has claimed."""
        waiting = self._groups[group].waiting
        if not waiting:
            return QueueState(0, 0.0)
        return QueueState(len(waiting), self._clock() - self._queued[next(iter(waiting))].at)

    def release(self, ticket: Ticket) -> None:
        """Deletes a request, and notifies the listeners if it had not ended."""
        if self._remove(ticket.entry_id):
            for listener in self.listeners:
                listener.cancel(ticket.request_id)
        for kind in StreamKind:
            self._streams.pop((ticket.request_id, kind), None)
        self._references.pop(ticket.request_id, None)

    def _remove(self, entry_id: str) -> bool:
        for group in self._groups.values():
            group.waiting.pop(entry_id, None)
            group.pending.pop(entry_id, None)
        return self._queued.pop(entry_id, None) is not None

    # Claims -------------------------------------------------------------------------------------------------------

    def deliver(self, group: Group, owner: str, count: int) -> list[Claim]:
        """Delivers up to `count` waiting requests to an owner, oldest first."""
        state = self._groups[group]
        claims: list[Claim] = []
        while state.waiting and len(claims) < count:
            entry_id = next(iter(state.waiting))
            del state.waiting[entry_id]
            state.pending[entry_id] = _Pending(owner, self._clock())
            claims += self._claim_if_wanted(group, entry_id, redelivered=False)
        return claims

    def take_over(self, group: Group, owner: str, count: int, held: Set[str]) -> list[Claim]:
        """Delivers requests with an expired lease, and the owner's own, except those that it already holds."""
        now = self._groups[group].last_seen[owner] = self._clock()
        claims: list[Claim] = []
        for entry_id, pending in list(self._groups[group].pending.items()):
            available = pending.owner == owner or now - pending.since >= self._lease
            if len(claims) < count and available and entry_id not in held:
                pending.owner, pending.since = owner, now
                pending.deliveries += 1
                claims += self._claim_if_wanted(group, entry_id, redelivered=True)
        return claims

    def _claim_if_wanted(self, group: Group, entry_id: str, redelivered: bool) -> list[Claim]:
        """Returns the claim; finishes it and returns nothing if no client waits for the result."""
        request = self._queued[entry_id].request
        if self.stream(request.id, OUTPUT_STREAM[group]) is None:
            self.finish(group, entry_id)
            return []
        return [Claim(entry_id, request, self._groups[group].pending[entry_id].deliveries, redelivered)]

    def refresh(self, group: Group, owner: str, entry_id: str) -> bool:
        """Renews a lease. Returns False if the owner has lost the claim or no client waits for the result."""
        pending = self._groups[group].pending.get(entry_id)
        if pending is None or pending.owner != owner or not self._claim_if_wanted(group, entry_id, redelivered=True):
            return False
        pending.since = self._groups[group].last_seen[owner] = self._clock()
        return True

    def has_live_consumer(self, group: Group, seconds: float) -> bool:
        """Returns whether a consumer of the group was seen within the last `seconds`."""
        return any(self._clock() - at <= seconds for at in self._groups[group].last_seen.values())

    def leave(self, group: Group, owner: str) -> None:
        """Removes a consumer from its group."""
        self._groups[group].last_seen.pop(owner, None)

    def finish(self, group: Group, entry_id: str) -> None:
        """Finishes a claim. A request that the codecs have finished leaves the queue."""
        self._groups[group].pending.pop(entry_id, None)
        if group is Group.CODECS:
            self._remove(entry_id)

    def hand_over(self, group: Group, owner: str, entry_id: str) -> None:
        """Expires a claim's lease now and does not count the delivery."""
        pending = self._groups[group].pending.get(entry_id)
        if pending is not None and pending.owner == owner:
            pending.since = float("-inf")
            pending.deliveries -= 1
