"""Monitors what the gateway depends on in a cell: Redis, the queue, and a live talker and codec."""

import asyncio
from collections.abc import Callable

from syrinx_stages.connector.base import ConnectorError, QueueState
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.contract.stages import WORKERS
from syrinx_stages.gateway.errors import ApiError, unavailable
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.settings import LiveSettings

CONNECTOR_SECONDS = 5.0
"""Time limit for a call of the connector."""
INTERVAL_SECONDS = 1.0
"""Time between measurements."""
ALIVE_SECONDS = 5.0
"""A stage counts as live for this long after one of its replicas last asked for work."""
LATE_SECONDS = 1.0
"""After this long without an answer other cells are preferred."""
RETRY_AFTER_SECONDS = 5.0
"""`Retry-After` while a stage is missing."""


class PipelineMonitor:
    """The state of a cell as of the last measurement. `on_measured` is called after each one."""

    def __init__(
        self, connector: RedisConnector, settings: LiveSettings[GatewaySettings], on_measured: Callable[[], None]
    ) -> None:
        self._connector = connector
        self._settings = settings
        self._on_measured = on_measured
        self.unreachable: str | None = None
        """Why Redis did not answer the last measurement; None if it did."""
        self.queue = QueueState(0, 0.0, 0.0)
        """What waits for a talker."""
        self.queued = 0
        """Requests that this gateway has queued since the measurement."""
        self._asked_at: float | None = None
        """When the measurement in progress began, in monotonic seconds."""
        self._missing: str | None = "talker"
        """A stage without a live replica."""
        self._missing_since: float | None = monotonic()
        self._was_complete = False
        """Talker and codec have been live at the same time."""

    async def run(self) -> None:
        """Measures periodically until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.measure()

    async def measure(self) -> None:
        """Measures once."""
        self._asked_at = monotonic() if self._asked_at is None else self._asked_at
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                queue = await self._connector.queue()
                missing = await self._missing_stage()
        except (ConnectorError, TimeoutError) as error:
            self.unreachable = f"Redis cannot be reached: {str(error) or 'no answer'}"
            return
        finally:
            self._asked_at = None
        self.unreachable = None
        self.queue = queue
        if missing is None:
            self._was_complete, self._missing_since = True, None
        elif self._missing_since is None:
            self._missing_since = monotonic()
        self._missing, self.queued = missing, 0
        self._on_measured()

    @property
    def is_complete(self) -> bool:
        """Whether Redis answers in time, and talker and codec are live."""
        is_late = self._asked_at is not None and monotonic() - self._asked_at > LATE_SECONDS
        return self.unreachable is None and self._missing is None and not is_late

    async def _missing_stage(self) -> str | None:
        for stage in WORKERS:
            if not await self._connector.has_live_consumer(stage, ALIVE_SECONDS):
                return stage
        return None

    def unready(self) -> str | None:
        """Why the cell cannot serve, or None.

        There must have been a talker and a codec of this gateway's generation once. Later they may be missing: requests
        wait for them, for up to `max_queue_seconds`.
        """
        not_yet = None if self._was_complete else f"no {self._missing} of this model generation is running yet"
        return self.unreachable or not_yet

    def missing_stage_error(self, tolerated: float | None = None) -> ApiError | None:
        """The 503 for new and waiting requests once a stage has been missing for more than `tolerated` seconds.

        The default is `max_queue_seconds`.
        """
        missing = 0.0 if self._missing_since is None else monotonic() - self._missing_since
        if missing <= (self._settings.current.max_queue_seconds if tolerated is None else tolerated):
            return None
        message = f"no {self._missing} of this model generation has been running for {missing:.0f} s"
        return unavailable(message, RETRY_AFTER_SECONDS, "stage_unavailable")
