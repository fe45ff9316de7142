"""The connector: the interface through which stages exchange requests and streams.

`RedisConnector` implements it. A claim is a lease: its owner refreshes it, and a claim that was not refreshed for
`LEASE_SECONDS` may be taken over by another replica.

The streams of a request exist from `submit` until `release`, or until nobody has written to them for
`STREAM_TTL_SECONDS`. Later writes do not recreate them. Every key expires when it is no longer used.

If the streams cannot be reached, a method retries for `RETRY_SECONDS` and then raises `ConnectorError`. A `Reader`
retries until it is closed.
"""

from collections.abc import Awaitable, Callable, Sequence, Set
from typing import NamedTuple, Protocol

from msgspec import Struct

from syrinx_stages.contract.keys import STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Entry, SpeechRequest
from syrinx_stages.contract.stages import Stage

LEASE_SECONDS = 1.0
"""A claim that was not refreshed for this long may be taken over. Four times the interval at which owners refresh."""
REFRESH_SECONDS = 0.25
"""Interval at which an owner refreshes its claims."""
MAX_DELIVERIES = 3
"""A request that was delivered this many times without progress and is taken over once more has failed."""
STREAM_TTL_SECONDS = 120
"""Time to live of a stream after its last write. A playback report counts as a write to all streams of its request.
Before the first write, the time that the request may wait in the queue is added. It is up to 10 s less, because not
each write extends it."""
CLAIM_SECONDS = 1.0
"""How long `Consumer.claim` waits for a request."""
RETRY_SECONDS = 15.0
"""How long a command is retried while the streams cannot be reached: longer than sentinels take for a fail-over."""

OUTPUT_STREAM = {Stage.TALKER: StreamKind.CODES, Stage.CODEC: StreamKind.AUDIO}
"""The stream that each group writes. While it exists, a client waits for the result."""
WRITER_GROUP = {kind: group for group, kind in OUTPUT_STREAM.items()}
"""The group that writes each stream."""


class ConnectorError(Exception):
    """The streams cannot be reached, or gave an unexpected reply."""


class StorageFull(ConnectorError):
    """The streams have no memory left. An entry can be written once other requests have released theirs."""


class QueueFull(ConnectorError):
    """The request was not admitted: the queue or the memory for streams is full.

    `retry_after` is a hint in seconds; `code` is the error code for the client.
    """

    def __init__(self, message: str, retry_after: float, code: str = "queue_full") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code


class RequestExists(ConnectorError):
    """A request with this ID was submitted before, and has not been released."""


class Gone(ConnectorError):
    """The request was released or has expired: no client waits for the entry."""


class Superseded(ConnectorError):
    """Another replica has taken the request over."""


class Behind(ConnectorError):
    """The stream ends at `at`, before the writer's previous entry: a fail-over or a restart has lost what followed."""

    def __init__(self, message: str, at: Position) -> None:
        super().__init__(message)
        self.at = at


Refusal = Gone | Superseded | Behind
"""Why an entry was not written."""


class Fence(NamedTuple):
    """The right to write a request's output: a group and the token of a claim in it, unique to the claim.

    Each claim of a request in a group gets the next epoch, the number at the start of the token. An append with an
    earlier epoch is refused, so an owner that was cut off cannot write once another replica has the request. The nonce
    distinguishes two claims that got the same epoch, as a replica that is promoted may not know the last claims.
    """

    group: Stage
    token: str
    """`<epoch>:<nonce>:<codes>:<audio>:<previous>`: the positions of the streams at the claim, the nonce before it."""

    @property
    def epoch(self) -> int:
        """Number of claims of the request in the group so far, this one included."""
        return int(self.token.partition(":")[0])

    def start(self, kind: StreamKind) -> Position:
        """Returns the last position of the codes or audio stream when the claim was accepted."""
        return Position.parse(self.token.split(":")[2 if kind is StreamKind.CODES else 3])


