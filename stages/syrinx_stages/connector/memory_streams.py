"""The state behind the memory connector: what Redis holds for the other one, as plain synchronous operations."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence, Set
from typing import Protocol

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


class Reads(Protocol):
    """A reader, as those tell it who write."""

    def notice(self, request_id: str, kind: StreamKind) -> None:
        """A stream was written to."""

    def cancel(self, request_id: str) -> None:
        """A request was released before its end."""


class _Claims(Protocol):
    def notice(self) -> None: ...


class MemoryStream:
    """One request's stream of one kind."""

    def __init__(self, expires: float) -> None:
        self.entries: list[tuple[Position, Entry]] = [(STREAM_CREATED, StreamCreated())]
        self.last = STREAM_CREATED
        self.expires = expires

    def after(self, position: Position) -> Sequence[tuple[Position, Entry]]:
        """The entries behind a position."""
        return self.entries[bisect_right(self.entries, position, key=lambda item: item[0]) :]

    def write(self, position: Position, entry: Entry) -> bool:
        """Appends, or says False if the stream is already there."""
        if position <= self.last:
            return False
        self.entries.append((position, entry))
        self.last = position
        return True


class _Queued:
    """A request in the queue."""

    def __init__(self, request: SpeechRequest, at: float) -> None:
        self.request = request
        self.at = at


class _Pending:
    """A delivered request that was not finished."""

    def __init__(self, owner: str, since: float) -> None:
        self.owner = owner
        self.since = since
        self.deliveries = 1


class _Group:
    """What a group has not been given yet, and what it has not finished."""

    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}
        self.pending: dict[str, _Pending] = {}
        self.seen: dict[str, float] = {}
        """When each consumer last looked for work."""


