"""One cell as a gateway sees it: its Redis, its queue, and the streams of its requests."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from syrinx_stages.connector.base import ConnectorError, Ticket
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract import logs
from syrinx_stages.contract.keys import StreamKind
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.gateway.cells.fanout import FanOut, PlaybackReporter
from syrinx_stages.gateway.cells.monitor import CONNECTOR_SECONDS, PipelineMonitor
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.requests.journal import KEEP_SECONDS
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.storage import StorageMonitor
from syrinx_stages.runtime.tasks import Tasks

log = logging.getLogger(__name__)

RELEASE_DELAYS = (0.0, 0.5, 2.0, 5.0)
"""Seconds before each attempt to release a request; after the last its streams are left to expire."""
RELEASE_SECONDS = 1.0
"""How long a closing gateway waits for releases in progress."""
SAME_SECONDS = 0.1
"""Resolution at which the expected waits of two cells are compared."""
MAX_RELEASED = 1024
"""Number of releases to repeat after a reconnection, if they are not older than `KEEP_SECONDS`."""


class Cell:
    """A connector and what works on it in the background, until `close`, which leaves the connector open.

    `on_measured` is called after each measurement of the queue or the memory.
    """

    def __init__(
        self, connector: RedisConnector, settings: LiveSettings[GatewaySettings], on_measured: Callable[[], None]
    ) -> None:
        self.connector = connector
        self.monitor = PipelineMonitor(connector, settings, on_measured)
        self.storage = StorageMonitor(connector, lambda full: on_measured())
        self._reader = connector.reader()
        self.fanout = FanOut(self._reader)
        self.playback = PlaybackReporter(connector)
        self._submitting = 0
        """Requests of this gateway that are being queued."""
        self._background: set[asyncio.Task[None]] = set()
        self._released: deque[tuple[float, Ticket]] = deque(maxlen=MAX_RELEASED)
        """The last releases and their times: a fail-over may lose them, and the stages would serve the requests."""
        connector.on_reconnect(self._release_again)

    def start(self, tasks: Tasks) -> None:
        """Starts the background tasks."""
        for background in (self.fanout, self.playback, self.monitor, self.storage):
            tasks.spawn(background.run())

    def unready(self) -> str | None:
        """Why no request can be served, or None."""
        return self.storage.unready or self.monitor.unready()

    @property
    def is_serving(self) -> bool:
        """Whether a request would be served, as far as is known: Redis answers and has memory, no stage is missing."""
        return self.connector.is_connected and self.monitor.is_complete and self.storage.unready is None

    @property
    def load(self) -> tuple[float, int]:
        """What to compare with that of other cells: the expected wait, and this gateway's requests.

        The wait grows in proportion to what was queued since it was measured. Less than `SAME_SECONDS` does not count.
        """
        queue, new = self.monitor.queue, self._submitting + self.monitor.queued
        wait = queue.expected_seconds * (queue.length + 1 + new) / (queue.length + 1)
        return wait // SAME_SECONDS, self._submitting + len(self.fanout)

    async def queue(
        self, request: SpeechRequest, data: bytes | None, limits: GatewaySettings, gateway: str, seconds: float
    ) -> Ticket:
        """Queues a request within `seconds`. If the caller is cancelled or it fails, the request is released.

        Raises ConnectorError or TimeoutError.
        """
        submit = asyncio.create_task(self.connector.submit(request, limits, data, gateway))
        ticket: Ticket | None = None
        self._submitting += 1
        try:
            async with asyncio.timeout(seconds):
                ticket = await asyncio.shield(submit)
                self.monitor.queued += 1
        finally:
            self._submitting -= 1
            if ticket is None:
                # The request may be queued all the same: release it, so that no stage serves it.
                self.in_background(self._release_when_submitted(submit))
        return ticket

    async def exists(self, request_id: str) -> bool:
        """Returns whether the streams of a request exist. Raises ConnectorError or TimeoutError."""
        async with asyncio.timeout(CONNECTOR_SECONDS):
            return await self.connector.last_position(request_id, StreamKind.AUDIO) is not None

    async def release(self, ticket: Ticket) -> None:
        """Releases a request, with retries."""
        for delay in RELEASE_DELAYS:
            await asyncio.sleep(delay)
            try:
                await self.connector.release(ticket)
                self._released.append((monotonic(), ticket))
                return
            except ConnectorError as error:
                fields = logs.of_request(ticket.request_id)
                log.warning("request %s could not be released: %s", ticket.request_id, error, extra=fields)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a release independently of the request's task, which may be cancelled."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def settle(self) -> None:
        """Waits for the releases in progress, for `RELEASE_SECONDS` at most."""
        if self._background:
            await asyncio.wait(self._background, timeout=RELEASE_SECONDS)

    async def close(self) -> None:
        """Closes the connections of the reader, and cancels releases: a reconnection may have begun some."""
        await self._reader.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _release_again(self) -> None:
        recent = [ticket for at, ticket in self._released if monotonic() - at < KEEP_SECONDS]
        self._released.clear()
        for ticket in recent:
            self.in_background(self.release(ticket))

    async def _release_when_submitted(self, submit: asyncio.Task[Ticket]) -> None:
        """Releases a request that is queued, or will be, although its caller has left: no stage shall serve it."""
        with contextlib.suppress(ConnectorError):
            await self.release(await submit)


class Queued(Struct, frozen=True):
    """A request in the queue of a cell."""

    cell: Cell
    ticket: Ticket
    request: SpeechRequest
