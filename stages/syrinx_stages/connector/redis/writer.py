"""Writes entries to request streams: checked ones, and direct ones that cost Redis a third.

A checked entry names its writer's token and previous position, and its reply names the inboxes of those who read the
stream. An entry is direct if the previous one of its stream was written by this process under the same token, and every
batch of this process since; it names those inboxes. That is still so if Redis has the last batch of this process on
record: a takeover deletes the records of all writers, a further reader of a stream that of its writer, and a fail-over
that has lost anything has lost the last batch. Redis writes no direct entry otherwise, and all of them are then sent
again, checked.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from syrinx_stages.connector.base import (
    STREAM_TTL_SECONDS,
    WRITER_GROUP,
    Append,
    Behind,
    Fence,
    Gone,
    Refusal,
    Superseded,
)
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.inbox import pack, stream_name
from syrinx_stages.connector.redis.pool import CommandPool
from syrinx_stages.connector.redis.scripts import MAX_INLINE_BYTES, TOUCH_SECONDS
from syrinx_stages.contract.keys import Keys, Position, StreamKind
from syrinx_stages.contract.messages import encode

_GONE, _SUPERSEDED, _UNCHECKED = 1, 2, 3
"""Replies to an entry that was not written."""

_Stream = tuple[str, StreamKind]


class _Last(NamedTuple):
    """The last entry that this process wrote to a stream."""

    fence: Fence
    position: Position
    checked_at: float
    """When an entry of the stream was last checked, which extends its life (seconds of the event loop)."""
    readers: bytes
    """The inboxes of the stream's readers, as Redis has them."""


class _Batch(Struct, frozen=True):
    """Entries whose write is in progress."""

    order: Sequence[int]
    """The indices of the entries in the order of their replies: the direct ones come first."""
    direct: int
    """Number of direct entries."""
    number: str
    """Empty if it is not to be recorded: another one was in progress."""
    sent_at: float
    reply: Awaitable[Sequence[Any]]


