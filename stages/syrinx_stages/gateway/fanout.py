"""One connector reader and one playback reporter for all requests of the process."""

import asyncio
import logging

from syrinx_stages.connector.base import Cancelled, ConnectorError, Reader, StreamEntry
from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""Pause before playback is reported again after the connector failed."""

REPORT_SECONDS = 0.02
"""Pause after a report: what is delivered meanwhile goes into one call, which wakes the talkers once."""

Inbox = asyncio.Queue[StreamEntry]


class FanOut:
    """Distributes the entries of all subscribed audio streams to their requests' inboxes.

    Inboxes are bounded by what a request may produce: the lead limit of a live stream, or `max_frames`.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._inboxes: dict[str, Inbox] = {}

    def open(self, request_id: str) -> Inbox:
        """Subscribes to a request's audio from its start."""
        inbox = self._inboxes[request_id] = Inbox()
        self._reader.subscribe(request_id, StreamKind.AUDIO, STREAM_START)
        return inbox

    def restart(self, request_id: str) -> None:
        """Discards what has arrived of a request that is submitted again, and reads its audio from the start."""
        inbox = self._inboxes[request_id]
        while not inbox.empty():
            inbox.get_nowait()
        self._reader.subscribe(request_id, StreamKind.AUDIO, STREAM_START)

    def put(self, event: StreamEntry) -> None:
        """Adds an entry to its request's inbox, if that is open."""
        if (inbox := self._inboxes.get(event.request_id)) is not None:
            inbox.put_nowait(event)

    def has_entries(self, request_id: str) -> bool:
        """Whether entries of an open request have arrived that its stream has not read."""
        return not self._inboxes[request_id].empty()

    def refuse(self, request_id: str) -> None:
        """Ends a request's stream as refused, if it is open."""
        end = End(EndReason.REFUSED, "no talker was free in time")
        self.put(StreamEntry(request_id, StreamKind.AUDIO, Position(0, END_SEQUENCE), end))

    def close(self, request_id: str) -> bool:
        """Unsubscribes from a request's audio. Returns False if that was done before."""
        if self._inboxes.pop(request_id, None) is None:
            return False
        self._reader.unsubscribe(request_id, StreamKind.AUDIO)
        return True

    async def run(self) -> None:
        """Reads until the reader is closed."""
        while events := await self._reader.read():
            for event in events:
                if isinstance(event, Cancelled):
                    # A release closes the inbox before, so this request was removed from the queue: it waited too
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
        self._wake = asyncio.Event()
        connector.on_reconnect(self._report_again)

    def report(self, request_id: str, frames: int) -> None:
        """Schedules a report that the client has received `frames` frames in total."""
        self._latest[request_id] = self._pending[request_id] = frames
        self._wake.set()

    def forget(self, request_id: str) -> None:
        """Drops the reports of a request that is over."""
        self._latest.pop(request_id, None)
        self._pending.pop(request_id, None)

    def _report_again(self) -> None:
        self._pending = dict(self._latest)
        self._wake.set()

    async def run(self) -> None:
        """Reports until cancelled. Failed reports are retried, because a talker may be waiting for them."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            pending, self._pending = self._pending, {}
            try:
                await self._connector.report_playback(pending)
                await asyncio.sleep(REPORT_SECONDS)
            except ConnectorError as error:
                log.warning("cannot report the playback of %d requests: %s", len(pending), error)
                self._pending = pending | self._pending
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
