"""Watches the server of the streams: a stage that cannot write, or may not, is not ready."""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Protocol

from syrinx_stages.connector.base import ConnectorError, ServerReport, StorageFull

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Interval between checks of the memory."""
SERVER_SECONDS = 60.0
"""Interval between checks of rights and settings."""
OBSTACLE_SECONDS = 5.0
"""The same while the server cannot be used as it is."""


class _Connector(Protocol):
    async def check_room(self) -> None:
        """Raises `StorageFull` if entries cannot be written now."""

    async def check_server(self) -> ServerReport:
        """Returns what the server lacks."""


class StorageMonitor:
    """Checks periodically whether the server has all that is needed, and whether entries can be written."""

    def __init__(self, connector: _Connector, export: Callable[[float], None]) -> None:
        """`export` is called with 1 or 0 after each check: whether no entries can be written."""
        self.full: str | None = None
        """Why no entries can be written, as of the last check; None if they can."""
        self._connector = connector
        self._export = export
        self._report = ServerReport()
        self._check_server_at = -math.inf
        """When rights and settings are checked next (seconds of the event loop)."""

    @property
    def unready(self) -> str | None:
        """Why nothing can be served, or None."""
        return self.full or self._report.obstacle

    @property
    def warnings(self) -> tuple[str, ...]:
        """What costs requests or streams in some cases."""
        return tuple(self._report.warnings)

    async def run(self) -> None:
        """Checks until cancelled. Logs when a result changes."""
        while True:
            full = await self._check_room()
            if full and not self.full:
                log.error("%s", full)
            elif self.full and not full:
                log.info("the streams have memory again")
            self.full = full
            self._export(float(full is not None))
            if asyncio.get_running_loop().time() >= self._check_server_at:
                await self.check_server()
            await asyncio.sleep(CHECK_SECONDS)

    async def check_server(self) -> None:
        """Checks rights and settings once, and logs what has changed. If the server cannot be reached, nothing has."""
        try:
            report = await self._connector.check_server()
        except ConnectorError:
            return  # Others notice it.
        interval = OBSTACLE_SECONDS if report.obstacle else SERVER_SECONDS
        self._check_server_at = asyncio.get_running_loop().time() + interval
        before, self._report = self._report, report
        if report.summary != before.summary:
            log.debug("%s", report.summary)
        if report.obstacle != before.obstacle:
            log.log(logging.ERROR if report.obstacle else logging.INFO, "%s", report.obstacle or "Redis has all rights")
        for warning in report.warnings:
            if warning not in before.warnings:
                log.warning("%s", warning)

    async def _check_room(self) -> str | None:
        try:
            await self._connector.check_room()
        except StorageFull as error:
            return str(error)
        except ConnectorError:
            # Others notice that Redis cannot be reached.
            return self.full
        return None
