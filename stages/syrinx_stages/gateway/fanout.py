"""One connector reader for all requests of the process, and one teller of how far their clients have been served."""

from __future__ import annotations

import asyncio
import logging

from syrinx_stages.connector.base import Connector, ConnectorError, Reader, StreamEntry
from syrinx_stages.contract.keys import STREAM_START, StreamKind

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""Pause after the connector failed, before it is told again."""

REST_SECONDS = 0.02
"""Pause after telling: what many clients are handed meanwhile is told in one call, and wakes the talkers once."""

Inbox = asyncio.Queue[StreamEntry]


class FanOut:
    """Hands every entry of a followed audio stream to its request's inbox.

    Inboxes are bounded by what a request may hold: a live stream's lead limit, or `max_frames`.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._inboxes: dict[str, Inbox] = {}

    def open(self, request_id: str) -> Inbox:
        """Follows a request's audio from its start."""
        inbox = self._inboxes[request_id] = Inbox()
        self._reader.subscribe(request_id, StreamKind.AUDIO, STREAM_START)
        return inbox

    def close(self, request_id: str) -> None:
        """Stops following; unknown ids are fine."""
        if self._inboxes.pop(request_id, None) is not None:
            self._reader.unsubscribe(request_id, StreamKind.AUDIO)

    async def run(self) -> None:
        """Reads until the reader is closed."""
        while events := await self._reader.read():
            for event in events:
                # Cancellations are the echo of this process's own releases, or another gateway's.
                if isinstance(event, StreamEntry) and (inbox := self._inboxes.get(event.request_id)) is not None:
                    inbox.put_nowait(event)


class PlaybackReporter:
    """Tells the talkers how far clients have been served: the newest number only, and never in the audio's way."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._news: dict[str, int] = {}
        self._wake = asyncio.Event()

    def report(self, request_id: str, frames: int) -> None:
        """The client has been handed `frames` frames in all."""
        self._news[request_id] = frames
        self._wake.set()

    async def run(self) -> None:
        """Tells until cancelled. What could not be told is told again: a talker may wait for it."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            news, self._news = self._news, {}
            try:
                await self._connector.report_playback(news)
                await asyncio.sleep(REST_SECONDS)
            except ConnectorError as error:
                log.warning("cannot say how far %d clients have been served: %s", len(news), error)
                self._news = news | self._news
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
