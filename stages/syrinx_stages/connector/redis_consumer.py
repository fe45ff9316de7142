"""One replica's membership in a consumer group of the request stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from syrinx_stages.connector import redis_scripts as scripts
from syrinx_stages.connector.base import CLAIM_SECONDS, OUTPUT_STREAM, Claim, ConnectorError
from syrinx_stages.connector.redis_blocking import Blocking
from syrinx_stages.connector.redis_connection import Command
from syrinx_stages.connector.redis_errors import ReplyError
from syrinx_stages.connector.redis_link import COMMAND_SECONDS, Commands
from syrinx_stages.contract.keys import Group, Keys
from syrinx_stages.contract.messages import decode_request

log = logging.getLogger(__name__)

_Delivered = tuple[bytes, bytes, int, bool]
"""Entry id, request, deliveries, whether it was delivered before."""


class RedisConsumer:
    """See `base.Consumer`."""

    def __init__(self, commands: Commands, keys: Keys, group: Group, name: str, lease_seconds: float) -> None:
        self._commands = commands
        self._keys = keys
        self._group = group
        self._name = name
        self._lease_ms = round(1000 * lease_seconds)
        self._held: dict[str, str] = {}
        self._delivered: list[_Delivered] = []
        self._blocking = Blocking(commands, self._join)
        # An earlier life of this name may have left claims.
        self._blocking.interrupted = True
        self._claiming = asyncio.Lock()
        self._taking = asyncio.Lock()
        """Two looks at once would both find a request, and count it twice."""
        self._joined = False
        self._stopped = False
        self._closed = False

    async def claim(self, count: int) -> Sequence[Claim]:
        """Waits for up to `count` unclaimed requests."""
        async with self._claiming:
            self._stopped = self._closed
            if not self._delivered and self._uncertain:
                await self._recover(count)
            if not self._delivered and not self._stopped:
                await self._receive(count)
            return await self._take(count)

    async def take_over(self, count: int) -> Sequence[Claim]:
        """Up to `count` requests whose owner fell silent, and this consumer's own from an earlier life."""
        if self._uncertain and not self._claiming.locked():
            async with self._claiming:
                await self._recover(count)
                return await self._take(count)
        async with self._taking:
            return await self._accept(await self._take_over(count, own=False))

    async def refresh(self, entry_ids: Sequence[str]) -> Sequence[str]:
        """Keeps claims; returns those that are no longer this consumer's."""
        known = [entry_id for entry_id in entry_ids if entry_id in self._held]
        lost = [entry_id for entry_id in entry_ids if entry_id not in self._held]
        if known:
            keys = [self._keys.requests, *(self._output(self._held[entry_id]) for entry_id in known)]
            reply = await self._commands.run(scripts.REFRESH, keys, [self._group, self._name, *known])
            lost += [entry_id.decode() for entry_id in reply]
        for entry_id in lost:
            self._held.pop(entry_id, None)
        return lost

    async def finish(self, entry_id: str) -> None:
        """Gives a claim up for good without writing."""
        self._held.pop(entry_id, None)
        await self._commands.run(scripts.FINISH, [self._keys.requests], [self._group, entry_id])

    async def hand_over(self, entry_ids: Sequence[str]) -> None:
        """Lets others take these claims over at once."""
        for entry_id in entry_ids:
            self._held.pop(entry_id, None)
        await self._commands.run(scripts.HAND_OVER, [self._keys.requests], [self._group, self._name, *entry_ids])

    def forget(self, request_id: str) -> None:
        """Serves a request no longer and says nothing."""
        for entry_id in [entry_id for entry_id, held in self._held.items() if held == request_id]:
            del self._held[entry_id]

    def interrupt(self) -> None:
        """Makes a waiting `claim` return soon."""
        self._stopped = True
        self._blocking.wake()

    async def close(self) -> None:
        """Hands over what no caller has got, leaves the group if nothing is owned, and frees the connection."""
        if self._closed:
            return
        self._closed = True
        self.interrupt()
        if self._joined:
            await self._leave()
        await self._blocking.close()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(CLAIM_SECONDS + COMMAND_SECONDS), self._claiming:
                if self._blocking.outstanding:
                    await self._receive(0)
                if self._delivered:
                    await self.hand_over([entry_id.decode() for entry_id, *_ in self._delivered])
                await self._commands.run(scripts.LEAVE, [self._keys.requests], [self._group, self._name])
        except (ConnectorError, TimeoutError) as error:
            log.warning("%s could not leave %s, its leases will run out: %s", self._name, self._group, error)

    def _output(self, request_id: str) -> str:
        return self._keys.stream(request_id, OUTPUT_STREAM[self._group])

    async def _join(self) -> None:
        self._joined = True
        await self._commands.run(scripts.JOIN, [self._keys.requests], [self._group])

    async def _receive(self, count: int) -> None:
        """Waits for requests and notes them before anything else can happen."""

        def command() -> Command:
            wait = round(1000 * CLAIM_SECONDS)
            who = (b"GROUP", self._group, self._name)
            return (b"XREADGROUP", *who, b"COUNT", count, b"BLOCK", wait, b"STREAMS", self._keys.requests, b">")

        try:
            reply = await self._blocking.call(command)
        except ReplyError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise self._commands.address.failure(error) from error
            log.warning("the request queue was deleted; starting a new one")
            await self._join()
            return
        for _, entries in reply or ():
            self._delivered += [(entry_id, fields[1], 1, False) for entry_id, fields in entries]

    @property
    def _uncertain(self) -> bool:
        """Something may have been delivered to this name that never arrived, and nothing is on its way now."""
        return self._blocking.interrupted and not self._blocking.outstanding

    async def _recover(self, count: int) -> None:
        await self._join()
        async with self._taking:
            self._delivered += await self._take_over(count, own=True)
        self._blocking.interrupted = False

    async def _take_over(self, count: int, own: bool) -> list[_Delivered]:
        arriving = [entry_id for entry_id, *_ in self._delivered]
        who: Command = [self._group, self._name]
        arguments = [*who, self._lease_ms, count, int(own), *self._held, *arriving]
        taken = await self._commands.run(scripts.TAKE_OVER, [self._keys.requests], arguments)
        return [(entry_id, request, deliveries, True) for entry_id, request, deliveries in taken]

    async def _take(self, count: int) -> Sequence[Claim]:
        """Claims of what was delivered; until they are ready it stays where the next call or `close` finds it."""
        if self._closed:
            return ()
        claims = await self._accept(self._delivered[:count])
        del self._delivered[:count]
        return claims

    async def _accept(self, delivered: Sequence[_Delivered]) -> list[Claim]:
        """Makes claims of what was delivered, without what cannot be read and what nobody waits for."""
        claims: list[Claim] = []
        for entry_id, payload, deliveries, redelivered in delivered:
            try:
                claims.append(Claim(entry_id.decode(), decode_request(payload), deliveries, redelivered))
            except msgspec.DecodeError as error:
                log.error("dropping request entry %s, which cannot be read: %s", entry_id.decode(), error)
                await self.finish(entry_id.decode())
        if not claims:
            return claims
        keys = [self._keys.requests, *(self._output(claim.request.id) for claim in claims)]
        ids = [claim.entry_id for claim in claims]
        wanted = await self._commands.run(scripts.WANTED, keys, [self._group, *ids])
        claims = [claim for claim, exists in zip(claims, wanted, strict=True) if exists]
        self._held.update((claim.entry_id, claim.request.id) for claim in claims)
        return claims
