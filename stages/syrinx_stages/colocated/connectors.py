"""The connectors of a talker and a codec that share a process: codes pass in memory, everything else through Redis."""

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
from syrinx_stages.contract.keys import Group, StreamKind
from syrinx_stages.contract.messages import End


class _ForwardingReader:
    """The talker's `base.Reader`: forwards cancellations to the codec of its process."""

    def __init__(self, reader: Reader, codes: CodesBuffer) -> None:
        self._reader = reader
        self._codes = codes
        self.subscribe = reader.subscribe
        self.unsubscribe = reader.unsubscribe
        self.close = reader.close

    async def read(self) -> Sequence[Event]:
        events = await self._reader.read()
        for event in events:
            if isinstance(event, Cancelled):
                self._codes.cancel(event.request_id)
        return events


class TalkerConnector:
    """The talker's `base.StageConnector`: passes codes to the codec before `connector` writes them."""

    def __init__(self, connector: StageConnector) -> None:
        self._connector = connector
        self.last_position = connector.last_position
        self.reference = connector.reference
        self.codes = CodesBuffer()
        self.deliver_locally = self.codes.add
        self.claims: SharedClaimOwner
        """Set when the talker joins its group."""

    async def append(self, appends: Sequence[Append]) -> Sequence[Gone | Superseded | None]:
        """Writes entries without finishing the claim, which the codec still needs."""
        unfinished = [msgspec.structs.replace(append, finishes=None) for append in appends]
        outcomes = await self._connector.append(unfinished)
        for append, outcome in zip(unfinished, outcomes, strict=True):
            self.codes.set_outcome(append, outcome)
            if outcome is None and isinstance(append.entry, End):
                self.claims.set_talker_ended(append.request_id)
        return outcomes

    async def history(self, request_id: str, kind: StreamKind) -> Sequence[StreamEntry]:
        """Returns all entries of a stream; the codes of a request that was taken over also go to the codec."""
        entries = await self._connector.history(request_id, kind)
        if kind is StreamKind.CODES:
            self.codes.restore(entries)
            if any(isinstance(item.entry, End) for item in entries):
                self.claims.set_talker_ended(request_id)
        return entries

    def reader(self) -> Reader:
        return _ForwardingReader(self._connector.reader(), self.codes)

    def consumer(self, group: Group, name: str) -> SharedClaimOwner:
        """Joins the group for both stages."""
        self.claims = SharedClaimOwner(self._connector.consumer(group, name), self.codes)
        return self.claims


class CodecConnector:
    """The codec's `base.StageConnector`; audio is written through `connector`. Create it after the talker's service."""

    def __init__(self, connector: StageConnector, talker: TalkerConnector) -> None:
        self._connector = connector
        self._talker = talker
        self.deliver_locally = connector.deliver_locally
        self.history = connector.history
        self.last_position = connector.last_position
        self.reference = connector.reference

    async def append(self, appends: Sequence[Append]) -> Sequence[Gone | Superseded | None]:
        """Writes audio after the codes that it was decoded from."""
        refusals = [await self._talker.codes.wait_written(append) for append in appends]
        accepted = [append for append, refusal in zip(appends, refusals, strict=True) if refusal is None]
        outcomes = iter(await self._connector.append(accepted))
        return [refusal if refusal is not None else next(outcomes) for refusal in refusals]

    def reader(self) -> CodesBuffer:
        """Returns the reader of the talker's codes and of cancellations."""
        return self._talker.codes

    def consumer(self, group: Group, name: str) -> SharedClaimConsumer:
        return SharedClaimConsumer(self._talker.claims, self._connector.consumer(group, name))
