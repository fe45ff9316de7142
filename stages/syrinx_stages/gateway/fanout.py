"""One connector reader and one playback reporter for all requests of the process."""

import asyncio
import logging

from syrinx_stages.connector.base import ConnectorError, Reader, StreamEntry
from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.contract.keys import STREAM_START, StreamKind

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
                # Other events are cancellations, by this gateway's own releases or another gateway's.
                if isinstance(event, StreamEntry) and (inbox := self._inboxes.get(event.request_id)) is not None:
                    inbox.put_nowait(event)


class PlaybackReporter:
    """Reports to the talkers how many frames clients have received: the latest numbers only, in the background."""

    def __init__(self, connector: RedisConnector) -> None:
        self._connector = connector
        self._pending: dict[str, int] = {}
        self._wake = asyncio.Event()

    def report(self, request_id: str, frames: int) -> None:
        """Schedules a report that the client has received `frames` frames in total."""
        self._pending[request_id] = frames
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
