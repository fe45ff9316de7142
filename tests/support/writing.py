"""Writes to the streams of requests without a stage."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from syrinx_stages.connector.base import WRITER_GROUP, Append, Claim, ConnectorError, Fence, Refusal, StreamEntry
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.frames import checksum
from syrinx_stages.contract.keys import STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason, Entry
from syrinx_stages.contract.stages import Stage
from syrinx_stages.talker.speech import BEGINNING


class Owner:
    """A connector that writes as the newest owner of any request, after what its streams have.

    Redis takes its first entry for one of a claim that a fail-over has lost.
    """

    def __init__(self, connector: RedisConnector, group: Stage | None = None) -> None:
        """`group` is that of the claims: by default each stream's own; colocated stages share the talkers'."""
        self.connector = connector
        self._group = group
        self._fences: dict[tuple[str, Stage], Fence] = {}
        self._last: dict[tuple[str, StreamKind], Position] = {}

    async def _fence(self, request_id: str, group: Stage) -> Fence:
        if (request_id, group) not in self._fences:
            keys, pool = self.connector._keys, self.connector._pool
            stored: bytes | None = await pool.call(b"HGET", keys.owners(request_id), group)
            epoch, previous, *_ = [*(stored or b"0").decode().split(":"), ""]
            token = f"{int(epoch) + 1}:{random.getrandbits(48):x}:9999999-0:9999999-0:{previous}"
            self._fences[request_id, group] = Fence(group, token)
        return self._fences[request_id, group]

    async def append(self, entries: Sequence[StreamEntry]) -> Sequence[Refusal | None]:
        """Writes entries, each after the one before in its stream."""
        last: dict[tuple[str, StreamKind], Position] = {}
        appends = []
        for item in entries:
            key = (item.request_id, item.kind)
            # Its owner may be writing: no other command comes between the last position and the entry after it.
            fence = await self._fence(item.request_id, self._group or WRITER_GROUP[item.kind])
            after = last.get(key) or self._last.get(key) or await self.connector.last_position(*key) or STREAM_CREATED
            last[key] = item.position
            appends.append(Append(item.request_id, item.kind, item.position, item.entry, fence, after))
        outcomes = await self.connector.append(appends)
        for append, outcome in zip(appends, outcomes, strict=True):
            if outcome is None:
                self._last[append.request_id, append.kind] = append.position
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connector, name)


def codes_entry(frames: bytes, before: bytes = b"", talker: str = "") -> Codes:
    """Returns an entry of code frames after others; the first one begins a segment."""
    return Codes(frames, talker, None if before else BEGINNING, checksum(before + frames))


def stop_after(frames: bytes) -> End:
    """Returns the end of a complete stream of code frames."""
    return End(EndReason.STOP, checksum=checksum(frames))


def chained(claim: Claim, kind: StreamKind, *entries: tuple[Position, Entry], finish: bool = False) -> list[Append]:
    """Returns appends of a claim's owner from where the stream stood at the claim; the last one may finish it."""
    appends, after = [], claim.fence.start(kind)
    for number, (position, entry) in enumerate(entries, 1):
        finishes = claim.entry_id if finish and number == len(entries) else None
        appends.append(Append(claim.request.id, kind, position, entry, claim.fence, after, finishes))
        after = position
    return appends


async def failure(connector: RedisConnector) -> str:
    """Closes a connector whose commands fail at once. Returns the error's message."""
    connector._pool.retry_seconds = 0.0
    try:
        with pytest.raises(ConnectorError) as error:
            await connector.queue()
        return str(error.value)
    finally:
        await connector.close()
