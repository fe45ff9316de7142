"""Writes entries in order, everything that is waiting in one round trip, while the next step runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client import Histogram

from syrinx_stages.connector.base import Append, ConnectorError, Gone, StageConnector, Superseded

log = logging.getLogger(__name__)

MAX_WAITING = 1024
"""Entries that may wait to be written; then the engine waits (Redis is away or slower than we are)."""
RETRY_SECONDS = 0.2


class _Sent(NamedTuple):
    """Entries on their way."""

    batch: list[Append]
    at: float
    outcomes: asyncio.Future[Sequence[Gone | Superseded | None]]


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
        self._sent: _Sent | None = None
        self._running = False

    def put(self, appends: Sequence[Append]) -> None:
        """Queues entries behind all earlier ones; they are sent at once unless others are on their way.

        Ends alone wait for what else is put before the event loop goes on: the step that they were made in.
        """
        if not appends:
            return
        self._connector.deliver_locally(appends)
        self._waiting.extend(appends)
        if self._running and self._sent is None and appends[-1].finishes is None:
            self._send()
        self._changed.set()

    async def room(self) -> None:
        """Waits while too much is queued."""
        while len(self._waiting) >= MAX_WAITING:
            self._taken.clear()
            await self._taken.wait()

    async def run(self) -> None:
        """Writes until cancelled; what is queued then is dropped (another replica will make it again)."""
        self._running = True
        try:
            while True:
                await self._changed.wait()
                if self._sent is None and self._waiting:
                    self._send()
                if self._sent is not None:
                    await self._settle(self._sent)
                    self._sent = None
                if not self._waiting:
                    self._changed.clear()
        finally:
            self._running = False
            if self._sent is not None:
                self._sent.outcomes.cancel()

    def _send(self) -> None:
        batch, self._waiting = self._waiting, []
        self._taken.set()
        self._sent = _Sent(batch, time.perf_counter(), asyncio.ensure_future(self._connector.append(batch)))

    async def _settle(self, sent: _Sent) -> None:
        """Until Redis answers. What arrived although its reply was lost is refused now; then the lease runs out."""
        batch, started, outcomes = sent
        while True:
            try:
                results = await outcomes
                break
            except ConnectorError as error:
                log.warning("cannot write %d entries, will try again: %s", len(batch), error)
                await asyncio.sleep(RETRY_SECONDS)
            started, outcomes = time.perf_counter(), asyncio.ensure_future(self._connector.append(batch))
        self._seconds.observe(time.perf_counter() - started)
        for append, outcome in zip(batch, results, strict=True):
            if outcome is None:
                self._written(append)
            else:
                self._refused(append, outcome)
