"""When each pipeline is looked at: soon after something happened, at the latest a period later, never twice at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from syrinx_operator.cluster.telemetry import Telemetry

log = logging.getLogger(__name__)

GAP: Final = 0.5
"""Seconds between two looks at a pipeline at least: what happens in a burst is looked at once."""
FIRST_DELAY: Final = 0.5
MAX_DELAY: Final = 60.0
"""Seconds after the first failure, doubled after each further one up to the longest; a server may ask for more."""
TICK_SECONDS: Final = 120.0
"""How long one look may take."""
SLACK: Final = 60.0
"""Seconds beyond its time at which a look that has not ended is called stuck."""
AT_ONCE: Final = 8
"""Pipelines that are looked at at the same time."""


class Key(Struct, frozen=True, order=True):
    """Names a pipeline."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Outcome(StrEnum):
    """How a look at a pipeline ended."""

    DONE = "done"
    """Everything is applied."""
    HINDERED = "hindered"
    """Some of it cannot be applied; the status says what."""
    INVALID = "invalid"
    """The resource breaks its rules; the status says which."""
    WATCHING = "watching"
    """Another operator works on it."""
    GONE = "gone"
    """It is deleted, or about to be."""
    FAILED = "failed"
    """The API server was in trouble, or something unexpected happened."""


class Result(Struct, frozen=True, kw_only=True):
    """What came of a look at a pipeline."""

    outcome: Outcome
    message: str = ""
    retry_after: float | None = None
    """Seconds that the API server wants to be left alone for."""
    look_again: float | None = None
    """Seconds to the next look, in place of the period."""
    conditions: Mapping[str, str] = {}
    """The pipeline's conditions: type and status."""

    @property
    def again(self) -> bool:
        """Whether it is worth another try sooner than the period."""
        return self.outcome in (Outcome.FAILED, Outcome.HINDERED)


class _Pipeline:
    """What is remembered of a pipeline between two looks; all of it may be lost."""

    def __init__(self, now: float) -> None:
        self.changed = asyncio.Event()
        self.woken = True
        self.version: object = None
        self.not_before = now
        self.server_wants = now
        """The part of `not_before` that no hurry overrules."""
        self.due = now
        self.done_at = now
        self.failures = 0
        self.last: Result | None = None
        self.task: asyncio.Task[None] | None = None

    def next_at(self) -> float:
        return self.not_before if self.woken else max(self.due, self.not_before)


class Loop:
    """Looks after pipelines: one task each, which ends when its pipeline is gone."""

    def __init__(
        self,
        look: Callable[[Key, int], Awaitable[Result]],
        *,
        period: float,
        telemetry: Telemetry,
        forget: Callable[[Key], None] = lambda key: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`look` reads everything anew; it is told how many looks have failed in a row before it.

        `period` is in seconds. `forget` hears of pipelines that are gone.
        """
        self._look = look
        self._period = period
        self._telemetry = telemetry
        self._forget = forget
        self._jitter = jitter
        self._pipelines: dict[Key, _Pipeline] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    def wake(self, key: Key) -> None:
        """Something may have happened to a pipeline."""
        pipeline = self._pipelines.get(key)
        if pipeline is None:
            pipeline = self._pipelines[key] = _Pipeline(_now())
            pipeline.task = asyncio.create_task(self._run(key, pipeline), name=f"pipeline {key}")
        pipeline.woken = True
        pipeline.changed.set()

    def wake_known(self, key: Key) -> None:
        """Something happened to an object of a pipeline, if that is one we look after."""
        if key in self._pipelines:
            self.wake(key)

    def edited(self, key: Key, version: object) -> None:
        """A pipeline is seen in this version of its spec; a new one does not wait for an earlier one's failures."""
        pipeline = self._pipelines.get(key)
        if pipeline is not None and pipeline.version == version:
            return
        self.wake(key)
        pipeline = self._pipelines[key]
        pipeline.version = version
        pipeline.failures = 0
        pipeline.not_before = pipeline.server_wants

    async def close(self) -> None:
        """Breaks off what is under way."""
        tasks = [pipeline.task for pipeline in self._pipelines.values() if pipeline.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pipelines.clear()

    def stuck(self) -> list[Key]:
        """Pipelines whose look should have ended long ago."""
        latest = _now() - TICK_SECONDS - SLACK
        return sorted(key for key, each in self._pipelines.items() if max(each.due, each.not_before) < latest)

    def oldest_age(self) -> float:
        """Seconds since the end of the look that ended longest ago; 0 without pipelines."""
        return max((_now() - each.done_at for each in self._pipelines.values()), default=0.0)

    def conditions(self) -> Counter[tuple[str, str]]:
        """How many pipelines have each condition at each status."""
        last = (each.last for each in self._pipelines.values())
        return Counter(item for result in last if result is not None for item in result.conditions.items())

    async def _run(self, key: Key, pipeline: _Pipeline) -> None:
        while True:
            await _until_next(pipeline)
            async with self._slots:
                pipeline.woken = False
                started = _now()
                result = await self._tick(key)
            if result.outcome is Outcome.GONE and not pipeline.woken:
                del self._pipelines[key]
                self._forget(key)
                return
            self._schedule(pipeline, result, started)

    async def _tick(self, key: Key) -> Result:
        pipeline = self._pipelines[key]
        before = pipeline.last
        with self._telemetry.seconds.time():
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    result = await self._look(key, pipeline.failures)
            except TimeoutError:
                result = Result(outcome=Outcome.FAILED, message=f"did not end in {TICK_SECONDS:g} s")
            except Exception as error:
                log.exception("%s: unexpected", key)
                result = Result(outcome=Outcome.FAILED, message=f"unexpected: {type(error).__name__}: {error}")
        self._telemetry.reconciles.labels(result.outcome).inc()
        if before is None or (before.outcome, before.message) != (result.outcome, result.message):
            level = logging.WARNING if result.again else logging.INFO
            log.log(level, "%s: %s%s", key, result.outcome, f": {result.message}" if result.message else "")
        return result

    def _schedule(self, pipeline: _Pipeline, result: Result, started: float) -> None:
        now = _now()
        pipeline.last, pipeline.done_at = result, now
        pipeline.failures = pipeline.failures + 1 if result.again else 0
        pipeline.server_wants = max(started + GAP, now + (result.retry_after or 0.0))
        pipeline.not_before = pipeline.server_wants
        pipeline.due = now + (self._period if result.look_again is None else result.look_again)
        if result.again:
            delay = backoff(pipeline.failures, self._jitter())
            pipeline.due = now + min(delay, self._period)
            if result.outcome is Outcome.FAILED:
                # What happens meanwhile waits too: a server in trouble is not asked more often the more happens.
                pipeline.due = pipeline.not_before = max(pipeline.not_before, now + delay)


def backoff(failures: int, jitter: float) -> float:
    """Seconds to wait after so many failures in a row (from 1); `jitter` from 0 to 1 takes up to half of it away."""
    delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 16))
    return delay * (1 - jitter / 2)


async def _until_next(pipeline: _Pipeline) -> None:
    while (wait := pipeline.next_at() - _now()) > 0:
        pipeline.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await pipeline.changed.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()
