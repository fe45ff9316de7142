"""The connector between processes: Redis Streams, Redis 6.2 or newer.

A write is one round trip, and changes that belong together are one script. A blocking read uses its own connection.
An entry has a field `d` with the encoded message.
"""

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from syrinx_stages.connector.base import (
    LEASE_SECONDS,
    STREAM_TTL_SECONDS,
    Append,
    Behind,
    ConnectorError,
    Gone,
    Owner,
    Progress,
    QueueFull,
    QueueState,
    Refusal,
    RequestExists,
    ServerReport,
    StorageFull,
    StreamEntry,
    Ticket,
)
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.connection import Command
from syrinx_stages.connector.redis.consumer import RedisConsumer
from syrinx_stages.connector.redis.pool import CommandPool
from syrinx_stages.connector.redis.reader import RedisReader, decode_or_end
from syrinx_stages.connector.redis.scripts import TOUCH_SECONDS
from syrinx_stages.connector.redis.voices import RedisVoices
from syrinx_stages.connector.redis.writer import RedisWriter
from syrinx_stages.connector.servers.address import redis_address
from syrinx_stages.connector.servers.check import check_server
from syrinx_stages.contract.keys import END_SEQUENCE, REFERENCE_POSITION, STREAM_CREATED, Keys, Position, StreamKind
from syrinx_stages.contract.messages import (
    PlaybackProgress,
    PreparedVoice,
    Reference,
    SpeechRequest,
    StreamCreated,
    decode_request,
    encode,
)
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.contract.stages import Stage

MAX_CANCELLATIONS = 10_000
"""Approximate length of the control stream: more than a reader can fall behind."""
FORGOTTEN_SECONDS = 60.0
"""After this long no writer writes a released request without a check: see `RedisWriter`."""
ROOM_RETRY_SECONDS = 5.0
"""After this long a request that was refused for lack of memory may be sent again."""
_REPORTED = StreamKind.PLAYBACK, StreamKind.AUDIO, StreamKind.CODES
_NONE: Mapping[str, int] = MappingProxyType({})
_STREAM_CREATED = encode(StreamCreated())
_PROGRESS = encode(PlaybackProgress())


