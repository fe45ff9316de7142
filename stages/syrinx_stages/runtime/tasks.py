"""The background tasks of a stage: none is lost, and one that fails takes its stage down rather than go unnoticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """Running tasks; `failed` is set when one of them raised, and `failure` says what."""

    def __init__(self) -> None:
        self.failed = asyncio.Event()
        self.failure: str | None = None
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a task until it ends or `cancel`."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    async def cancel(self) -> None:
        """Cancels all tasks and waits for them."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)
            self.failure = f"a task failed: {error!r}"
            self.failed.set()
