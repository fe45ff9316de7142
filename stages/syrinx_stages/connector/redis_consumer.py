"""The Redis consumer: the membership of one replica in a consumer group of the request stream."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence, Set

import msgspec

from syrinx_stages.connector import redis_scripts as scripts
from syrinx_stages.connector.base import (
    CLAIM_SECONDS,
    OUTPUT_STREAM,
    Capacity,
    Claim,
    ConnectorError,
    Fence,
)
from syrinx_stages.connector.redis_blocking import BlockingConnection
from syrinx_stages.connector.redis_connection import Command, ReplyError
from syrinx_stages.connector.redis_pool import COMMAND_SECONDS, CommandPool
from syrinx_stages.contract.keys import Group, Keys
from syrinx_stages.contract.messages import decode_request

log = logging.getLogger(__name__)

HANDED_OVER_MS = 43_200_000
"""A claim that was not refreshed for this long was handed over: see `hand_over.lua`."""

_Delivery = tuple[bytes, bytes, bool]
"""Entry ID, encoded request, whether it was delivered before."""


class RedisConsumer:
    """Implements `base.Consumer`."""

    def __init__(
        self,
        pool: CommandPool,
        keys: Keys,
        group: Group,
        name: str,
        lease_seconds: float,
        ended: Callable[[], Set[str]],
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._group = group
        self._name = name
        self._lease_ms = round(1000 * lease_seconds)
        self._ended = ended
        self._held: dict[str, Claim] = {}
        """Accepted claims by entry ID."""
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
            return await self._accept(await self._take_over(count, own=False))

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        held = [entry_id for entry_id in entry_ids if entry_id in self._held]
        lost = [entry_id for entry_id in entry_ids if entry_id not in self._held]
        if held:
            claims = [self._held[entry_id] for entry_id in held]
            arguments: list[bytes | str | int] = [self._group, self._name, OUTPUT_STREAM[self._group]]
            for claim in claims:
                arguments += (claim.entry_id, claim.fence.token)
            reply = await self._pool.run(scripts.REFRESH, self._claim_keys(claims), arguments)
            lost += [entry_id.decode() for entry_id in reply]
        for entry_id in lost:
            self._held.pop(entry_id, None)
        return lost

    async def finish(self, entry_id: str) -> None:
        self._held.pop(entry_id, None)
        await self._pool.run(scripts.FINISH, [self._keys.requests], [self._group, entry_id])

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        for entry_id in entry_ids:
            self._held.pop(entry_id, None)
        await self._pool.run(scripts.HAND_OVER, [self._keys.requests], [self._group, self._name, *entry_ids])

    async def reclaim(self, claim: Claim) -> Sequence[Claim]:
        return await self._fenced([msgspec.structs.replace(claim, redelivered=True)])

    async def report(self, capacity: Capacity) -> float | None:
        arguments: Command = [f"{self._group}:{self._name}", str(capacity.free), f"{capacity.requests_per_second:.3f}"]
        codecs, free = await self._pool.run(scripts.REPORT_CAPACITY, [self._keys.capacity], arguments)
        return float(free) if codecs else None

    def forget(self, request_id: str) -> None:
        for entry_id in [entry_id for entry_id, claim in self._held.items() if claim.request.id == request_id]:
            del self._held[entry_id]

    def forget_fence(self, request_id: str, fence: Fence) -> None:
        """Forgets a request if it is still held under this fence, not under that of a later claim."""
        if any(claim.request.id == request_id and claim.fence == fence for claim in self._held.values()):
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
                await self._pool.run(
                    scripts.LEAVE, [self._keys.requests, self._keys.capacity], [self._group, self._name]
                )
        except (ConnectorError, TimeoutError) as error:
            log.warning("%s could not leave the group %s, its leases will expire: %s", self._name, self._group, error)

    def _claim_keys(self, claims: Sequence[Claim]) -> list[str]:
        keys = [self._keys.requests]
        for claim in claims:
            output = self._keys.stream(claim.request.id, OUTPUT_STREAM[self._group])
            keys += (output, self._keys.owners(claim.request.id))
        return keys

    async def _join(self) -> None:
        self._joined = True
        await self._pool.run(scripts.JOIN, [self._keys.requests], [self._group])

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
            self._deliveries += await self._take_over(count, own=True)
        self._blocking.interrupted = False

    async def _take_over(self, count: int, own: bool) -> list[_Delivery]:
        known: list[bytes | str] = [*self._held, *self._ended(), *(entry_id for entry_id, *_ in self._deliveries)]
        # Owners could not renew their leases either while Redis was unreachable: they get the time of a lease to do so.
        settled = self._pool.connected_seconds > self._lease_ms / 1000
        lease_ms = self._lease_ms if settled else HANDED_OVER_MS
        arguments: Command = [self._group, self._name, lease_ms, count, int(own), *known]
        taken = await self._pool.run(scripts.TAKE_OVER, [self._keys.requests], arguments)
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
                await self._pool.run(scripts.FINISH, [self._keys.requests], [Group.CODECS, entry_id])
        return await self._fenced(claims)

    async def _fenced(self, claims: Sequence[Claim]) -> list[Claim]:
        """Returns the claims that are still this consumer's, each with a new epoch."""
        if not claims:
            return []
        kind, nonce = OUTPUT_STREAM[self._group], f"{random.getrandbits(48):x}"
        arguments: list[bytes | str | int] = [self._group, self._name, kind, nonce]
        for claim in claims:
            arguments += (claim.entry_id, int(claim.redelivered))
        # A replica that is promoted must know every owner that has written.
        replies = await self._pool.run(scripts.ACCEPT, self._claim_keys(claims), arguments, replicated=True)
        fenced = []
        for claim, (token, deliveries) in zip(claims, replies, strict=True):
            if token:
                fence = Fence(self._group, token.decode())
                fenced.append(msgspec.structs.replace(claim, deliveries=deliveries, fence=fence))
        self._held.update((claim.entry_id, claim) for claim in fenced)
        return fenced
