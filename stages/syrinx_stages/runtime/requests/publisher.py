"""Writes entries in order, all waiting ones in one round trip, while the engine computes the next step."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client import Histogram

from syrinx_stages.connector.base import Append, Behind, ConnectorError, Refusal, StageConnector
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.requests.journal import Journal

log = logging.getLogger(__name__)

MAX_WAITING = 1024
"""Maximum number of entries that wait to be written. Beyond it the engine waits: Redis is unreachable or too slow."""
RETRY_SECONDS = 0.2


class _Sent(NamedTuple):
    """Entries whose write is in progress."""

    batch: list[Append]
    at: float
    outcomes: asyncio.Future[Sequence[Refusal | None]]


class Publisher:
    """An ordered queue of entries to append.

    Calls `written` for each accepted entry and `refused` for each refused one, in order. Entries that Redis has lost
    are written again from the journal, before any later entry of their stream. `Behind` is passed to `refused` only if
    the journal does not reach back far enough.
    """

    def __init__(
        self,
        connector: StageConnector,
        journal: Journal,
        written: Callable[[Append], None],
        refused: Callable[[Append, Refusal], None],
        seconds: Histogram,
    ) -> None:
        self._connector = connector
        self._journal = journal
        self._written = written
        self._refused = refused
        self._seconds = seconds
        self._waiting: list[Append] = []
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._sent: _Sent | None = None
        self._running = False
        connector.on_reconnect(self._check)

    def put(self, appends: Sequence[Append]) -> None:
        """Queues entries. They are sent at once, unless a write is in progress.

        A batch that ends with a request's end waits until the event loop continues, so that it is sent together with
        the other entries of the same step.
        """
        if not appends:
            return
        for append in appends:
            self._journal.add(append)
        self._waiting.extend(appends)
        if self._running and self._sent is None and appends[-1].finishes is None:
            self._send()
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Waits while `MAX_WAITING` entries or more are queued."""
        while len(self._waiting) >= MAX_WAITING:
            self._taken.clear()
            await self._taken.wait()

    async def run(self) -> None:
        """Writes until cancelled; entries still queued then are dropped, and another replica generates them again."""
        self._running = True
        try:
            while True:
                await self._changed.wait()
                if self._sent is None and self._waiting:
                    self._send()
                if self._sent is not None:
                    await self._complete(self._sent)
                    self._sent = None
                if not self._waiting:
                    self._changed.clear()
        finally:
            self._running = False
            if self._sent is not None:
                self._sent.outcomes.cancel()

    def _check(self) -> None:
        """Writes the last entry of every stream again: Redis may have lost it with the connection."""
        self._waiting[:0] = self._journal.last_written()
        self._changed.set()

    def _send(self) -> None:
        batch, self._waiting = self._waiting, []
        self._taken.set()
        self._sent = _Sent(batch, time.perf_counter(), asyncio.ensure_future(self._connector.append(batch)))

    async def _complete(self, sent: _Sent) -> None:
        """Waits for the outcomes and retries until Redis replies."""
        batch, started, outcomes = sent
        while True:
            try:
                results = await outcomes
                break
            except ConnectorError as error:
                log.warning("cannot write %d entries, will retry: %s", len(batch), error)
                await asyncio.sleep(RETRY_SECONDS)
            started, outcomes = time.perf_counter(), asyncio.ensure_future(self._connector.append(batch))
        self._seconds.observe(time.perf_counter() - started)
        now = monotonic()
        behind: dict[str, tuple[Append, Behind]] = {}
        for append, outcome in zip(batch, results, strict=True):
            if outcome is None:
                if self._journal.accept(append, now):
                    self._written(append)
            elif isinstance(outcome, Behind):
                behind[append.request_id] = (append, outcome)
            else:
                self._journal.discard(append)
                self._refused(append, outcome)
        if behind:
            self._waiting[:0] = self._recover(list(behind.values()))

    def _recover(self, behind: Sequence[tuple[Append, Behind]]) -> list[Append]:
        """Returns the entries to write again, up to the last refused one of each stream."""
        lost: list[Append] = []
        for append, outcome in behind:
            missing = self._journal.missing(append, outcome.at)
            if missing is None:
                self._journal.discard(append)
                self._refused(append, outcome)
            else:
                lost += missing
        log.warning("Redis has lost the end of %d streams: writing %d entries again", len(behind), len(lost))
        return lost
