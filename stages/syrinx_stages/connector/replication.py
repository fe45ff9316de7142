"""A barrier between a claim and its first entry: a replica that is promoted later must know the newest owner."""

import asyncio
import logging
import math
import re

from syrinx_stages.connector.base import ConnectorError
from syrinx_stages.connector.redis_connection import LOST, Connection, ReplyError
from syrinx_stages.connector.redis_pool import COMMAND_SECONDS, CommandPool
from syrinx_stages.connector.redis_scripts import QUEUE_TTL_SECONDS

log = logging.getLogger(__name__)

WAIT_MS = 50
"""How long to wait for a replica. A healthy one acknowledges within a round trip."""
LAGGING_SECONDS = 1.0
"""How long not to wait again for a replica that did not acknowledge in time."""
CHECK_SECONDS = 5.0
"""Interval at which to look for replicas, while requests are claimed."""


class ReplicationBarrier:
    """Waits until a replica has everything that was written before. Costs nothing while no replica is connected."""

    def __init__(self, pool: CommandPool, key: str) -> None:
        """`key` is an existing key: WAIT covers what Redis executed before the last write of its own connection."""
        self._pool = pool
        self._key = key
        self._connection: Connection | None = None
        self._has_replica = False
        self._checked_at = self._lagging_since = -math.inf
        """Event-loop times."""
        self._warned = False

    async def wait(self) -> None:
        """Returns once a replica has acknowledged, if one is connected, but after `WAIT_MS` at the latest."""
        now = asyncio.get_running_loop().time()
        try:
            if now - self._checked_at > min(CHECK_SECONDS, self._pool.connected_seconds):
                info = await self._pool.call(b"INFO", b"replication")
                self._has_replica = re.search(rb"connected_slaves:[1-9]", info) is not None
                self._checked_at = now
            if self._has_replica and now - self._lagging_since > LAGGING_SECONDS:
                await self._wait(now)
        except (ConnectorError, ReplyError, *LOST) as error:
            # The claim stands: only a fail-over at this moment could lose it.
            log.warning("cannot wait for the replica: %s", error)

    async def _wait(self, now: float) -> None:
        if self._connection is None or not self._connection.is_open:
            self._connection = await Connection.open(self._pool.address)
        await self._connection.call((b"EXPIRE", self._key, QUEUE_TTL_SECONDS), COMMAND_SECONDS)
        if await self._connection.call((b"WAIT", 1, WAIT_MS), COMMAND_SECONDS):
            self._warned = False
            return
        self._lagging_since = now
        if not self._warned:
            log.warning("no replica has acknowledged a claim within %d ms: a fail-over now could lose it", WAIT_MS)
        self._warned = True

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
