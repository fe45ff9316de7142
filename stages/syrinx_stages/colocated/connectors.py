"""The connectors of a talker and a codec that share a process: codes pass in memory, everything else through Redis.

A process claims a request once, in the talkers' group, and keeps the claim until its codec has written the end. So the
codec serves exactly the requests that its own talker has claimed, and when a process dies, one replica takes both parts
over. In the codecs' group the process only shows that it is alive.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set

import msgspec

from syrinx_stages.colocated.codes_buffer import CodesBuffer
from syrinx_stages.connector.base import (
    CLAIM_SECONDS,
    Append,
    Cancelled,
    Claim,
    Consumer,
    Event,
    Fence,
    Reader,
    Refusal,
    StageConnector,
    StreamEntry,
)
from syrinx_stages.contract.keys import StreamKind
from syrinx_stages.contract.messages import End
from syrinx_stages.contract.stages import Stage

MAX_ENDED = 1024
"""Number of ended streams whose entries may be written again."""


class SharedClaimOwner:
    """The talker's `base.Consumer`: offers what it claims to the codec of its process."""

    def __init__(self, talkers: Consumer, codes: CodesBuffer) -> None:
        self.offered: dict[str, Claim] = {}
        """Claims that the codec has not taken yet by request ID, oldest first."""
        self.changed = asyncio.Event()
        """A claim was offered, or the codec should stop waiting."""
        self._talkers = talkers
        self._codes = codes
        self._held: dict[str, Claim] = {}
        """The claims of this process, by request ID."""
        self._talker_ended: set[str] = set()
        """Requests whose last code entry is written; their claims are kept for the codec only."""
        self._evict: tuple[Callable[[str], None], ...] = ()
        self.finish_both: Callable[[str], Awaitable[None]]
        """Removes a request from the queue by its claim's ID. Set when the codec joins."""
        self.ended: Callable[[], Set[str]]
        """Returns the claims of the requests that the codec has ended. Set when the codec joins."""
        self.readmit: Callable[[Claim], Awaitable[None]]
        """Claims a request of this process again and admits it to both stages. Set by `bind`."""
        self.refresh = talkers.refresh
        self.report = talkers.report
        self.interrupt = talkers.interrupt
        self.close = talkers.close

    def bind(self, readmit: Callable[[Claim], Awaitable[None]], *evict: Callable[[str], None]) -> None:
        """Sets the function by which the talker claims a request again, and those that evict it from the two stages."""
        self.readmit = readmit
        self._evict = evict

    async def claim(self, count: int) -> Sequence[Claim]:
        return self._offer(await self._talkers.claim(count))

    async def take_over(self, count: int) -> Sequence[Claim]:
        return self._offer(await self._talkers.take_over(count))

    async def reclaim(self, claim: Claim) -> Sequence[Claim]:
        return self._offer(await self._talkers.reclaim(claim))

    def set_talker_ended(self, request_id: str) -> None:
        """Records that the talker has written the end of a request."""
        if request_id in self._held:
            self._talker_ended.add(request_id)

    def forget(self, request_id: str) -> None:
        """Ends the request for both stages, unless the talker's part is complete."""
        if request_id not in self._talker_ended:
            self.release(request_id)

    def release(self, request_id: str) -> None:
        """Ends the request for both stages. If it is not finished, its lease expires."""
        if self._held.pop(request_id, None) is None:
            return
        self._talker_ended.discard(request_id)
        self.offered.pop(request_id, None)
        self._talkers.forget(request_id)
        self._codes.discard(request_id)
        for evict in self._evict:
            evict(request_id)

    async def finish(self, entry_id: str) -> None:
        """Finishes a claim for both stages, unless it is still held: then only the talker has completed its part."""
        if all(claim.entry_id != entry_id for claim in self._held.values()):
            await self.finish_both(entry_id)

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        """Hands over both parts of the requests."""
        ids = set(entry_ids)
        for request_id in [request_id for request_id, claim in self._held.items() if claim.entry_id in ids]:
            self.release(request_id)
        await self._talkers.hand_over(entry_ids)

    def _offer(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        # A claim and a concurrent takeover may both return a request.
        new = [claim for claim in claims if claim.request.id not in self._held]
        for claim in new:
            self._held[claim.request.id] = claim
            self._codes.create(claim.request.id, claim.fence)
            self.offered[claim.request.id] = claim
        self.changed.set()
        return new


class SharedClaimConsumer:
    """The codec's `base.Consumer`: claims only what the talker of its process has claimed."""

    def __init__(self, owner: SharedClaimOwner, codecs: Consumer, ended: Callable[[], Set[str]]) -> None:
        owner.ended = ended
        self._owner = owner
        self._codecs = codecs
        self._interrupted = False
        self.report = codecs.report
        self.forget = owner.release
        self.finish = owner.finish_both = codecs.finish
        self.hand_over = owner.hand_over

    async def claim(self, count: int) -> Sequence[Claim]:
        self._interrupted = False
        offered, changed = self._owner.offered, self._owner.changed
        try:
            async with asyncio.timeout(CLAIM_SECONDS):
                while not offered and not self._interrupted:
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return ()
        return [offered.pop(request_id) for request_id in list(offered)[:count]]

    async def take_over(self, count: int) -> Sequence[Claim]:
        """Returns nothing, as the talker takes requests over; shows the codecs' group that this process is alive."""
        await self._codecs.take_over(0)
        return ()

    async def reclaim(self, claim: Claim) -> Sequence[Claim]:
        """Returns nothing, as the talker claims the request again for both stages."""
        await self._owner.readmit(claim)
        return ()

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        """Renews the shared leases, also after the talker's part is complete."""
        await self._codecs.take_over(0)
        return await self._owner.refresh(entry_ids)

    def interrupt(self) -> None:
        self._interrupted = True
        self._owner.changed.set()

    async def close(self) -> None:
        self.interrupt()
        await self._codecs.close()


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
        self.check_room = connector.check_room
        self.reference = connector.reference
        self.on_reconnect = connector.on_reconnect
        self.codes = CodesBuffer()
        self.deliver_locally = self.codes.add
        self.claims: SharedClaimOwner
        """Set when the talker joins its group."""

    async def append(self, appends: Sequence[Append]) -> Sequence[Refusal | None]:
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

    def consumer(self, group: Stage, name: str, ended: Callable[[], Set[str]] = frozenset) -> SharedClaimOwner:
        """Joins the group for both stages. A claim has ended when the codec, not the talker, has written its end."""
        self.claims = SharedClaimOwner(self._connector.consumer(group, name, lambda: self.claims.ended()), self.codes)
        return self.claims


class CodecConnector:
    """The codec's `base.StageConnector`; audio is written through `connector`. Create it after the talker's service."""

    def __init__(self, connector: StageConnector, talker: TalkerConnector) -> None:
        self._connector = connector
        self._ended: dict[tuple[str, Fence], None] = {}
        """The last requests that have ended, and the fences of their claims. Their entries are written again if a
        fail-over has lost them."""
        self._talker = talker
        self.deliver_locally = connector.deliver_locally
        self.history = connector.history
        self.last_position = connector.last_position
        self.check_room = connector.check_room
        self.reference = connector.reference
        self.on_reconnect = connector.on_reconnect

    async def append(self, appends: Sequence[Append]) -> Sequence[Refusal | None]:
        """Writes audio after the codes that it was decoded from."""
        refusals = [await self._refusal(append) for append in appends]
        accepted = [append for append, refusal in zip(appends, refusals, strict=True) if refusal is None]
        outcomes = await self._connector.append(accepted)
        for append, outcome in zip(accepted, outcomes, strict=True):
            if outcome is None and isinstance(append.entry, End):
                self._ended[append.request_id, append.fence] = None
        while len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        remaining = iter(outcomes)
        return [refusal if refusal is not None else next(remaining) for refusal in refusals]

    async def _refusal(self, append: Append) -> Refusal | None:
        if (append.request_id, append.fence) in self._ended:
            return None
        return await self._talker.codes.wait_written(append)

    def reader(self) -> CodesBuffer:
        """Returns the reader of the talker's codes and of cancellations."""
        return self._talker.codes

    def consumer(self, group: Stage, name: str, ended: Callable[[], Set[str]] = frozenset) -> SharedClaimConsumer:
        return SharedClaimConsumer(self._talker.claims, self._connector.consumer(group, name), ended)