class MemoryStreams:
    """All streams of one shard. `clock` counts seconds; leases and expiry follow it."""

    def __init__(self, lease_seconds: float = LEASE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease_seconds
        self._clock = clock
        self._submitted = 0
        self._queued: dict[str, _Queued] = {}
        self._groups = {group: _Group() for group in Group}
        self._streams: dict[tuple[str, StreamKind], MemoryStream] = {}
        self._references: dict[str, bytes] = {}
        self.readers: set[Reads] = set()
        self.consumers: set[_Claims] = set()

    def __len__(self) -> int:
        """Things held: queued requests, streams and references."""
        self._expire()
        return len(self._queued) + len(self._streams) + len(self._references)

    # Streams ------------------------------------------------------------------------------------------------------

    def stream(self, request_id: str, kind: StreamKind) -> MemoryStream | None:
        """A request's stream, unless it is gone."""
        stream = self._streams.get((request_id, kind))
        return stream if stream and stream.expires > self._clock() else None

    def reference(self, request_id: str) -> bytes | None:
        """A request's reference audio, unless it is gone."""
        self._expire()
        return self._references.get(request_id)

    def append(self, append: Append) -> Gone | Superseded | None:
        """Writes one entry and, if it was accepted, gives up the claim it finishes."""
        stream = self.stream(append.request_id, append.kind)
        if stream is None:
            return Gone(f"request {append.request_id} was released or has expired")
        if not stream.write(append.position, append.entry):
            return Superseded(f"the {append.kind} stream of request {append.request_id} is past {append.position}")
        stream.expires = self._clock() + STREAM_TTL_SECONDS
        if append.finishes is not None:
            self.finish(WRITER_GROUP[append.kind], append.finishes)
        self._notice(append.request_id, append.kind)
        return None

    def report_playback(self, request_id: str, frames: int) -> None:
        """Moves the client's position, trims the audio and keeps every stream of the request."""
        played = self.stream(request_id, StreamKind.PLAYBACK)
        if played is None or not played.write(Position(frames), PlaybackProgress()):
            return
        del played.entries[:-1]
        if audio := self.stream(request_id, StreamKind.AUDIO):
            audio.entries = [item for item in audio.entries if item[0] >= Position(frames, END_SEQUENCE)]
        for kind in StreamKind:
            if stream := self.stream(request_id, kind):
                stream.expires = max(stream.expires, self._clock() + STREAM_TTL_SECONDS)
        self._notice(request_id, StreamKind.PLAYBACK)

    def _notice(self, request_id: str, kind: StreamKind) -> None:
        for reader in self.readers:
            reader.notice(request_id, kind)

    def _expire(self) -> None:
        for key in [key for key in self._streams if self.stream(*key) is None]:
            del self._streams[key]
        alive = {request_id for request_id, _ in self._streams}
        for request_id in [request_id for request_id in self._references if request_id not in alive]:
            del self._references[request_id]

    # Requests -----------------------------------------------------------------------------------------------------

    def submit(self, request: SpeechRequest, limits: AdmissionLimits, reference: bytes | None) -> Ticket:
        """Queues a request for both groups and creates its streams."""
        self._expire()
        self._admit(self.queue(Group.TALKERS), limits)
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
        for consumer in self.consumers:
            consumer.notice()
        for kind in StreamKind:
            self._notice(request.id, kind)
        return Ticket(request.id, entry_id)

    def _admit(self, state: QueueState, limits: AdmissionLimits) -> None:
        if state.length >= limits.max_queue or state.oldest_seconds > limits.max_queue_seconds:
            raise queue_full_error(state)

    def queue(self, group: Group) -> QueueState:
        """Requests that nobody of the group has claimed."""
        waiting = self._groups[group].waiting
        if not waiting:
            return QueueState(0, 0.0)
        return QueueState(len(waiting), self._clock() - self._queued[next(iter(waiting))].at)

    def release(self, ticket: Ticket) -> None:
        """Forgets a request; the readers hear of it unless it had ended."""
        if self._remove(ticket.entry_id):
            for reader in self.readers:
                reader.cancel(ticket.request_id)
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
        """Gives up to `count` waiting requests to an owner, oldest first."""
        state = self._groups[group]
        claims: list[Claim] = []
        while state.waiting and len(claims) < count:
            entry_id = next(iter(state.waiting))
            del state.waiting[entry_id]
            state.pending[entry_id] = _Pending(owner, self._clock())
            claims += self._wanted(group, entry_id, redelivered=False)
        return claims

    def take_over(self, group: Group, owner: str, count: int, held: Set[str]) -> list[Claim]:
        """Moves requests left alone for a lease, and an owner's own, to that owner, but for those it holds."""
        now = self._groups[group].seen[owner] = self._clock()
        claims: list[Claim] = []
        for entry_id, pending in list(self._groups[group].pending.items()):
            silent = pending.owner == owner or now - pending.since >= self._lease
            if len(claims) < count and silent and entry_id not in held:
                pending.owner, pending.since = owner, now
                pending.deliveries += 1
                claims += self._wanted(group, entry_id, redelivered=True)
        return claims

    def _wanted(self, group: Group, entry_id: str, redelivered: bool) -> list[Claim]:
        """The claim, or nothing if nobody waits for its result any more."""
        request = self._queued[entry_id].request
        if self.stream(request.id, OUTPUT_STREAM[group]) is None:
            self.finish(group, entry_id)
            return []
        return [Claim(entry_id, request, self._groups[group].pending[entry_id].deliveries, redelivered)]

    def refresh(self, group: Group, owner: str, entry_id: str) -> bool:
        """Renews a lease; False if it is not the owner's any more or nobody waits for the result."""
        pending = self._groups[group].pending.get(entry_id)
        if pending is None or pending.owner != owner or not self._wanted(group, entry_id, redelivered=True):
            return False
        pending.since = self._groups[group].seen[owner] = self._clock()
        return True

    def has_live_consumer(self, group: Group, seconds: float) -> bool:
        """Whether a consumer of the group has looked for work of late."""
        return any(self._clock() - at <= seconds for at in self._groups[group].seen.values())

    def leave(self, group: Group, owner: str) -> None:
        """A consumer looks for work no more."""
        self._groups[group].seen.pop(owner, None)

    def finish(self, group: Group, entry_id: str) -> None:
        """Ends a claim. What the codecs have finished is done altogether."""
        self._groups[group].pending.pop(entry_id, None)
        if group is Group.CODECS:
            self._remove(entry_id)

    def hand_over(self, group: Group, owner: str, entry_id: str) -> None:
        """Makes a claim's lease run out now, and does not count the delivery."""
        pending = self._groups[group].pending.get(entry_id)
        if pending is not None and pending.owner == owner:
            pending.since = float("-inf")
            pending.deliveries -= 1
