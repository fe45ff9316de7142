"""One connector reader and one playback reporter for all requests of a cell."""

import asyncio
import contextlib
import logging
import math

from syrinx_stages.connector.base import Cancelled, ConnectorError, Reader, StreamEntry
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""Pause before playback is reported again after the connector failed."""

REPORT_SECONDS = 0.1
"""Pause after a report: what is delivered meanwhile goes into one call, which wakes the talkers once."""
MAX_REPORT_SECONDS = 0.5
"""How long a report waits for others at most, and at most half as long as the client plays what it reports. So a talker
knows of it before the client has played it; until then, the report does not change what the talker does."""


class FanOut:
    """Distributes the entries of all subscribed audio streams to their requests' queues.

    Queues are bounded by what a request may produce: the lead limit of a live stream, or `max_frames`.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._queues: dict[str, asyncio.Queue[StreamEntry]] = {}

    def __len__(self) -> int:
        """The number of open requests."""
        return len(self._queues)

    def open(self, request_id: str, queue: asyncio.Queue[StreamEntry]) -> None:
        """Subscribes to a request's audio from its start, whose entries are added to a queue."""
        self._queues[request_id] = queue
        self._reader.subscribe(request_id, StreamKind.AUDIO, STREAM_START)

    def put(self, event: StreamEntry) -> None:
        """Adds an entry to its request's queue, if that is open."""
        if (queue := self._queues.get(event.request_id)) is not None:
            queue.put_nowait(event)

    def refuse(self, request_id: str) -> None:
        """Ends a request's stream as refused, if it is open."""
        end = End(EndReason.REFUSED, "no talker was free in time")
        self.put(StreamEntry(request_id, StreamKind.AUDIO, Position(0, END_SEQUENCE), end))

    def close(self, request_id: str) -> bool:
        """Unsubscribes from a request's audio. Returns False if that was done before."""
        if self._queues.pop(request_id, None) is None:
            return False
        self._reader.unsubscribe(request_id, StreamKind.AUDIO)
        return True

    async def run(self) -> None:
        """Reads until the reader is closed."""
        while events := await self._reader.read():
            for event in events:
                if isinstance(event, Cancelled):
                    # A release closes the request before, so this one was removed from Redis: it waited too
                    # long, or made room for another client's.
                    self.refuse(event.request_id)
                else:
                    self.put(event)


class PlaybackReporter:
    """Reports to the talkers how many frames clients have received: the latest numbers only, in the background."""

    def __init__(self, connector: RedisConnector) -> None:
        self._connector = connector
        self._latest: dict[str, int] = {}
        """The last report of each open request: Redis may lose it."""
        self._pending: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        """Delivered frames of each request that stay, for a client that connects again."""
        self._spoken: dict[str, int] = {}
        """Frames of each request's segments that are delivered whole."""
        self._due = math.inf
        """When the first of the pending reports is due, in seconds of the event loop."""
        self._earlier = asyncio.Event()
        """Set when `_due` has become earlier."""
        connector.on_reconnect(self._report_again)

    def report(self, request_id: str, frames: int, spoken: int) -> None:
        """Schedules a report that the client has received `frames` frames in total, `spoken` of them whole segments."""
        known = self._latest.get(request_id)
        seconds = 0.0 if known is None else (frames - known) * FAMILY.frame_seconds / 2
        self._latest[request_id] = self._pending[request_id] = frames
        self._spoken[request_id] = spoken
        self._report_within(min(seconds, MAX_REPORT_SECONDS))

    def keep(self, request_id: str, frames: int) -> None:
        """Keeps the last delivered frames of a request, for a client that connects again."""
        self._kept[request_id] = frames

    def forget(self, request_id: str) -> None:
        """Drops the reports of a request that is over."""
        self._kept.pop(request_id, None)
        self._spoken.pop(request_id, None)
        self._latest.pop(request_id, None)
        self._pending.pop(request_id, None)

    def _report_again(self) -> None:
        self._pending = dict(self._latest)
        self._report_within(0.0)

    def _report_within(self, seconds: float) -> None:
        due = asyncio.get_running_loop().time() + seconds
        if due < self._due:
            self._due = due
            self._earlier.set()

    async def _wait(self) -> None:
        """Waits until a report is due."""
        loop = asyncio.get_running_loop()
        while (seconds := self._due - loop.time()) > 0:
            self._earlier.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if seconds == math.inf else seconds):
                    await self._earlier.wait()

    async def run(self) -> None:
        """Reports until cancelled. Failed reports are retried, because a talker may be waiting for them."""
        while True:
            await self._wait()
            pending, self._pending, self._due = self._pending, {}, math.inf
            try:
                await self._connector.report_playback(pending, self._kept, self._spoken)
                await asyncio.sleep(REPORT_SECONDS)
            except ConnectorError as error:
                log.warning("cannot report the playback of %d requests: %s", len(pending), error)
                self._pending = pending | self._pending
                await asyncio.sleep(RETRY_SECONDS)
                self._report_within(0.0)