class RedisConnector:
    """One process's access to the streams of one model generation of a pipeline. Implements `base.StageConnector`.

    `url`, `password` and `ca_file` are those of `redis_address`. Redis lists the connections under `name`: at most two
    for commands, and one for each reader and each consumer that claims. Connects when first used. `on_error` is called
    for each command that failed and is retried.
    """

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        password: str = "",
        ca_file: str | None = None,
        name: str = "",
        lease_seconds: float = LEASE_SECONDS,
        on_error: Callable[[], object] = lambda: None,
    ) -> None:
        address = redis_address(url, password, ca_file)
        self._pool = CommandPool(address.for_key(keys.prefix), on_error, name)
        kept = address.for_key(keys.voices)
        self._voices_pool = self._pool if kept is self._pool.address else CommandPool(kept, on_error, name)
        self._keys = keys
        self._writer = RedisWriter(self._pool, keys, self._forget)
        self._submitted: set[str] = set()
        """Requests that this process has submitted and not released."""
        self._released: dict[str, float] = {}
        """Requests that it has released of late, and when (seconds of the event loop)."""
        self._extended: dict[str, float] = {}
        """Requests of which a playback report has extended the life of late, and when."""
        self._lease_seconds = lease_seconds
        self._readers: list[RedisReader] = []
        self._consumers: list[RedisConsumer] = []

    async def submit(
        self, request: SpeechRequest, limits: GatewaySettings, reference: bytes | None = None, gateway: str = ""
    ) -> Ticket:
        """Atomically creates the streams of a request with a new ID and queues it. Raises `QueueFull`.

        gateway: a token of the gateway, if another one may continue the request with `attach`.

        A request that Redis has lost may be submitted again: owners from before are refused then. Without `gateway` the
        ID must be one that no other process has submitted.
        """
        queue_ms = round(1000 * limits.max_queue_seconds)
        ttl = STREAM_TTL_SECONDS + queue_ms // 1000
        arguments: Command = [encode(request), str(STREAM_CREATED), _STREAM_CREATED, ttl, limits.max_queue, queue_ms]
        is_new = int(not gateway and self._is_new(request.id))
        client: Command = [request.client, request.id, MAX_CANCELLATIONS, STREAM_TTL_SECONDS, gateway, is_new]
        try:
            status, *details = await self._pool.run(
                scripts.SUBMIT,
                [
                    *(self._keys.requests, self._keys.waiting, self._keys.capacity),
                    *(self._keys.control, self._keys.writers),
                    *self._created_keys(request),
                ],
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
            raise RequestExists(f"request id {request.id} is in use")
        return Ticket(request.id, details[0].decode(), gateway)

    def _is_new(self, request_id: str) -> bool:
        """Returns whether no writer can know a request with this ID. It is submitted now."""
        now = asyncio.get_running_loop().time()
        forgotten = itertools.takewhile(lambda item: now - item[1] > FORGOTTEN_SECONDS, self._released.items())
        for released, _ in list(forgotten):
            del self._released[released]
        is_new = request_id not in self._released and request_id not in self._submitted
        self._submitted.add(request_id)
        return is_new

    async def attach(self, request_id: str, gateway: str) -> tuple[Ticket, SpeechRequest] | None:
        """Takes a request over that a gateway has submitted with a token. Returns None if there is no such request."""
        keys = [self._keys.stream(request_id, StreamKind.CODES), self._keys.owners(request_id)]
        found = await self._pool.run(scripts.ATTACH, keys, [gateway])
        if found is None:
            return None
        return Ticket(request_id, found[0].decode(), gateway), decode_request(found[1])

    def append(self, appends: Sequence[Append]) -> Awaitable[Sequence[Refusal | None]]:
        return self._writer.append(appends)

    def _forget(self, append: Append) -> None:
        for consumer in self._consumers:
            consumer.forget_fence(append.request_id, append.fence)

    @property
    def is_connected(self) -> bool:
        """Whether no connection was lost since the last reconnection."""
        return self._pool.connected_seconds > 0

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._pool.on_reconnect.append(callback)

    async def report_playback(
        self, frames: Mapping[str, int], kept: Mapping[str, int] = _NONE, spoken: Mapping[str, int] = _NONE
    ) -> None:
        """Reports the total number of frames delivered to each request's client, and trims the audio up to there.

        kept: by request, how many of the last frames before are not trimmed. spoken: by request, the frames of whole
        segments that were delivered, whose codes are deleted.

        Only the last reports of a request are kept. A report is ignored if the number did not grow or the request is
        gone.
        """
        reports = {request_id: count for request_id, count in frames.items() if count > 0}
        if not reports:
            return
        now = asyncio.get_running_loop().time()
        self._extended = {each: at for each, at in self._extended.items() if now - at < TOUCH_SECONDS}
        extended = [request_id for request_id in reports if request_id not in self._extended]
        keys = [self._keys.requests]
        arguments: list[bytes | str | int] = [STREAM_TTL_SECONDS, _PROGRESS, len(reports)]
        for request_id, count in reports.items():
            keys += (self._keys.stream(request_id, kind) for kind in _REPORTED)
            keys.append(self._keys.owners(request_id))
            # The audio's end may be at this very frame, and not read yet.
            first = max(0, count - kept.get(request_id, 0))
            codes = str(Position(spoken[request_id])) if spoken.get(request_id) else ""
            arguments += (str(Position(count)), str(Position(first, END_SEQUENCE)), codes)
        for request_id in extended:
            keys += self._request_keys(request_id)
        await self._pool.run(scripts.REPORT_PLAYBACK, keys, arguments)
        self._extended |= dict.fromkeys(extended, now)

    async def append_text(
        self, request_id: str, after: Position, entries: Sequence[StreamEntry]
    ) -> Gone | Behind | None:
        """Writes entries to a request's text stream if its last entry is at `after`. None means written.

        Extends the life of all keys of the request. Without entries, it only checks the position.
        """
        arguments: list[bytes | str | int] = [STREAM_TTL_SECONDS, str(after)]
        for each in entries:
            arguments += (str(each.position), encode(each.entry))
        first = [self._keys.stream(request_id, StreamKind.TEXT), self._keys.owners(request_id)]
        others = [key for key in self._request_keys(request_id) if key not in first]
        keys = [self._keys.requests, *first, *others]
        reply = await self._pool.run(scripts.APPEND_TEXT, keys, arguments)
        if isinstance(reply, bytes):
            at = Position.parse(reply)
            return Behind(f"the text of request {request_id} ends at {at}, not {after}", at)
        return Gone(f"request {request_id} was released or has expired") if reply else None

    async def release(self, ticket: Ticket) -> None:
        """Deletes a request and its streams, and cancels it if it had not ended. Idempotent."""
        self._submitted.discard(ticket.request_id)
        self._released.pop(ticket.request_id, None)
        self._released[ticket.request_id] = asyncio.get_running_loop().time()
        await self._cancel(scripts.RELEASE, ticket)

    async def withdraw(self, ticket: Ticket) -> bool:
        """Releases a request unless a talker has claimed it. Returns whether it was released."""
        return bool(await self._cancel(scripts.WITHDRAW, ticket))

    async def _cancel(self, script: scripts.Script, ticket: Ticket) -> Any:
        shared = self._keys.requests, self._keys.waiting, self._keys.control
        keys = [*shared, *self._request_keys(ticket.request_id)]
        limits = MAX_CANCELLATIONS, STREAM_TTL_SECONDS
        arguments: Command = [ticket.entry_id, ticket.request_id, *limits, ticket.gateway]
        return await self._pool.run(script, keys, arguments)

    async def check_room(self) -> None:
        # Redis refuses this command while it is full, and otherwise it changes nothing: it writes no bytes.
        await self._pool.call(b"SETRANGE", self._keys.reference("-"), 0, b"")

    async def check_server(self) -> ServerReport:
        return await check_server(self._pool, self._keys.requests, self._keys.voices)

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
        return RedisVoices(self._voices_pool, self._keys)

    async def queue(self) -> QueueState:
        """Returns how many requests no talker has claimed, the age of the oldest, and the wait of the next one."""
        keys = [self._keys.requests, self._keys.waiting, self._keys.capacity]
        length, oldest_ms, expected_ms = await self._pool.run(scripts.QUEUE, keys, [])
        return QueueState(length, oldest_ms / 1000, expected_ms / 1000)

    async def progress(self, ticket: Ticket) -> Progress:
        """Returns how far a request has come. Raises ConnectorError if it does not exist."""
        leases = (self._keys.leases(group) for group in (Stage.TALKER, Stage.CODEC))
        streams = (StreamKind.CODES, StreamKind.AUDIO, StreamKind.PLAYBACK)
        names = (self._keys.stream(ticket.request_id, kind) for kind in streams)
        keys = [self._keys.requests, *leases, *names]
        talker, talker_ms, codec, codec_ms, *last = await self._pool.run(scripts.PROGRESS, keys, [ticket.entry_id])
        if not all(last):
            raise ConnectorError(f"request {ticket.request_id} was released or has expired")

        def owner(name: bytes, ms: int) -> Owner | None:
            return Owner(name.decode(), ms / 1000) if name else None

        return Progress(owner(talker, talker_ms), owner(codec, codec_ms), *map(Position.parse, last))

    async def has_live_consumer(self, group: Stage, seconds: float) -> bool:
        """Returns whether a replica of the group called `take_over` or `refresh` within the last `seconds`.

        A replica that leaves the group no longer counts; one that dies counts until its time is over.
        """
        arguments: Command = [round(1000 * seconds)]
        return bool(await self._pool.run(scripts.HAS_LIVE_CONSUMER, [self._keys.leases(group)], arguments))

    def reader(self) -> RedisReader:
        reader = RedisReader(self._pool, self._keys)
        self._readers.append(reader)
        return reader

    def consumer(
        self, group: Stage, name: str, ended: Callable[[], Set[str]] = frozenset, standby_of: str = ""
    ) -> RedisConsumer:
        limits = self._lease_seconds, ended, self._writer.is_checked
        consumer = RedisConsumer(self._pool, self._keys, group, name, *limits, standby_of)
        self._consumers.append(consumer)
        return consumer

    async def close(self) -> None:
        """Closes every connection, including those of its readers and consumers."""
        # A closing process does not wait for an unreachable Redis.
        self._pool.retry_seconds = self._voices_pool.retry_seconds = 0.0
        for consumer in self._consumers:
            await consumer.close()
        for reader in self._readers:
            await reader.close()
        for pool in {self._pool, self._voices_pool}:
            await pool.close()

    def _request_keys(self, request_id: str, kinds: Iterable[StreamKind] = StreamKind) -> list[str]:
        streams = (self._keys.stream(request_id, kind) for kind in kinds)
        return [self._keys.reference(request_id), self._keys.owners(request_id), *streams]

    def _created_keys(self, request: SpeechRequest) -> list[str]:
        """Returns the keys that a submission creates: only some requests have a text stream."""
        kinds = (kind for kind in StreamKind if kind is not StreamKind.TEXT or request.streams_text)
        return self._request_keys(request.id, kinds)


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
