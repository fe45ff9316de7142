"""A barrier after a write that a fail-over must not lose: a request, or a claim before its first entry."""

import asyncio
import logging
import math
import re

from syrinx_stages.connector.redis.connection import Address, Connection, ReplyError, Unavailable

log = logging.getLogger(__name__)

WAIT_MS = 50
"""How long to wait for a replica. A healthy one acknowledges within a round trip."""
LAGGING_SECONDS = 1.0
"""How long not to wait again for a replica that did not acknowledge in time."""
CHECK_SECONDS = 5.0
"""Interval at which to look for replicas."""
REPLY_SECONDS = 5.0


class ReplicationBarrier:
    """Waits until a replica has what a connection has written.

    While no replica acknowledges, it asks the sentinels whether the server is still the primary. One that was paused
    serves what its connections hold although another server has replaced it, and all of that is lost.
    """

    def __init__(self) -> None:
        self._has_replica = False
        self._checked_at = self._lagging_since = self._acknowledged = -math.inf
        """Event-loop times. What was written before the last one is acknowledged."""
        self._waiting = asyncio.Lock()
        """One command waits at a time, for all that was written before it: it holds up the connection."""
        self._warned = False

    async def wait(self, connection: Connection, address: Address, connected_seconds: float) -> None:
        """Returns once a replica has what `connection` has written, or none can get it from the primary of `address`.

        Raises `Unavailable` if the server is no longer the primary, and `OSError` if the connection is lost.
        `connected_seconds`: since the last reconnection, when the replicas of the server may have become others.
        """
        written_at = asyncio.get_running_loop().time()
        async with self._waiting:
            if self._acknowledged >= written_at or await self._is_acknowledged(connection, connected_seconds):
                return
        await address.confirm_primary()

    async def _is_acknowledged(self, connection: Connection, connected_seconds: float) -> bool:
        """Returns whether a replica has acknowledged all that `connection` has written."""
        now = asyncio.get_running_loop().time()
        try:
            if now - self._checked_at > min(CHECK_SECONDS, connected_seconds):
                info = await connection.call((b"INFO", b"replication"), REPLY_SECONDS)
                self._has_replica = re.search(rb"connected_slaves:[1-9]", info) is not None
                self._checked_at = now
            if self._has_replica and now - self._lagging_since > LAGGING_SECONDS:
                if await connection.call((b"WAIT", 1, WAIT_MS), REPLY_SECONDS):
                    self._warned, self._acknowledged = False, now
                    return True
                self._lagging_since, self._checked_at = now, -math.inf
                self._warn(f"no replica has acknowledged a write within {WAIT_MS} ms: a fail-over now could lose it")
        except Unavailable:
            raise
        except ReplyError as error:
            self._has_replica, self._checked_at = False, now
            self._warn(f"cannot wait for a replica: {error}")
        return False

    def _warn(self, message: str) -> None:
        """Logs the first failure after a success."""
        if not self._warned:
            log.warning("%s", message)
        self._warned = True
