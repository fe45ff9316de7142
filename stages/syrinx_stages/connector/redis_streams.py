"""The connector between processes: Redis Streams, Redis 6.2 or newer.

A write is one round trip, and changes that belong together are one script. A blocking read uses its own connection.
An entry has a field `d` with the encoded message.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any

from syrinx_stages.connector import redis_scripts as scripts
from syrinx_stages.connector.base import (
    LEASE_SECONDS,
    STREAM_TTL_SECONDS,
    WRITER_GROUP,
    Append,
    Behind,
    ConnectorError,
    Gone,
    QueueFull,
    QueueState,
    Refusal,
    StorageFull,
    StreamEntry,
    Superseded,
    Ticket,
)
from syrinx_stages.connector.redis_change_feed import pack
from syrinx_stages.connector.redis_connection import Command
from syrinx_stages.connector.redis_consumer import RedisConsumer
from syrinx_stages.connector.redis_pool import CommandPool
from syrinx_stages.connector.redis_reader import RedisReader, decode_or_end
from syrinx_stages.connector.redis_sentinel import redis_address
from syrinx_stages.connector.redis_voices import RedisVoices
from syrinx_stages.contract.keys import (
    END_SEQUENCE,
    REFERENCE_POSITION,
    STREAM_CREATED,
    Group,
    Keys,
    Position,
    StreamKind,
)
from syrinx_stages.contract.messages import (
    PlaybackProgress,
    PreparedVoice,
    Reference,
    SpeechRequest,
    StreamCreated,
    encode,
)
from syrinx_stages.contract.settings import GatewaySettings

_GONE, _SUPERSEDED = 1, 2
"""Replies to an append whose writer does not own the request."""
MAX_CANCELLATIONS = 10_000
"""Approximate length of the control stream: more than a reader can fall behind."""
ROOM_RETRY_SECONDS = 5.0
"""After this long a request that was refused for lack of memory may be sent again."""
_STREAM_CREATED = encode(StreamCreated())
_PROGRESS = PlaybackProgress()
_ENCODED_PROGRESS = encode(_PROGRESS)


class RedisConnector:
    """One process's access to the streams of one model generation of a pipeline. Implements `base.StageConnector`.

    `url`, `password` and `ca_file` are those of `redis_address`. Connects when first used. `on_error` is called for
    each command that failed and is retried.
    """

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        password: str = "",
        ca_file: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        on_error: Callable[[], object] = lambda: None,
    ) -> None:
        self._pool = CommandPool(redis_address(url, password, ca_file), on_error)
        self._keys = keys
        self._lease_seconds = lease_seconds
        self._readers: list[RedisReader] = []
        self._consumers: list[RedisConsumer] = []

    async def submit(self, request: SpeechRequest, limits: GatewaySettings, reference: bytes | None = None) -> Ticket:
        """Atomically creates the streams of a request with a new ID and queues it. Raises `QueueFull`.

        A request that Redis has lost may be submitted again: owners from before are refused then.
        """
        queue_ms = round(1000 * limits.max_queue_seconds)
        ttl = STREAM_TTL_SECONDS + queue_ms // 1000
        arguments: Command = [encode(request), str(STREAM_CREATED), _STREAM_CREATED, ttl, limits.max_queue, queue_ms]
        client: Command = [request.client, request.id, MAX_CANCELLATIONS, STREAM_TTL_SECONDS]
        try:
            status, *details = await self._pool.run(
                scripts.SUBMIT,
                [self._keys.requests, self._keys.capacity, self._keys.control, *self._request_keys(request.id)],
                [*arguments, int(reference is not None), reference or b"", *client],
                replicated=True,
            )
        except StorageFull as error:
            raise QueueFull(str(error), ROOM_RETRY_SECONDS, "redis_full") from error
        if status == b"no room":
            message = f"Redis has no room for a further request in its {details[0] / 2**20:.0f} MiB of memory"
            raise QueueFull(message, ROOM_RETRY_SECONDS, "redis_full")
        if status == b"another is next":
            wait = max(1.0, details[0] / 1000)
            message = "a client with fewer requests was refused, and its next one goes first"
            raise QueueFull(f"{message}; retry in {math.ceil(wait)} s", wait)
        if status == b"full":
            length, oldest_ms, expected_ms = details
            raise _queue_full(limits, QueueState(length, oldest_ms / 1000, expected_ms / 1000))
        if status != b"queued":
            raise ConnectorError(f"request id {request.id} is in use")
        return Ticket(request.id, details[0].decode())

    def deliver_locally(self, appends: Sequence[Append]) -> None:
        """Does nothing: all readers get their entries from Redis."""

    def append(self, appends: Sequence[Append]) -> Awaitable[Sequence[Refusal | None]]:
        return asyncio.create_task(self._appended(appends, self._run_append(appends) if appends else None))

    def _run_append(self, appends: Sequence[Append]) -> Awaitable[Sequence[int | bytes]]:
        kinds = list(dict.fromkeys(append.kind for append in appends))
        entries = [encode(append.entry) for append in appends]
        arguments: list[bytes | str | int] = [STREAM_TTL_SECONDS, len(kinds)]
        for kind in kinds:
            arguments += pack([append for append in appends if append.kind is kind], sum(map(len, entries)))
        keys = [self._keys.requests, *map(self._keys.change_feed, kinds)]
        for append, entry in zip(appends, entries, strict=True):
            keys += (self._keys.stream(append.request_id, append.kind), self._keys.owners(append.request_id))
            arguments += (str(append.position), entry, append.kind, *append.fence, str(append.after))
        for number, append in enumerate(appends, 1):
            if append.finishes is not None:
                arguments += (number, WRITER_GROUP[append.kind], append.finishes)
        return self._pool.run(scripts.APPEND, keys, arguments)

    async def _appended(
        self, appends: Sequence[Append], running: Awaitable[Sequence[int | bytes]] | None
    ) -> Sequence[Refusal | None]:
        replies = await running if running is not None else ()
        for append, reply in zip(appends, replies, strict=True):
            if reply in (_GONE, _SUPERSEDED) or (reply == 0 and append.finishes is not None):
                for consumer in self._consumers:
                    consumer.forget_fence(append.request_id, append.fence)
        return [_outcome(append, reply) if reply else None for append, reply in zip(appends, replies, strict=True)]

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._pool.on_reconnect.append(callback)

    async def report_playback(self, frames: Mapping[str, int]) -> None:
        """Reports the total number of frames delivered to each request's client, and trims the audio up to there.

        Only the last report of a request is kept. A report is ignored if the number did not grow or the request is
        gone.
        """
        reports = [
            StreamEntry(request_id, StreamKind.PLAYBACK, Position(count), _PROGRESS)
            for request_id, count in frames.items()
            if count > 0
        ]
        if not reports:
            return
        keys = [self._keys.change_feed(StreamKind.PLAYBACK)]
        arguments: list[bytes | str | int] = [STREAM_TTL_SECONDS, _ENCODED_PROGRESS, *pack(reports, 0)]
        for report in reports:
            kinds = (StreamKind.PLAYBACK, StreamKind.AUDIO, StreamKind.CODES)
            keys += (self._keys.stream(report.request_id, kind) for kind in kinds)
            keys += (self._keys.reference(report.request_id), self._keys.owners(report.request_id))
            # The audio's end may be at this very frame, and not read yet.
            arguments += (str(report.position), str(Position(report.position.frames, END_SEQUENCE)))
        await self._pool.run(scripts.REPORT_PLAYBACK, keys, arguments)

    async def release(self, ticket: Ticket) -> None:
        """Deletes a request and its streams, and cancels it if it had not ended. Idempotent."""
        await self._cancel(scripts.RELEASE, ticket)

    async def withdraw(self, ticket: Ticket) -> bool:
        """Releases a request unless a talker has claimed it. Returns whether it was released."""
        return bool(await self._cancel(scripts.WITHDRAW, ticket))

    async def _cancel(self, script: scripts.Script, ticket: Ticket) -> Any:
        keys = [self._keys.requests, self._keys.control, *self._request_keys(ticket.request_id)]
        arguments: Command = [ticket.entry_id, ticket.request_id, MAX_CANCELLATIONS, STREAM_TTL_SECONDS]
        return await self._pool.run(script, keys, arguments)

    async def check_room(self) -> None:
        # Redis refuses this command while it is full, and otherwise it changes nothing: it writes no bytes.
        await self._pool.call(b"SETRANGE", self._keys.reference("-"), 0, b"")

    async def history(self, request_id: str, kind: StreamKind) -> Sequence[StreamEntry]:
        entries = await self._pool.call(b"XRANGE", self._keys.stream(request_id, kind), b"-", b"+")
        return [StreamEntry(request_id, kind, Position.parse(at), decode_or_end(fields[1])) for at, fields in entries]

    async def last_position(self, request_id: str, kind: StreamKind) -> Position | None:
        last = await self._pool.run(scripts.LAST_POSITION, [self._keys.stream(request_id, kind)], [])
        return Position.parse(last) if last is not None else None

    async def reference(self, request_id: str) -> bytes | None:
        audio: bytes | None = await self._pool.call(b"GET", self._keys.reference(request_id))
        return audio

    async def published_voice(self, request_id: str) -> PreparedVoice | None:
        """Returns the voice that a talker has prepared for a request with `returns_voice`; None if it has not."""
        at = str(REFERENCE_POSITION)
        for _, fields in await self._pool.call(b"XRANGE", self._keys.stream(request_id, StreamKind.CODES), at, at):
            entry = decode_or_end(fields[1])
            if isinstance(entry, Reference) and entry.embedding:
                return PreparedVoice(entry.embedding, entry.codes)
        return None

    def voices(self) -> RedisVoices:
        """Returns the kept voices of the pipeline."""
        return RedisVoices(self._pool, self._keys)

    async def queue(self, group: Group) -> QueueState:
        """Returns the length and age of a group's queue, and the wait of the next request."""
        keys = [self._keys.requests, self._keys.capacity]
        length, oldest_ms, expected_ms = await self._pool.run(scripts.QUEUE, keys, [group])
        return QueueState(length, oldest_ms / 1000, expected_ms / 1000)

    async def has_live_consumer(self, group: Group, seconds: float) -> bool:
        """Returns whether a replica of the group called `take_over` or `refresh` within the last `seconds`.

        A replica that leaves the group no longer counts; one that dies counts until its time is over.
        """
        arguments: Command = [group, round(1000 * seconds)]
        return bool(await self._pool.run(scripts.HAS_LIVE_CONSUMER, [self._keys.requests], arguments))

    def reader(self) -> RedisReader:
        reader = RedisReader(self._pool, self._keys)
        self._readers.append(reader)
        return reader

    def consumer(self, group: Group, name: str, ended: Callable[[], Set[str]] = frozenset) -> RedisConsumer:
        consumer = RedisConsumer(self._pool, self._keys, group, name, self._lease_seconds, ended)
        self._consumers.append(consumer)
        return consumer

    async def close(self) -> None:
        """Closes every connection, including those of its readers and consumers."""
        # A closing process does not wait for an unreachable Redis.
        self._pool.retry_seconds = 0.0
        for consumer in self._consumers:
            await consumer.close()
        for reader in self._readers:
            await reader.close()
        await self._pool.close()

    def _request_keys(self, request_id: str) -> list[str]:
        streams = (self._keys.stream(request_id, kind) for kind in StreamKind)
        return [self._keys.reference(request_id), self._keys.owners(request_id), *streams]


