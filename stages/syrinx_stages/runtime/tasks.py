"""The background tasks of a stage. A task that fails also fails its stage."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """Running tasks. When one raises, `failed` is set and `failure` holds its message."""

    def __init__(self) -> None:
        self.failed = asyncio.Event()
        self.failure: str | None = None
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine as a task until it ends or `cancel` is called."""
        task = asyncio.create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._on_done)

    async def cancel(self) -> None:
        """Cancels all tasks and waits for them."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)
            self.failure = f"a task failed: {error!r}"
            self.failed.set()
