"""What talker and codec of one process have for a connector: their own, but for what lies between the two."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from syrinx_stages.colocated.claims import SharedClaimConsumer, SharedClaimOwner
from syrinx_stages.colocated.codes_buffer import CodesBuffer
from syrinx_stages.connector.base import (
    Append,
    Cancelled,
    Event,
    Gone,
    Reader,
    StageConnector,
    StreamEntry,
    Superseded,
)
from syrinx_stages.connector.memory import MemoryReader
from syrinx_stages.contract.keys import Group, Position, StreamKind
from syrinx_stages.contract.messages import End


class _TellingReader:
    """The talker's `base.Reader`: what is cancelled, the codec of its process hears too."""

    def __init__(self, reader: Reader, handover: CodesBuffer) -> None:
        self._reader = reader
        self._handover = handover

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        """Follows a stream from behind `after`."""
        self._reader.subscribe(request_id, kind, after)

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        """Stops following it."""
        self._reader.unsubscribe(request_id, kind)

    async def read(self) -> Sequence[Event]:
        """Waits for the next events."""
        events = await self._reader.read()
        for event in events:
            if isinstance(event, Cancelled):
                self._handover.cancel(event.request_id)
        return events

    async def close(self) -> None:
        """Ends a waiting `read`."""
        await self._reader.close()


class TalkerConnector:
    """The talker's `base.StageConnector`: its codes go to the codec at once, and through `connector` behind."""

    def __init__(self, connector: StageConnector) -> None:
        self.handover = CodesBuffer()
        self.leader: SharedClaimOwner
        """There is one once the talker has joined its group."""
        self._connector = connector

    def deliver_locally(self, appends: Sequence[Append]) -> None:
        """The codec has its codes before Redis does."""
        self.handover.deliver_locally(appends)

    async def append(self, appends: Sequence[Append]) -> Sequence[Gone | Superseded | None]:
        """Writes entries; the claim outlives the talker's end, for the codec."""
        kept = [msgspec.structs.replace(append, finishes=None) for append in appends]
        outcomes = await self._connector.append(kept)
        for append, outcome in zip(kept, outcomes, strict=True):
            self.handover.settle(append, outcome)
            if outcome is None and isinstance(append.entry, End):
                self.leader.ended(append.request_id)
        return outcomes

    async def history(self, request_id: str, kind: StreamKind) -> Sequence[StreamEntry]:
        """What a stream holds; the codec gets what codes there are of a request that was taken over."""
        entries = await self._connector.history(request_id, kind)
        if kind is StreamKind.CODES:
            self.handover.restore(entries)
            if any(isinstance(item.entry, End) for item in entries):
                self.leader.ended(request_id)
        return entries

    async def last_position(self, request_id: str, kind: StreamKind) -> Position | None:
        """The last position ever written to a stream."""
        return await self._connector.last_position(request_id, kind)

    async def reference(self, request_id: str) -> bytes | None:
        """The reference audio."""
        return await self._connector.reference(request_id)

    def reader(self) -> Reader:
        """A reader whose cancellations the codec hears too."""
        return _TellingReader(self._connector.reader(), self.handover)

    def consumer(self, group: Group, name: str) -> SharedClaimOwner:
        """Joins the group for both stages."""
        self.leader = SharedClaimOwner(self._connector.consumer(group, name), self.handover)
        return self.leader


class CodecConnector:
    """The codec's `base.StageConnector`, once the talker has joined its group; audio goes through `connector`."""

    def __init__(self, connector: StageConnector, talker: TalkerConnector) -> None:
        self._connector = connector
        self._talker = talker

    def deliver_locally(self, appends: Sequence[Append]) -> None:
        """Audio is for gateways: in other processes."""

    async def append(self, appends: Sequence[Append]) -> Sequence[Gone | Superseded | None]:
        """Writes audio, once the codes that it is made of are written."""
        refusals = [await self._talker.handover.settled(append) for append in appends]
        sound = [append for append, refusal in zip(appends, refusals, strict=True) if refusal is None]
        outcomes = iter(await self._connector.append(sound))
        return [refusal if refusal is not None else next(outcomes) for refusal in refusals]

    async def history(self, request_id: str, kind: StreamKind) -> Sequence[StreamEntry]:
        """What a stream holds now."""
        return await self._connector.history(request_id, kind)

    async def last_position(self, request_id: str, kind: StreamKind) -> Position | None:
        """The last position ever written to a stream."""
        return await self._connector.last_position(request_id, kind)

    async def reference(self, request_id: str) -> bytes | None:
        """The reference audio."""
        return await self._connector.reference(request_id)

    def reader(self) -> MemoryReader:
        """A reader of what the talker makes and of what is cancelled."""
        return MemoryReader(self._talker.handover)

    def consumer(self, group: Group, name: str) -> SharedClaimConsumer:
        """Follows the talker."""
        return SharedClaimConsumer(self._talker.leader, self._connector.consumer(group, name))