def _queue_full(limits: GatewaySettings, queue: QueueState) -> QueueFull:
    """Returns the refusal of a request: the limit that applied, and what to do."""
    field, limit = "maxQueueSeconds", f"maxQueueSeconds ({limits.max_queue_seconds:g} s)"
    expected = f"the expected wait for a talker is {queue.expected_seconds:.2f} s"
    if queue.length >= limits.max_queue:
        field, reason = "maxQueue", f"{queue.length} requests wait for a talker, and maxQueue is {limits.max_queue}"
    elif queue.oldest_seconds > limits.max_queue_seconds:
        reason = f"a request has waited {queue.oldest_seconds:.2f} s for a talker, longer than {limit}"
    elif queue.expected_seconds > limits.max_queue_seconds:
        reason = f"{expected}, longer than {limit}"
    else:
        reason = f"{expected}, and only a part of {limit} is granted while requests wait or were just refused"
    retry_after = max(queue.oldest_seconds, queue.expected_seconds, 1.0)
    advice = f"retry in {math.ceil(retry_after)} s; to admit more requests, add replicas or raise {field}"
    return QueueFull(f"{reason}; {advice}", retry_after)


def _outcome(append: Append, reply: int | bytes) -> Refusal:
    stream = f"the {append.kind} stream of request {append.request_id}"
    if isinstance(reply, bytes):
        return Behind(f"{stream} ends at {reply.decode()}, before {append.after}", Position.parse(reply))
    if reply == _GONE:
        return Gone(f"request {append.request_id} was released or has expired")
    return Superseded(f"{stream} has another owner than the writer of {append.position}")
