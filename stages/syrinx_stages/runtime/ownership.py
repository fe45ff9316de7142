"""The requests a replica owns: claimed while rows are free, kept by refreshing, taken over from the silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from prometheus_client import Counter

from syrinx_stages.connector.base import REFRESH_SECONDS, Claim, ConnectorError, Consumer

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""Pause after the connector failed, before it is asked again."""


class Ownership:
    """Claims up to `capacity` requests and keeps them until they are finished or somebody else has them.

    `admit` is called once for every claim; `lost` with the id of a request that is no longer ours. While `can_admit` is
    false nothing new is claimed: what waits in the queue is there for other replicas, and its age tells the gateway.
    """

    def __init__(
        self,
        consumer: Consumer,
        capacity: int,
        admit: Callable[[Claim], None],
        lost: Callable[[str], None],
        can_admit: Callable[[], bool],
        takeovers: Counter,
    ) -> None:
        self.claims: dict[str, Claim] = {}
        self._began = False
        self._troubled: set[str] = set()
        """Which of `claim` and `keep` has failed since it last worked."""
        self._consumer = consumer
        self._capacity = capacity
        self._admit = admit
        self._lost = lost
        self._can_admit = can_admit
        self._takeovers = takeovers
        self._changed = asyncio.Event()
        self._claiming = True

    @property
    def reading(self) -> bool:
        """The group is being read: what readiness means."""
        return self._began and not self._troubled

    @property
    def free(self) -> int:
        """Requests that may still be claimed."""
        return self._capacity - len(self.claims)

    def forget(self, request_id: str) -> None:
        """The claim is no longer held (finished, lost, or left to its lease)."""
        self.claims.pop(request_id, None)
        self._consumer.forget(request_id)
        self._changed.set()

    def recheck_admission(self) -> None:
        """`can_admit` may have changed."""
        self._changed.set()

    async def finish(self, request_id: str) -> None:
        """Gives a claim up for good: nobody shall serve this request any more."""
        claim = self.claims.get(request_id)
        if claim is not None:
            self.forget(request_id)
            await self._consumer.finish(claim.entry_id)

    def stop_claiming(self) -> None:
        """From now on only what is owned is served."""
        self._claiming = False
        self._consumer.interrupt()
        self._changed.set()

    async def until_empty(self, deadline: float) -> bool:
        """Waits until nothing is owned, until `deadline` (event-loop time) at the most."""
        try:
            async with asyncio.timeout_at(deadline):
                while self.claims:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, hand_over: bool) -> None:
        """Hands over what is left, or leaves it to its leases; leaves the group. `claim` and `keep` are cancelled."""
        self.stop_claiming()
        try:
            if self.claims and hand_over:
                await self._consumer.hand_over([claim.entry_id for claim in self.claims.values()])
        except ConnectorError as error:
            log.warning("could not hand %d requests over, their lease will run out: %s", len(self.claims), error)
        self.claims.clear()
        await self._consumer.close()

    async def _take(self, claims: Sequence[Claim]) -> None:
        """Takes what there is room for: a claim and a takeover may both have been given the last free row."""
        new = [claim for claim in claims if claim.request.id not in self.claims]
        taken, excess = new[: self.free], new[self.free :]
        for claim in taken:
            if claim.redelivered:
                self._takeovers.inc()
            self.claims[claim.request.id] = claim
            self._admit(claim)
        if excess:
            await self._consumer.hand_over([claim.entry_id for claim in excess])

    async def claim(self) -> None:
        """Claims while there are free rows, until `stop_claiming`: one at a time, so that replicas share a burst."""
        while self._claiming:
            self._changed.clear()
            if self.free <= 0 or not self._can_admit():
                self._troubled.discard("claim")
                await self._changed.wait()
                continue
            try:
                claims = await self._consumer.claim(1)
                self._began = True
                self._troubled.discard("claim")
                await self._take(claims)
            except ConnectorError as error:
                self._troubled.add("claim")
                log.warning("cannot claim: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def keep(self) -> None:
        """Refreshes claims and takes over from the silent, until cancelled."""
        while True:
            try:
                await self._refresh()
                if self._claiming and self.free > 0:
                    await self._take(await self._consumer.take_over(self.free))
                self._troubled.discard("keep")
            except ConnectorError as error:
                # A waiting `claim` goes on trying by itself; this is what tells that it cannot be reading.
                self._troubled.add("keep")
                log.warning("cannot refresh claims: %s", error)
            await asyncio.sleep(REFRESH_SECONDS)

    async def _refresh(self) -> None:
        held = {claim.entry_id: request_id for request_id, claim in self.claims.items()}
        if not held:
            return
        for entry_id in await self._consumer.refresh(list(held)):
            request_id = held[entry_id]
            # It may have been finished and forgotten while the answer travelled.
            if request_id in self.claims:
                self.forget(request_id)
                self._lost(request_id)
