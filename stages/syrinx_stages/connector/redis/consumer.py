"""The Redis consumer: the membership of one replica in a consumer group of the request stream."""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Sequence, Set

import msgspec

from syrinx_stages.connector.base import (
    CLAIM_SECONDS,
    OUTPUT_STREAM,
    REFRESH_SECONDS,
    WRITER_GROUP,
    Capacity,
    Claim,
    ConnectorError,
    Fence,
)
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.blocking import BlockingConnection
from syrinx_stages.connector.redis.connection import Command, ReplyError
from syrinx_stages.connector.redis.pool import COMMAND_SECONDS, CommandPool
from syrinx_stages.contract.keys import Keys, StreamKind
from syrinx_stages.contract.messages import decode_request
from syrinx_stages.contract.stages import Stage

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""How often a claim is checked whose output is not. Owners learn of most lost claims sooner, from their writes."""
MIN_CHECKED = 8
"""So many claims are checked at each refresh, if there are as many."""

_Delivery = tuple[bytes, bytes, bool]
"""Entry ID, encoded request, whether it was delivered before."""


class RedisConsumer:
    """Implements `base.Consumer`."""

    def __init__(
        self,
        pool: CommandPool,
        keys: Keys,
        group: Stage,
        name: str,
        lease_seconds: float,
        ended: Callable[[], Set[str]],
        is_checked: Callable[[str, StreamKind, Fence], bool],
        standby_of: str = "",
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._group = group
        self._name = name
        self._lease_ms = round(1000 * lease_seconds)
        self._ended = ended
        self._is_checked = is_checked
        self._standby_of = standby_of
        self.stands_by = bool(standby_of)
        self._held: dict[str, Claim] = {}
        """Accepted claims by entry ID; the one that was checked longest ago is the first."""
        self._accepting: set[str] = set()
        """Claims that are being accepted."""
        self._held_ids: dict[str, set[str]] = {}
        """Their entry IDs, by request."""
        self._renewed_at = self._refreshed_at = self._released_at = -math.inf
        """When the lease was last renewed, the claims were last checked, and unknown ones were given away."""
        self._deliveries: list[_Delivery] = []
        """Requests that Redis has delivered and no caller has received yet."""
        self._blocking = BlockingConnection(pool, self._join)
        # A previous process with this name may have left claims.
        self._blocking.interrupted = True
        self._claim_lock = asyncio.Lock()
        self._take_over_lock = asyncio.Lock()
        """Two concurrent scans would both find a request and count its delivery twice."""
        self._joined = False
        self._interrupted = False
        self._closed = False

    async def claim(self, count: int) -> Sequence[Claim]:
        async with self._claim_lock:
            self._interrupted = self._closed
            if not self._deliveries and self._must_recover:
                await self._recover(count)
            if not self._deliveries and not self._interrupted:
                await self._receive(count)
            return await self._take(count)

    async def take_over(self, count: int) -> Sequence[Claim]:
        if self._must_recover and not self._claim_lock.locked():
            async with self._claim_lock:
                await self._recover(count)
                return await self._take(count)
        async with self._take_over_lock:
            return await self._accept(await self._take_over(count))

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        lost = [entry_id for entry_id in entry_ids if entry_id not in self._held]
        claims, started = self._to_check(entry_ids), asyncio.get_running_loop().time()
        arguments: list[bytes | str | int] = [self._group, self._name, OUTPUT_STREAM[self._group]]
        for claim in claims:
            arguments += (claim.entry_id, claim.fence.token)
        keys = [*self._queue_keys, self._keys.writers]
        for claim in claims:
            output = self._keys.stream(claim.request.id, OUTPUT_STREAM[self._group])
            keys += (output, self._keys.owners(claim.request.id))
        # Capacity reports renew the lease, too.
        if claims or started - self._renewed_at > 2 * REFRESH_SECONDS:
            reply = await self._pool.run(scripts.REFRESH, keys, arguments)
            lost += [entry_id.decode() for entry_id in reply]
            self._renewed_at = started
        self._refreshed_at = started
        self._drop(lost)
        if started - self._released_at > CHECK_SECONDS:
            await self._release_unknown(self._lease_ms)
            self._released_at = started
        return lost

    def _to_check(self, entry_ids: Sequence[str]) -> list[Claim]:
        """Returns the claims to check now: all of them after a pause or a reconnection, else a few in turn.

        Then those whose output was checked when it was written are not checked again.
        """
        wanted = set(entry_ids)
        claims = [claim for entry_id, claim in self._held.items() if entry_id in wanted]
        lease_seconds = self._lease_ms / 1000
        unrefreshed = asyncio.get_running_loop().time() - self._refreshed_at
        if unrefreshed < lease_seconds / 2 and self._pool.connected_seconds > 2 * lease_seconds:
            kind = OUTPUT_STREAM[self._group]
            claims = [claim for claim in claims if not self._is_checked(claim.request.id, kind, claim.fence)]
            claims = claims[: max(MIN_CHECKED, math.ceil(len(claims) * REFRESH_SECONDS / CHECK_SECONDS))]
        for claim in claims:
            self._held[claim.entry_id] = self._held.pop(claim.entry_id)
        return claims

    async def finish(self, entry_id: str) -> None:
        self._drop([entry_id])
        await self._pool.run(scripts.FINISH, [self._keys.requests], [self._group, entry_id])

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        self._drop(entry_ids)
        await self._pool.run(scripts.HAND_OVER, self._queue_keys, [self._group, self._name, *entry_ids])

    async def reclaim(self, claim: Claim) -> Sequence[Claim]:
        return await self._fenced([msgspec.structs.replace(claim, redelivered=True)])

    async def report(self, capacity: Capacity) -> float | None:
        started, rate = asyncio.get_running_loop().time(), f"{capacity.requests_per_second:.3f}"
        standby = (self._standby_of, self._lease)
        arguments: Command = [self._group, self._name, str(capacity.free), rate, *standby]
        keys = [self._keys.capacity, *self._queue_keys]
        codecs, free, stands_by = await self._pool.run(scripts.REPORT_CAPACITY, keys, arguments)
        self._renewed_at = started
        self.stands_by = stands_by == 1
        return float(free) if codecs and self._group is Stage.TALKER else None

    def _drop(self, entry_ids: Sequence[str]) -> None:
        """Forgets claims; those that are not held, too."""
        for entry_id in entry_ids:
            if (claim := self._held.pop(entry_id, None)) is not None:
                self._held_ids[claim.request.id].discard(entry_id)
                if not self._held_ids[claim.request.id]:
                    del self._held_ids[claim.request.id]

    def forget(self, request_id: str) -> None:
        self._drop(list(self._held_ids.get(request_id, ())))

    def forget_fence(self, request_id: str, fence: Fence) -> None:
        """Forgets a request if it is still held under this fence, not under that of a later claim."""
        if any(self._held[entry_id].fence == fence for entry_id in self._held_ids.get(request_id, ())):
            self.forget(request_id)

    def interrupt(self) -> None:
        self._interrupted = True
        self._blocking.wake()

    async def close(self) -> None:
        """Hands over requests that no caller has received, leaves the group if nothing is owned, and disconnects."""
        if self._closed:
            return
        self._closed = True
        self.interrupt()
        if self._joined:
            await self._leave()
        await self._blocking.close()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(CLAIM_SECONDS + COMMAND_SECONDS), self._claim_lock:
                if self._blocking.outstanding:
                    await self._receive(0)
                if self._deliveries:
                    await self.hand_over([entry_id.decode() for entry_id, *_ in self._deliveries])
                keys = [self._keys.requests, self._keys.capacity, self._keys.leases(self._group)]
                await self._pool.run(scripts.LEAVE, keys, [self._group, self._name])
        except (ConnectorError, TimeoutError) as error:
            log.warning("%s could not leave the group %s, its leases will expire: %s", self._name, self._group, error)

    @property
    def _queue_keys(self) -> list[str]:
        return [self._keys.requests, self._keys.leases(self._group)]

    async def _join(self) -> None:
        self._joined = True
        await self._pool.run(scripts.JOIN, self._queue_keys, [self._group, self._name])

    async def _receive(self, count: int) -> None:
        """Waits for requests and stores them before anything can cancel the caller."""

        def command() -> Command:
            consumer = (b"GROUP", self._group, self._name)
            limits = (b"COUNT", count, b"BLOCK", round(1000 * CLAIM_SECONDS))
            return (b"XREADGROUP", *consumer, *limits, b"STREAMS", self._keys.requests, b">")

        try:
            reply = await self._blocking.call(command)
        except ReplyError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise self._pool.failure(error) from error
            log.warning("the request queue was deleted; creating a new one")
            await self._join()
            return
        # Redis delivers a request again if it has lost the first delivery.
        held, ended = self._held, self._ended()
        for _, entries in reply or ():
            for at, fields in entries:
                if (entry_id := at.decode()) not in held and entry_id not in ended:
                    self._deliveries.append((at, fields[1], False))

    @property
    def _must_recover(self) -> bool:
        """A delivery to this name may have been lost with its connection, and none is outstanding now."""
        return self._blocking.interrupted and not self._blocking.outstanding

    async def _recover(self, count: int) -> None:
        await self._join()
        async with self._take_over_lock:
            await self._release_unknown(0)
            self._deliveries += await self._take_over(count)
        self._blocking.interrupted = False

    async def _release_unknown(self, idle_ms: int) -> None:
        """Hands over claims that Redis has under this name but this process does not know, once idle for `idle_ms`.

        An earlier process of this name had them, or they were given up, or their delivery was lost.
        """
        arguments: Command = [self._group, self._name, idle_ms, *self._known]
        await self._pool.run(scripts.RELEASE_UNKNOWN, self._queue_keys, arguments)

    @property
    def _known(self) -> list[bytes | str]:
        """The claims that this consumer holds, is being given, or has ended."""
        delivered = [entry_id for entry_id, *_ in self._deliveries]
        return [*self._held, *self._accepting, *self._ended(), *delivered]

    @property
    def _lease(self) -> str:
        """The lease in ms; empty if claims are not to be taken over unless they were handed over.

        Owners could not renew their leases either while Redis was unreachable: they get the time of a lease to do so.
        """
        return str(self._lease_ms) if self._pool.connected_seconds > self._lease_ms / 1000 else ""

    async def _take_over(self, count: int) -> list[_Delivery]:
        consumer = (self._group, self._name)
        if not await self._pool.run(scripts.FIND_DUE, self._queue_keys, [*consumer, self._lease]):
            return []
        arguments: Command = [*consumer, self._lease, count, *self._known]
        taken = await self._pool.run(scripts.TAKE_OVER, self._queue_keys, arguments)
        return [(entry_id, request, True) for entry_id, request in taken]

    async def _take(self, count: int) -> Sequence[Claim]:
        """Turns deliveries into claims; if cancelled, they stay for the next call or `close`."""
        if self._closed:
            return ()
        taken = self._deliveries[:count]
        # An attempt that fails may have made this consumer the owner.
        self._deliveries[:count] = [(entry_id, request, True) for entry_id, request, _ in taken]
        claims = await self._accept(taken)
        del self._deliveries[:count]
        return claims

    async def _accept(self, deliveries: Sequence[_Delivery]) -> list[Claim]:
        """Turns deliveries into claims. Finishes those that cannot be decoded or that no client waits for."""
        claims: list[Claim] = []
        for entry_id, payload, redelivered in deliveries:
            try:
                claims.append(Claim(entry_id.decode(), decode_request(payload), redelivered=redelivered))
            except msgspec.DecodeError as error:
                log.error("dropping request entry %s, which cannot be decoded: %s", entry_id.decode(), error)
                # Nor can the other group, and what a codec has finished leaves the queue of both.
                await self._pool.run(scripts.FINISH, [self._keys.requests], [Stage.CODEC, entry_id])
        return await self._fenced(claims)

    async def _fenced(self, claims: Sequence[Claim]) -> list[Claim]:
        """Returns the claims that are still this consumer's, each with a new epoch."""
        if not claims:
            return []
        kind, nonce = OUTPUT_STREAM[self._group], f"{random.getrandbits(48):x}"
        arguments: list[bytes | str | int] = [self._group, self._name, kind, nonce]
        for claim in claims:
            arguments += (claim.entry_id, int(claim.redelivered))
        keys = [self._keys.requests, self._keys.writers]
        for claim in claims:
            request_id = claim.request.id
            keys += (self._keys.stream(request_id, output) for output in WRITER_GROUP)
            keys.append(self._keys.owners(request_id))
        # A replica that is promoted must know every owner that has written.
        self._accepting.update(claim.entry_id for claim in claims)
        try:
            replies = await self._pool.run(scripts.ACCEPT, keys, arguments, replicated=True)
        finally:
            self._accepting.difference_update(claim.entry_id for claim in claims)
        fenced = []
        for claim, (token, deliveries) in zip(claims, replies, strict=True):
            if token:
                fence = Fence(self._group, token.decode())
                fenced.append(msgspec.structs.replace(claim, deliveries=deliveries, fence=fence))
        for claim in fenced:
            self._held[claim.entry_id] = claim
            self._held_ids.setdefault(claim.request.id, set()).add(claim.entry_id)
        return fenced
