"""Watches whether the streams have memory left: a stage that cannot write is not ready."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from syrinx_stages.connector.base import ConnectorError, StorageFull

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Interval between checks."""


class _Connector(Protocol):
    async def check_room(self) -> None:
        """Raises `StorageFull` if entries cannot be written now."""


class StorageMonitor:
    """Checks periodically whether entries can be written."""

    def __init__(self, connector: _Connector, export: Callable[[float], None]) -> None:
        """`export` is called with 1 or 0 after each check: whether no entries can be written."""
        self.full: str | None = None
        """Why no entries can be written, as of the last check; None if they can."""
        self._connector = connector
        self._export = export

    async def run(self) -> None:
        """Checks until cancelled. Logs when the result changes."""
        while True:
            full = await self._check()
            if full and not self.full:
                log.error("%s", full)
            elif self.full and not full:
                log.info("the streams have memory again")
            self.full = full
            self._export(float(full is not None))
            await asyncio.sleep(CHECK_SECONDS)

    async def _check(self) -> str | None:
        try:
            await self._connector.check_room()
        except StorageFull as error:
            return str(error)
        except ConnectorError:
            # Others notice that Redis cannot be reached.
            return self.full
        return None
