"""The connector: what every stage may ask of the streams between them.

Two implementations keep one contract (`tests/contract/`): Redis Streams between processes, memory within one.
Ownership is by lease: who claims a request refreshes it; an entry left alone for `LEASE_SECONDS` may be taken over.

A request's streams exist from `submit` until `release`, or until nobody has written to them for
`STREAM_TTL_SECONDS`; nothing that is written later brings them back. A method that cannot reach the streams tries
again for `RETRY_SECONDS` and then raises `ConnectorError`; a `Reader` goes on trying until it is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from syrinx_stages.contract.keys import Group, Position, StreamKind
from syrinx_stages.contract.messages import Entry, SpeechRequest

LEASE_SECONDS = 2.0
"""A claim that was not refreshed for this long may be taken over."""
REFRESH_SECONDS = 0.5
"""How often an owner refreshes its claims."""
MAX_DELIVERIES = 3
"""A request that was delivered this often and is taken over once more has failed: it does not loop."""
STREAM_TTL_SECONDS = 120
"""A stream expires this long after its last write, whoever died. `played` counts as a write to all of a request's
streams; before the first write the time that the request may wait in the queue comes on top."""
CLAIM_SECONDS = 1.0
"""How long `Consumer.claim` waits for a request."""
RETRY_SECONDS = 5.0
"""How long a command is tried again while the streams cannot be reached."""

OUTPUT_STREAM = {Group.TALKERS: StreamKind.CODES, Group.CODECS: StreamKind.AUDIO}
"""The stream each group writes: while it exists, somebody waits for the result."""
WRITER_GROUP = {kind: group for group, kind in OUTPUT_STREAM.items()}
"""The group that writes a stream."""


class ConnectorError(Exception):
    """The streams cannot be reached, or answered what they never should."""


class QueueFull(ConnectorError):
    """Admission is bounded and the bound is reached. `retry_after` is a hint in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Gone(ConnectorError):
    """The request was released or has expired: nobody waits for what was to be written."""


class Superseded(ConnectorError):
    """The stream is already past this position: another replica carries the request on."""


class AdmissionLimits(Struct, frozen=True):
    """Bounds on requests that no talker has claimed; the first one reached refuses."""

    max_queue: int
    """At most this many may wait; 0 refuses every request."""
    max_queue_seconds: float
    """None is admitted while the oldest has waited for longer than this."""


class Ticket(Struct, frozen=True):
    """A submitted request: what is needed to release it."""

    request_id: str
    entry_id: str


class Claim(Struct, frozen=True):
    """A request this consumer owns now."""

    entry_id: str
    request: SpeechRequest
    deliveries: int = 1
    """Times it has been delivered to this group, this time included and hand-overs left out."""
    redelivered: bool = False
    """It was delivered before, so some of its result may have been written."""


class Append(Struct, frozen=True):
    """One entry to be written.

    `finishes` is the entry id of the writer's claim. It is given up in the same transaction, and only if the entry is
    accepted. What a codec finishes is done: the request leaves the queue for both groups.
    """

    request_id: str
    kind: StreamKind
    position: Position
    entry: Entry
    finishes: str | None = None

    def __post_init__(self) -> None:
        if self.finishes is not None and self.kind not in WRITER_GROUP:
            raise ValueError(f"finishes: no group claims a request to write its {self.kind} stream")


class StreamEntry(Struct, frozen=True):
    """One entry read from a request's stream."""

    request_id: str
    kind: StreamKind
    position: Position
    entry: Entry


class Cancelled(Struct, frozen=True):
    """A request was released by its gateway before a codec had finished it."""

    request_id: str


class QueueState(Struct, frozen=True):
    """Requests that no consumer of a group has claimed."""

    length: int
    oldest_seconds: float
    """Age of the oldest; 0 when none waits."""


Event = StreamEntry | Cancelled


def queue_full_error(state: QueueState) -> QueueFull:
    """The answer to a request that finds the queue in this state. Hint: about as long as the oldest has waited."""
    message = f"too many requests wait for a talker, the oldest for {state.oldest_seconds:.1f} s"
    return QueueFull(message, min(max(state.oldest_seconds, 1.0), 30.0))