class RedisWriter:
    """Writes the entries of one process. Calls `ended` with an entry whose request the process has lost or finished."""

    def __init__(self, pool: CommandPool, keys: Keys, ended: Callable[[Append], None]) -> None:
        self._pool = pool
        self._keys = keys
        self._ended = ended
        self._name = f"{random.getrandbits(64):x}"
        self._numbers = itertools.count(1)
        self._recorded = ""
        """The last batch that Redis has on record; empty if there is none."""
        self._recording = False
        """A batch that may be recorded is in progress."""
        self._last: dict[_Stream, _Last] = {}
        """Streams whose next entry may be direct."""
        self._pruned_at = 0.0

    def append(self, appends: Sequence[Append]) -> Awaitable[Sequence[Refusal | None]]:
        """Implements `base.StageConnector.append`."""
        return asyncio.create_task(self._outcomes(appends, self._send(appends) if appends else None))

    def is_checked(self, request_id: str, kind: StreamKind, fence: Fence) -> bool:
        """Returns whether the stream's next entry may be direct: its claim was in force less than 10 s ago.

        The next batch of this process learns of a takeover.
        """
        last = self._last.get((request_id, kind))
        now = asyncio.get_running_loop().time()
        return last is not None and last.fence == fence and now - last.checked_at < TOUCH_SECONDS

    async def _outcomes(self, appends: Sequence[Append], batch: _Batch | None) -> Sequence[Refusal | None]:
        replies = [] if batch is None else await self._complete(appends, batch)
        unchecked = {_stream(append) for append, reply in zip(appends, replies, strict=True) if reply == _UNCHECKED}
        if unchecked:
            # What follows an unchecked entry in its stream was refused.
            again = [index for index, append in enumerate(appends) if _stream(append) in unchecked]
            repeated = [appends[index] for index in again]
            for index, reply in zip(again, await self._complete(repeated, self._send(repeated)), strict=True):
                replies[index] = reply
        for append, reply in zip(appends, replies, strict=True):
            if reply in (_GONE, _SUPERSEDED) or (reply == 0 and append.finishes is not None):
                self._ended(append)
        return [_refusal(append, reply) if reply else None for append, reply in zip(appends, replies, strict=True)]

    def _send(self, appends: Sequence[Append]) -> _Batch:
        """Starts to write entries: at once if a connection is free."""
        now = asyncio.get_running_loop().time()
        is_first, self._recording = not self._recording, True
        groups = self._direct(appends, now) if is_first else {}
        direct = [index for group in groups.values() for index in group]
        number = str(next(self._numbers)) if is_first else ""
        checked = sorted(set(range(len(appends))).difference(direct))
        keys = [self._keys.requests, self._keys.writers]
        recorded = self._recorded if is_first else ""
        arguments: list[bytes | str | int] = [STREAM_TTL_SECONDS, self._name, recorded, number, len(direct)]
        for readers, group in groups.items():
            batch, large = list[bytes](), list[bytes]()
            for append in map(appends.__getitem__, group):
                keys.append(self._keys.stream(append.request_id, append.kind))
                message = encode(append.entry)
                if len(message) > MAX_INLINE_BYTES:
                    large.append(message)
                    message = b""
                batch.append(pack(stream_name(append.request_id, append.kind), str(append.position), message))
            arguments += (readers, b"".join(batch), *large)
        for append in map(appends.__getitem__, checked):
            keys += (self._keys.stream(append.request_id, append.kind), self._keys.owners(append.request_id))
            arguments += (str(append.position), encode(append.entry), append.kind, *append.fence, str(append.after))
        for place, index in enumerate(checked, 1):
            if (claim := appends[index].finishes) is not None:
                arguments += (place, WRITER_GROUP[appends[index].kind], claim)
        order = [*direct, *checked]
        return _Batch(order, len(direct), number, now, self._pool.run(scripts.APPEND, keys, arguments))

    def _direct(self, appends: Sequence[Append], now: float) -> dict[bytes, list[int]]:
        """Returns the indices of the entries that need no check, by the readers of their streams."""
        if now - self._pruned_at > TOUCH_SECONDS:
            self._pruned_at = now
            self._last = {stream: last for stream, last in self._last.items() if now - last.checked_at < TOUCH_SECONDS}
        direct, ends = dict[bytes, list[int]](), dict[_Stream, Position]()
        for index, append in enumerate(appends):
            stream = _stream(append)
            if append.finishes is not None or not self.is_checked(*stream, append.fence):
                continue
            last = self._last[stream]
            if ends.get(stream, last.position) == append.after:
                ends[stream] = append.position
                direct.setdefault(last.readers, []).append(index)
        return direct

    async def _complete(self, appends: Sequence[Append], batch: _Batch) -> list[int | bytes]:
        """Returns the reply to each entry."""
        recorded = 0
        try:
            recorded, readers, *ordered = await batch.reply
        finally:
            if batch.number:
                self._recording = False
                self._recorded = batch.number if recorded else ""
                if not recorded:
                    self._last.clear()
        replies: list[int | bytes] = [0] * len(appends)
        for place, (index, reply) in enumerate(zip(batch.order, ordered, strict=True)):
            replies[index] = reply
            append = appends[index]
            last = self._last.pop(_stream(append), None)
            if reply or not recorded or append.finishes is not None:
                continue
            if place >= batch.direct:
                # Of an entry that was written before, the readers are not known.
                if isinstance(known := readers[place - batch.direct], bytes):
                    self._last[_stream(append)] = _Last(append.fence, append.position, batch.sent_at, known)
            elif last is not None:
                self._last[_stream(append)] = last._replace(position=append.position)
        return replies


def _stream(append: Append) -> _Stream:
    return append.request_id, append.kind


def _refusal(append: Append, reply: int | bytes) -> Refusal:
    stream = f"the {append.kind} stream of request {append.request_id}"
    if isinstance(reply, bytes):
        return Behind(f"{stream} ends at {reply.decode()}, before {append.after}", Position.parse(reply))
    if reply == _GONE:
        return Gone(f"request {append.request_id} was released or has expired")
    return Superseded(f"{stream} has another owner than the writer of {append.position}")
