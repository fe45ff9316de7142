"""Schedules reconciles: soon after a change, at the latest after the resync period, one at a time per pipeline."""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from syrinx_operator.cluster.objects.clock import monotonic
from syrinx_operator.cluster.watch.backoff import backoff
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_stages.contract import logs

log = logging.getLogger(__name__)

MIN_INTERVAL: Final = 0.5
"""Minimum seconds between two reconciles of a pipeline, so that a burst of changes causes one."""
RECONCILE_TIMEOUT: Final = 120.0
"""Seconds that one reconcile may take."""
STUCK_MARGIN: Final = 60.0
"""Seconds beyond the timeout after which an unfinished reconcile counts as stuck."""
MAX_CONCURRENT_RECONCILES: Final = 8


class NamespacedName(Struct, frozen=True, order=True):
    """Identifies a pipeline."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Outcome(StrEnum):
    """The outcome of a reconcile."""

    SUCCEEDED = "succeeded"
    """The plan is applied."""
    BLOCKED = "blocked"
    """Part of the plan cannot be applied; the status says why."""
    INVALID = "invalid"
    """The resource violates its rules; the status lists them."""
    STANDBY = "standby"
    """Another operator holds the pipeline's Lease."""
    DELETED = "deleted"
    """The pipeline is deleted or terminating."""
    FAILED = "failed"
    """The API server was unavailable, or an unexpected error occurred."""


class Result(Struct, frozen=True, kw_only=True):
    """The result of a reconcile."""

    outcome: Outcome
    message: str = ""
    retry_after: float | None = None
    """Seconds from the API server's Retry-After header."""
    requeue_after: float | None = None
    """Seconds until the next reconcile; None for the resync period."""
    conditions: Mapping[str, str] = {}
    """Status of each of the pipeline's conditions, by type."""

    @property
    def should_retry(self) -> bool:
        """Whether to retry with backoff, sooner than the resync period."""
        return self.outcome in (Outcome.FAILED, Outcome.BLOCKED)


class _Item:
    """Scheduling state of one pipeline; none of it needs to survive a restart."""

    def __init__(self, now: float) -> None:
        self.changed = asyncio.Event()
        self.dirty = True
        """Whether something changed since the last reconcile started."""
        self.version: object = None
        self.not_before = self.due = self.finished_at = now
        self.retry_not_before = now
        """The part of `not_before` that an edit does not override."""
        self.failures = 0
        self.last: Result | None = None
        self.running_since: float | None = None
        """None while it waits, also for its turn."""
        self.task: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Waits until the next reconcile is due."""
        while (wait := (self.not_before if self.dirty else max(self.due, self.not_before)) - monotonic()) > 0:
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.changed.wait()


class WorkQueue:
    """Runs reconciles, with one task per pipeline that ends when the pipeline is deleted."""

    def __init__(
        self,
        reconcile: Callable[[NamespacedName, int], Awaitable[Result]],
        *,
        resync_seconds: float,
        max_backoff_seconds: float,
        telemetry: Telemetry,
        forget: Callable[[NamespacedName], None] = lambda key: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`reconcile` gets the pipeline and its number of consecutive failures; `forget` gets deleted pipelines."""
        self._reconcile = reconcile
        self._resync_seconds = resync_seconds
        self._max_backoff_seconds = max_backoff_seconds
        self._telemetry = telemetry
        self._forget = forget
        self._jitter = jitter
        self._items: dict[NamespacedName, _Item] = {}
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_RECONCILES)

    def add(self, key: NamespacedName) -> None:
        """Requests a reconcile."""
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item(monotonic())
            item.task = asyncio.create_task(self._run(key, item), name=f"pipeline {key}")
        item.dirty = True
        item.changed.set()

    def add_known(self, key: NamespacedName) -> None:
        """Requests a reconcile if the pipeline is known."""
        if key in self._items:
            self.add(key)

    def add_version(self, key: NamespacedName, version: object) -> None:
        """Requests a reconcile if the spec's version is new; a new version resets the backoff."""
        if key in self._items and self._items[key].version == version:
            return
        self.add(key)
        item = self._items[key]
        item.version = version
        item.failures = 0
        item.not_before = item.retry_not_before

    async def close(self) -> None:
        """Cancels all reconciles."""
        tasks = [item.task for item in self._items.values() if item.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._items.clear()

    def stuck(self) -> list[NamespacedName]:
        """Returns pipelines whose reconcile should have finished long ago, or that are no longer reconciled."""
        latest = monotonic() - RECONCILE_TIMEOUT - STUCK_MARGIN
        return sorted(
            key
            for key, item in self._items.items()
            if (item.task is not None and item.task.done())
            or (item.running_since is not None and item.running_since < latest)
        )

    def oldest_age(self) -> float:
        """Returns the seconds since the least recent reconcile; 0 without pipelines."""
        return max((monotonic() - item.finished_at for item in self._items.values()), default=0.0)

    def condition_counts(self) -> Counter[tuple[str, str]]:
        """Returns the number of pipelines by condition type and status."""
        return Counter(pair for item in self._items.values() if item.last for pair in item.last.conditions.items())

    async def _run(self, key: NamespacedName, item: _Item) -> None:
        while True:
            await item.wait()
            async with self._slots:
                item.dirty = False
                started = item.running_since = monotonic()
                result = await self._reconcile_once(key, item)
                item.running_since = None
            if result.outcome is Outcome.DELETED and not item.dirty:
                del self._items[key]
                self._forget(key)
                return
            self._schedule(item, result, started)

    async def _reconcile_once(self, key: NamespacedName, item: _Item) -> Result:
        fields = logs.of_pipeline(key.namespace, key.name)
        with self._telemetry.reconcile_seconds.time():
            try:
                async with asyncio.timeout(RECONCILE_TIMEOUT):
                    result = await self._reconcile(key, item.failures)
            except TimeoutError:
                result = Result(outcome=Outcome.FAILED, message=f"timed out after {RECONCILE_TIMEOUT:g} s")
            except Exception as error:
                log.exception("%s: unexpected error", key, extra=fields)
                result = Result(outcome=Outcome.FAILED, message=f"unexpected error: {type(error).__name__}: {error}")
        self._telemetry.reconciles.labels(result.outcome).inc()
        if item.last is None or (item.last.outcome, item.last.message) != (result.outcome, result.message):
            level = logging.WARNING if result.should_retry else logging.INFO
            message = f": {result.message}" if result.message else ""
            log.log(level, "%s: reconcile %s%s", key, result.outcome, message, extra=fields)
        return result

    def _schedule(self, item: _Item, result: Result, started: float) -> None:
        now = monotonic()
        item.last, item.finished_at = result, now
        item.failures = item.failures + 1 if result.should_retry else 0
        item.retry_not_before = max(started + MIN_INTERVAL, now + (result.retry_after or 0.0))
        item.not_before = item.retry_not_before
        item.due = now + (self._resync_seconds if result.requeue_after is None else result.requeue_after)
        if result.should_retry:
            delay = backoff(item.failures, self._jitter(), self._max_backoff_seconds)
            item.due = now + min(delay, self._resync_seconds)
            if result.outcome is Outcome.FAILED:
                # Changes wait too: an unavailable API server must not get more requests the more changes there are.
                item.due = item.not_before = max(item.not_before, now + delay)
