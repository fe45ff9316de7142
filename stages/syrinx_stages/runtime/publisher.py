"""Writes entries in order, everything that is waiting in one round trip, while the next step runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from prometheus_client import Histogram

from syrinx_stages.connector.base import Append, ConnectorError, Gone, StageConnector, Superseded

log = logging.getLogger(__name__)

MAX_WAITING = 1024
"""Entries that may wait to be written; then the engine waits (Redis is away or slower than we are)."""
RETRY_SECONDS = 0.2


class Publisher:
    """One ordered queue of appends to the connector.

    `written` is called for entries that were accepted, `refused` for those that were not, each in order.
    """

    def __init__(
        self,
        connector: StageConnector,
        written: Callable[[Append], None],
        refused: Callable[[Append, Gone | Superseded], None],
        seconds: Histogram,
    ) -> None:
        self._connector = connector
        self._written = written
        self._refused = refused
        self._seconds = seconds
        self._waiting: list[Append] = []
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    def put(self, appends: Sequence[Append]) -> None:
        """Queues entries behind all earlier ones."""
        if appends:
            self._connector.hand(appends)
            self._waiting.extend(appends)
            self._changed.set()

    async def room(self) -> None:
        """Waits while too much is queued."""
        while len(self._waiting) >= MAX_WAITING:
            self._taken.clear()
            await self._taken.wait()

    async def run(self) -> None:
        """Writes until cancelled; what is queued then is dropped (another replica will make it again)."""
        while True:
            self._changed.clear()
            if not self._waiting:
                await self._changed.wait()
                continue
            batch, self._waiting = self._waiting, []
            self._taken.set()
            await self._write(batch)

    async def _write(self, batch: list[Append]) -> None:
        """Until Redis answers. What arrived although its reply was lost is refused now; then the lease runs out."""
        while True:
            started = time.perf_counter()
            try:
                outcomes = await self._connector.append(batch)
            except ConnectorError as error:
                log.warning("cannot write %d entries, will try again: %s", len(batch), error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._seconds.observe(time.perf_counter() - started)
            for append, outcome in zip(batch, outcomes, strict=True):
                if outcome is None:
                    self._written(append)
                else:
                    self._refused(append, outcome)
            return
