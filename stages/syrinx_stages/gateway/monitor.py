"""Monitors what the gateway depends on: Redis, the queue, and a live talker and codec."""

import asyncio
import time

from syrinx_stages.connector.base import ConnectorError
from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.keys import Group
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.gateway.errors import ApiError, unavailable
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.settings import LiveSettings

CONNECTOR_SECONDS = 5.0
"""Time limit for a call of the connector."""
INTERVAL_SECONDS = 1.0
"""Time between measurements."""
ALIVE_SECONDS = 5.0
"""A stage counts as live for this long after one of its replicas last asked for work."""
RETRY_AFTER_SECONDS = 5.0
"""`Retry-After` while a stage is missing."""


class PipelineMonitor:
    """The pipeline's state as of the last measurement."""

    def __init__(self, connector: RedisConnector, metrics: Metrics, settings: LiveSettings[GatewaySettings]) -> None:
        self._connector = connector
        self._metrics = metrics
        self._settings = settings
        self.unreachable: str | None = None
        """Why Redis did not answer the last measurement; None if it did."""
        self.expected_wait = 0.0
        """How long the next request will wait for a talker, in seconds."""
        self._missing: str | None = "talker"
        """A stage without a live replica."""
        self._missing_since: float | None = time.monotonic()
        self._was_complete = False
        """Talker and codec have been live at the same time."""

    async def run(self) -> None:
        """Measures periodically until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.measure()

    async def measure(self) -> None:
        """Measures once and exports the queue's metrics."""
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                queue = await self._connector.queue(Group.TALKERS)
                missing = await self._missing_stage()
        except (ConnectorError, TimeoutError) as error:
            self.unreachable = f"Redis cannot be reached: {str(error) or 'no answer'}"
            return
        self.unreachable = None
        self.expected_wait = queue.expected_seconds
        self._metrics[m.QUEUE_LENGTH].set(queue.length)
        self._metrics[m.QUEUE_AGE].set(queue.oldest_seconds)
        self._metrics[m.EXPECTED_WAIT].set(queue.expected_seconds)
        if missing is None:
            self._was_complete, self._missing_since = True, None
        elif self._missing_since is None:
            self._missing_since = time.monotonic()
        self._missing = missing

    async def _missing_stage(self) -> str | None:
        for group, stage in ((Group.TALKERS, "talker"), (Group.CODECS, "codec")):
            if not await self._connector.has_live_consumer(group, ALIVE_SECONDS):
                return stage
        return None

    def unready(self) -> str | None:
        """Why the gateway cannot serve, or None.

        There must have been a talker and a codec of this gateway's generation once. Later they may be missing: requests
        wait for them, for up to `max_queue_seconds`.
        """
        not_yet = None if self._was_complete else f"no {self._missing} of this model generation is running yet"
        return self.unreachable or not_yet

    def missing_stage_error(self, tolerated: float | None = None) -> ApiError | None:
        """The 503 for new and waiting requests once a stage has been missing for more than `tolerated` seconds.

        The default is `max_queue_seconds`.
        """
        missing = 0.0 if self._missing_since is None else time.monotonic() - self._missing_since
        if missing <= (self._settings.current.max_queue_seconds if tolerated is None else tolerated):
            return None
        message = f"no {self._missing} of this model generation has been running for {missing:.0f} s"
        return unavailable(message, RETRY_AFTER_SECONDS, "stage_unavailable")