class Ticket(Struct, frozen=True):
    """Identifies a submitted request for `release`."""

    request_id: str
    entry_id: str
    gateway: str = ""
    """The token of the gateway, if another one may continue the request: only the last one may release it."""


class Claim(Struct, frozen=True):
    """A request that this consumer owns."""

    entry_id: str
    request: SpeechRequest
    deliveries: int = 1
    """Number of deliveries to this group since its output last grew, including this one but not those that ended in a
    handover."""
    redelivered: bool = False
    """The request was delivered before, so part of its result may have been written."""
    fence: Fence = Fence(Stage.TALKER, "")
    """Empty until the claim is accepted."""


class Capacity(Struct, frozen=True):
    """What a replica reports about itself, for the admission of requests."""

    free: float
    """Number of requests that it could serve in addition, now. A fraction: there will be room for one more soon.
    Negative: it has more than it can serve in time."""
    requests_per_second: float
    """Rate at which it serves requests when it has as many as it can; 0 if unknown."""


class StreamEntry(Struct, frozen=True):
    """An entry of a request's stream."""

    request_id: str
    kind: StreamKind
    position: Position
    entry: Entry


class Append(StreamEntry, frozen=True):
    """An entry of an output stream to write. Raises ValueError for another stream.

    `after` is the position of the writer's previous entry, or where the stream stood at the claim. `finishes` is the
    entry ID of the writer's claim. The claim is finished in the same transaction, if the entry is accepted. When a
    codec finishes a request, the request leaves the queue for both groups.
    """

    fence: Fence
    after: Position
    finishes: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in WRITER_GROUP:
            raise ValueError(f"kind: no group claims a request to write its {self.kind} stream")


class Cancelled(Struct, frozen=True):
    """A request was released by its gateway before a codec had finished it, or removed from the queue for another."""

    request_id: str


class Owner(Struct, frozen=True):
    """A replica that has claimed a request."""

    replica: str
    seconds: float
    """Since it has renewed its lease."""


class Progress(Struct, frozen=True):
    """How far a request has come, by its streams."""

    talker: Owner | None
    codec: Owner | None
    """None: it is not claimed, or its part is done."""
    codes: Position
    audio: Position
    played: Position
    """The last positions."""

    def is_served(self, seconds: float) -> bool:
        """Returns whether replicas that have renewed their leases within so many seconds have the request."""
        owners = [each for each in (self.talker, self.codec) if each is not None]
        waits = self.talker is None and max(self.codes, self.audio) <= STREAM_CREATED
        return not waits and bool(owners) and all(0 <= each.seconds <= seconds for each in owners)

    def __str__(self) -> str:
        talker, codec = (each.replica if each is not None else "none" for each in (self.talker, self.codec))
        return (
            f"talker {talker}, codec {codec}, codes up to frame {self.codes.frames}, audio to {self.audio.frames}, "
            f"playback reported to {self.played.frames}"
        )


class QueueState(Struct, frozen=True):
    """The requests that no talker has claimed."""

    length: int
    oldest_seconds: float
    """Age of the oldest request; 0 if the queue is empty."""
    expected_seconds: float
    """How long a request that is submitted now will wait, as far as is known."""


Event = StreamEntry | Cancelled


class ServerReport(Struct, frozen=True):
    """What a check of the streams' server has found, in words."""

    obstacle: str | None = None
    """Why nothing can be served, and what to change; None if it can."""
    warnings: Sequence[str] = ()
    """What costs requests or streams in some cases."""
    summary: str = ""
    """Version and settings; empty without the right to INFO."""


class Reader(Protocol):
    """Reads many request streams and the cancellations.

    `subscribe` and `unsubscribe` may be called while `read` waits. A stream that is released or expires yields no
    further entries and no end: callers need their own timeout.
    """

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        """Reads a stream of a submitted request from `after` (exclusive); restarts there if already subscribed."""

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        """Stops reading a stream and discards its entries that `read` has not returned yet."""

    async def read(self) -> Sequence[Event]:
        """Waits for the next events, in order per stream. Each entry is returned once, also across reconnects.

        An entry that cannot be decoded is returned as an `End` with reason `error`. Cancellations are reported from
        the first call on, at the latest. Only one call at a time; a cancelled call loses no event. Returns an empty
        sequence only after `close`. Never raises `ConnectorError`.
        """

    async def close(self) -> None:
        """Ends a waiting `read` with an empty sequence and closes the connections."""


