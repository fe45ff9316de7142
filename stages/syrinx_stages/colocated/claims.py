"""One claim for both stages of a process.

A request is claimed once, in the talkers' group, by the process whose talker and codec serve it. The claim is kept
until the codec has written the end: so the codec of a process serves exactly what its own talker has claimed, and a
process that dies loses both parts to the same successor. In the codecs' group such a process is only seen to be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from syrinx_stages.colocated.codes_buffer import CodesBuffer
from syrinx_stages.connector.base import CLAIM_SECONDS, Claim, Consumer


class _Held:
    """A claim of this process."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.ended = False
        """The talker has written its last entry: the claim is now kept for the codec alone."""


class SharedClaimOwner:
    """The talker's `base.Consumer`: what it claims, the codec of its process gets too."""

    def __init__(self, talkers: Consumer, handover: CodesBuffer) -> None:
        self.offered: dict[str, Claim] = {}
        """Claims that the codec has not taken up yet, by request, the oldest first."""
        self.news = asyncio.Event()
        """Something was offered, or the codec is to stop waiting."""
        self._talkers = talkers
        self._handover = handover
        self._held: dict[str, _Held] = {}
        self._drops: tuple[Callable[[str], None], ...] = ()

    def bind(self, *drops: Callable[[str], None]) -> None:
        """How the two stages are told that a request is theirs no longer."""
        self._drops = drops

    async def claim(self, count: int) -> Sequence[Claim]:
        """Waits for unclaimed requests."""
        return self._offer(await self._talkers.claim(count))

    async def take_over(self, count: int) -> Sequence[Claim]:
        """Requests whose process fell silent."""
        return self._offer(await self._talkers.take_over(count))

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        """Keeps claims, for both stages."""
        return await self._talkers.refresh(entry_ids)

    def ended(self, request_id: str) -> None:
        """The talker's part is over and written."""
        if (held := self._held.get(request_id)) is not None:
            held.ended = True

    def forget(self, request_id: str) -> None:
        """Without the talker the codec does not go on, unless the talker's part is over."""
        held = self._held.get(request_id)
        if held is not None and not held.ended:
            self.release(request_id)

    def release(self, request_id: str) -> None:
        """Ends with a request for both stages; if it is not over, its lease runs out."""
        if self._held.pop(request_id, None) is None:
            return
        self.offered.pop(request_id, None)
        self._talkers.forget(request_id)
        self._handover.close(request_id)
        for drop in self._drops:
            drop(request_id)

    async def finish(self, entry_id: str) -> None:
        """Gives a claim up for good; where the talker's part is merely over, that is the codec's to say."""
        if all(held.claim.entry_id != entry_id for held in self._held.values()):
            await self._talkers.finish(entry_id)

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        """Lets other processes take requests over, both parts of them."""
        handed = set(entry_ids)
        for request_id in [name for name, held in self._held.items() if held.claim.entry_id in handed]:
            self.release(request_id)
        await self._talkers.hand_over(entry_ids)

    def interrupt(self) -> None:
        """Makes a waiting `claim` return soon."""
        self._talkers.interrupt()

    async def close(self) -> None:
        """Leaves the talkers' group."""
        await self._talkers.close()

    def _offer(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        # A claim and a takeover at the same time may both bring a request.
        new = [claim for claim in claims if claim.request.id not in self._held]
        for claim in new:
            self._held[claim.request.id] = _Held(claim)
            self._handover.open(claim.request.id)
            self.offered[claim.request.id] = claim
        self.news.set()
        return new


class SharedClaimConsumer:
    """The codec's `base.Consumer`: claims what the talker of its process has claimed, and nothing else."""

    def __init__(self, leader: SharedClaimOwner, codecs: Consumer) -> None:
        self._leader = leader
        self._codecs = codecs
        self._interrupted = False

    async def claim(self, count: int) -> Sequence[Claim]:
        """Waits for the talker to claim."""
        self._interrupted = False
        offered, news = self._leader.offered, self._leader.news
        try:
            async with asyncio.timeout(CLAIM_SECONDS):
                while not offered and not self._interrupted:
                    news.clear()
                    await news.wait()
        except TimeoutError:
            return ()
        return [offered.pop(request_id) for request_id in list(offered)[:count]]

    async def take_over(self, count: int) -> Sequence[Claim]:
        """Nothing: that is for the talker to do. The codecs' group sees that somebody is there."""
        await self._codecs.take_over(0)
        return ()

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        """Keeps the claims that both stages share, also where the talker's part is over."""
        await self._codecs.take_over(0)
        return await self._leader.refresh(entry_ids)

    def forget(self, request_id: str) -> None:
        """Without the codec the talker does not go on."""
        self._leader.release(request_id)

    async def finish(self, entry_id: str) -> None:
        """The request is done, for both groups."""
        await self._codecs.finish(entry_id)

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        """Lets other processes take requests over, both parts of them."""
        await self._leader.hand_over(entry_ids)

    def interrupt(self) -> None:
        """Makes a waiting `claim` return soon."""
        self._interrupted = True
        self._leader.news.set()

    async def close(self) -> None:
        """Is seen in the codecs' group no longer."""
        self.interrupt()
        await self._codecs.close()