class Reader(Protocol):
    """Follows many request streams, and the cancellations.

    `watch` and `unwatch` may be called while `read` waits: a new stream's entries wake it at once. A stream that is
    released or expires yields nothing more: whoever waits for its end keeps a deadline.
    """

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        """Follows a stream of a submitted request from behind `after`; again, if it was watched already."""

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        """Stops following it; entries already read but not yet returned are dropped."""

    async def read(self) -> Sequence[Event]:
        """Waits for the next events, in order per stream: each entry once, also across reconnects.

        An entry that cannot be decoded comes as `End` with reason `error`. Cancellations are those since the first
        `read` at the latest. One caller at a time; a caller that is cancelled loses nothing. Empty only once
        closed, and then at once. Never raises `ConnectorError`.
        """

    async def close(self) -> None:
        """Ends a waiting `read` with an empty sequence and frees the connections."""


class Consumer(Protocol):
    """One replica's membership in a group."""

    async def claim(self, count: int) -> Sequence[Claim]:
        """Waits for up to `count` unclaimed requests, oldest first; empty after `interrupt`, `close` or a quiet second.

        Requests for whose result nobody waits any more are finished and left out. One caller at a time; what was
        delivered to a caller that is cancelled meanwhile is returned by the next `claim`, or handed over by `close`.
        """

    async def take_over(self, count: int) -> Sequence[Claim]:
        """Up to `count` requests whose owner fell silent, and this consumer's own from an earlier life. No waiting.

        Call it at the start and then every half second or so: nothing else notices a replica that died.
        """

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        """Keeps claims; returns those that are no longer this consumer's (finished, released, expired, taken over)."""

    def forget(self, request_id: str) -> None:
        """Serves a request no longer and says nothing: if it is not over, whoever finds the lease run out takes it."""

    async def finish(self, entry_id: str) -> None:
        """Gives a claim up for good without writing."""

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        """Lets others take these claims over at once (drain), without counting as a silence."""

    def interrupt(self) -> None:
        """Makes a waiting `claim` return soon; whatever it had already claimed is returned, not lost."""

    async def close(self) -> None:
        """Leaves the group if nothing is owned, and frees the connections. A waiting `claim` returns empty."""


class StageConnector(Protocol):
    """What a talker or a codec asks of the streams."""

    def deliver_locally(self, appends: Sequence[Append]) -> None:
        """Entries that `append` is going to be asked to write, in order: readers of this very process may have them
        at once. A connector without such readers does nothing.
        """

    def append(self, appends: Sequence[Append]) -> Awaitable[Sequence[Gone | Superseded | None]]:
        """Writes entries in one round trip; one outcome each, in order: None is written.

        They are on their way when this returns, if that is possible without waiting: what the caller does next does not
        hold them up. Also after a lost connection an entry that had arrived before is not taken for another replica's.
        """

    async def history(self, request_id: str, kind: StreamKind) -> Sequence[StreamEntry]:
        """What a stream holds now; empty if it is gone."""

    async def last_position(self, request_id: str, kind: StreamKind) -> Position | None:
        """The last position ever written to a stream, trimmed entries included; None if it is gone."""

    async def reference(self, request_id: str) -> bytes | None:
        """The reference audio, or None if it is gone."""

    def reader(self) -> Reader:
        """A reader of cancellations (from now on) and of the streams it is told to watch."""

    def consumer(self, group: Group, name: str) -> Consumer:
        """Joins a group under a name that is unique and stable across restarts."""


class Connector(StageConnector, Protocol):
    """One process's access to the streams of one pipeline generation."""

    async def submit(self, request: SpeechRequest, limits: AdmissionLimits, reference: bytes | None = None) -> Ticket:
        """Creates the request's streams and queues it, atomically. Raises `QueueFull`. The id must be new."""

    async def report_playback(self, frames: Mapping[str, int]) -> None:
        """Says how many frames each request's client has been handed in all, and lets go of the audio up to there.

        The stream keeps the last of these only. Says nothing of a request whose frames did not grow or that is gone.
        """

    async def release(self, ticket: Ticket) -> None:
        """Deletes the request and all its streams; tells the stages if it had not ended. Idempotent."""

    async def queue(self, group: Group) -> QueueState:
        """Requests waiting for a group."""

    async def has_live_consumer(self, group: Group, seconds: float) -> bool:
        """Whether a replica of the group has looked for work (`take_over`, or `refresh` of claims) in so many seconds.

        One that leaves no longer counts; one that dies counts until its time is over.
        """

    async def ping(self) -> None:
        """Raises `ConnectorError` if the streams cannot be reached now; does not try again."""

    async def close(self) -> None:
        """Frees every connection, those of its readers and consumers included."""

    def statistics(self) -> Mapping[str, float]:
        """Counters since the start: `errors`, commands that failed and were tried again."""