class Consumer(Protocol):
    """The membership of one replica in a consumer group."""

    stands_by: bool
    """The replica is the standby of another one that holds its lease, by the last report: it must not claim requests.
    True for every standby until the first report."""

    async def claim(self, count: int) -> Sequence[Claim]:
        """Waits up to `CLAIM_SECONDS` for up to `count` unclaimed requests, oldest first.

        Returns an empty sequence at the timeout, after `interrupt` and after `close`. Only one call at a time; requests
        delivered to a cancelled call are returned by the next one, or handed over by `close`.
        """

    async def take_over(self, count: int) -> Sequence[Claim]:
        """Returns up to `count` requests whose lease has expired or that this consumer owned before a restart.

        Does not wait. Call it at the start and about every `REFRESH_SECONDS`: nothing else detects a dead replica.
        """

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        """Renews the lease, unless a report just has.

        Returns the claims that this consumer lost: finished, released, expired or taken over.
        """

    async def reclaim(self, claim: Claim) -> Sequence[Claim]:
        """Returns a claim of this consumer again, under a new epoch; nothing if another replica owns the request."""

    async def report(self, capacity: Capacity) -> float | None:
        """Publishes the replica's capacity, renews its lease and updates `stands_by`.

        Returns to a talker how many requests the codecs can take, as they report. None if none has, and to a codec.
        """

    def forget(self, request_id: str) -> None:
        """Stops serving a request without finishing it: another replica takes it over when the lease expires."""

    async def finish(self, entry_id: str) -> None:
        """Finishes a claim without writing an entry."""

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        """Lets other replicas take these claims over at once. Does not count as a failed delivery."""

    def interrupt(self) -> None:
        """Makes a waiting `claim` return soon, with the requests that it has already claimed."""

    async def close(self) -> None:
        """Leaves the group if nothing is owned, and closes the connections. A waiting `claim` returns empty."""


class StageConnector(Protocol):
    """What talkers and codecs use to exchange entries."""

    def append(self, appends: Sequence[Append]) -> Awaitable[Sequence[Refusal | None]]:
        """Writes entries in one round trip. Returns one outcome per entry, in order; None means written.

        After a refused entry, the later ones of the same stream in the batch are refused too. If possible without
        waiting, the entries are sent before this returns. An entry that its claim has written before counts as written.
        """

    async def check_room(self) -> None:
        """Raises `StorageFull` if entries cannot be written now."""

    async def check_server(self) -> ServerReport:
        """Returns what the server lacks to serve the pipeline. Changes nothing. Raises `ConnectorError`."""

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Calls `callback` after each reconnection: the server may have lost what was written last."""

    async def history(self, request_id: str, kind: StreamKind) -> Sequence[StreamEntry]:
        """Returns all entries of a stream; empty if the stream is gone."""

    async def last_position(self, request_id: str, kind: StreamKind) -> Position | None:
        """Returns the last position ever written to a stream, trimmed entries included; None if it is gone."""

    async def reference(self, request_id: str) -> bytes | None:
        """Returns the reference audio, or None if it is gone."""

    def reader(self) -> Reader:
        """Returns a reader of new cancellations and of the streams that it subscribes to."""

    def consumer(
        self, group: Stage, name: str, ended: Callable[[], Set[str]] = frozenset, standby_of: str = ""
    ) -> Consumer:
        """Joins a group under a name that is unique and stable across restarts.

        `ended` returns the claims of requests that this process has ended, by entry ID. They are not claimed again: if
        a fail-over has lost an end, this process writes it again. `standby_of` is the name of the replica whose standby
        this one is; empty for others.
        """
