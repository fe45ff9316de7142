"""The requests that a replica owns: it claims them while rows are free, renews leases and takes over expired ones."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from prometheus_client import Counter

from syrinx_stages.connector.base import REFRESH_SECONDS, Capacity, Claim, ConnectorError, Consumer
from syrinx_stages.contract import logs

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""Pause after the connector failed."""
REPORT_SECONDS = 0.05
"""Minimum interval of capacity reports, unless a request has ended: its client may send the next one at once. While
nothing changes, they are sent with `REFRESH_SECONDS` between them."""
AMPLE_REQUESTS = 8
"""A replica that has reported room for this many reports the end of a request with the next report."""


class Ownership:
    """Claims up to `capacity` requests and keeps them until they are finished or lost.

    `admit` is called once per claim, and `lost` with the ID of a request that another replica has taken over. At most
    as many as `admissible` returns are claimed at once: other replicas can claim the waiting requests. `measure`
    returns how much more the replica can serve, which is reported to the gateways: they refuse what would wait too
    long.

    A standby claims nothing while its replica holds its lease. It always takes over requests with an expired lease, and
    finishes what it owns.
    """

    def __init__(
        self,
        consumer: Consumer,
        capacity: int,
        admit: Callable[[Claim], None],
        lost: Callable[[str], None],
        admissible: Callable[[], int],
        measure: Callable[[], Capacity],
        takeovers: Counter,
    ) -> None:
        self.claims: dict[str, Claim] = {}
        """Owned requests, by request ID."""
        self._started = False
        self._failing: set[str] = set()
        """Which of the loops failed in its last iteration."""
        self._consumer = consumer
        self.capacity = capacity
        """Maximum number of claims."""
        self._admit = admit
        self._lost = lost
        self._admissible = admissible
        self._measure = measure
        self._takeovers = takeovers
        self._changed = asyncio.Event()
        self._report_due = asyncio.Event()
        self._freed = asyncio.Event()
        self.codecs_free: float = 1
        """Number of requests that the codecs can take, as last reported; 1 if none has reported."""
        self.claiming = True
        """False once `stop_claiming` was called."""

    @property
    def is_consuming(self) -> bool:
        """The replica reads its consumer group, which is a condition of readiness."""
        return self._started and not self._failing

    @property
    def may_claim(self) -> bool:
        """Whether new requests may be claimed: the replica is neither draining nor standing by."""
        return self.claiming and not self._consumer.stands_by

    @property
    def free(self) -> int:
        """Number of requests that can still be claimed."""
        return self.capacity - len(self.claims)

    def forget(self, request_id: str) -> None:
        """Removes a claim that was finished, lost, or left to expire."""
        self.claims.pop(request_id, None)
        self._consumer.forget(request_id)
        self._freed.set()
        self.recheck_admission()

    async def reclaim(self, claim: Claim) -> None:
        """Admits a forgotten claim again if this replica still owns the request."""
        try:
            await self._take(await self._consumer.reclaim(claim))
        except ConnectorError as error:
            fields = logs.of_request(claim.request.id, claim.request.traceparent)
            log.warning("request %s is left to other replicas: %s", claim.request.id, error, extra=fields)

    def recheck_admission(self) -> None:
        """Makes the claim loop call `admissible` again, and reports the capacity if it has changed."""
        self._changed.set()
        self._report_due.set()

    async def finish(self, request_id: str) -> None:
        """Finishes a claim without writing: no replica shall serve the request any more."""
        claim = self.claims.get(request_id)
        if claim is not None:
            self.forget(request_id)
            await self._consumer.finish(claim.entry_id)

    def stop_claiming(self) -> None:
        """Claims nothing further; owned requests are still served."""
        self.claiming = False
        self._consumer.interrupt()
        self._changed.set()

    async def wait_until_empty(self, deadline: float) -> bool:
        """Waits until no request is owned. Returns False at `deadline` (event-loop time)."""
        try:
            async with asyncio.timeout_at(deadline):
                while self.claims:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, hand_over: bool) -> None:
        """Hands over the remaining requests, or lets their leases expire, and leaves the group.

        Cancel `claim_loop` and `lease_loop` before.
        """
        self.stop_claiming()
        try:
            if self.claims and hand_over:
                await self._consumer.hand_over([claim.entry_id for claim in self.claims.values()])
        except ConnectorError as error:
            log.warning("could not hand over %d requests, their leases will expire: %s", len(self.claims), error)
        self.claims.clear()
        await self._consumer.close()

    async def _take(self, claims: Sequence[Claim]) -> None:
        """Admits claims. Hands over the excess: a claim and a takeover may both have been given the last free row."""
        new = [claim for claim in claims if claim.request.id not in self.claims]
        taken, excess = new[: self.free], new[self.free :]
        for claim in taken:
            if claim.redelivered:
                self._takeovers.inc()
            self.claims[claim.request.id] = claim
            self._admit(claim)
        if excess:
            await self._consumer.hand_over([claim.entry_id for claim in excess])

    async def claim_loop(self) -> None:
        """Claims while rows are free and `may_claim`, until `stop_claiming`.

        Begins with one request, so that replicas share a burst, and claims more at once while others are waiting.
        """
        count = 1
        while self.claiming:
            self._changed.clear()
            admissible = min(self.free, self._admissible()) if self.may_claim else 0
            if admissible < 1:
                self._failing.discard("claim")
                await self._changed.wait()
                continue
            try:
                claims = await self._consumer.claim(min(count, admissible))
                count = max(1, 2 * len(claims))
                self._started = True
                self._failing.discard("claim")
                await self._take(claims)
            except ConnectorError as error:
                self._failing.add("claim")
                log.warning("cannot claim: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def report_loop(self) -> None:
        """Reports the capacity when it has changed, while only the codecs are full, and periodically."""
        while True:
            capacity, free, stood_by = self._measured(), None, self._consumer.stands_by
            try:
                free = await self._consumer.report(capacity)
                self._stand_by(stood_by)
            except ConnectorError as error:
                log.warning("cannot report the capacity: %s", error)
            self.codecs_free = 1 if free is None else free
            self._changed.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._wait_for_change(capacity)

    def _stand_by(self, stood_by: bool) -> None:
        """Ends a waiting claim if the replica is back. A standby is ready without one."""
        if self._consumer.stands_by:
            self._started = True
            if not stood_by:
                log.info("the replica that this standby is for is back: claiming no requests")
                self._consumer.interrupt()
        elif stood_by:
            log.warning("the replica that this standby is for does not renew its lease: claiming requests")

    async def _wait_for_change(self, reported: Capacity) -> None:
        while True:
            if reported.free >= AMPLE_REQUESTS:
                await asyncio.sleep(REPORT_SECONDS)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPORT_SECONDS):
                        await self._freed.wait()
            self._freed.clear()
            if (self.codecs_free < 1 and self.free > 0 and self.may_claim) or self._measured().free != reported.free:
                return
            self._report_due.clear()
            await self._report_due.wait()

    def _measured(self) -> Capacity:
        return self._measure() if self.may_claim else Capacity(0, 0.0)

    async def lease_loop(self) -> None:
        """Renews leases and takes over requests with an expired lease, until cancelled."""
        while True:
            try:
                await self._refresh()
                if self.claiming and self.free > 0:
                    await self._take(await self._consumer.take_over(self.free))
                self._failing.discard("lease")
            except ConnectorError as error:
                # A waiting `claim` retries by itself; this error shows that it cannot be reading.
                self._failing.add("lease")
                log.warning("cannot refresh claims: %s", error)
            await asyncio.sleep(REFRESH_SECONDS)

    async def _refresh(self) -> None:
        """Renews the leases. A claim that is lost, but not to another replica, is admitted again."""
        held = {claim.entry_id: claim for claim in self.claims.values()}
        for entry_id in await self._consumer.refresh(list(held)):
            claim = held[entry_id]
            # It may have been finished, or claimed again, during the round trip.
            if self.claims.get(claim.request.id) is claim:
                self.forget(claim.request.id)
                self._lost(claim.request.id)
                if self.claiming:
                    await self.reclaim(claim)
