"""The base class of the talker and codec services: lifecycle and engine steps.

A subclass adds its rows and its schedule. The engine has its own thread; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import structs

from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.settings import CodecSettings, TalkerSettings
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.requests.engine import Engine, Limits
from syrinx_stages.runtime.requests.in_flight import InFlightSteps
from syrinx_stages.runtime.requests.owned import Claimed, OwnedRequests
from syrinx_stages.runtime.serial_thread import SerialThread
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.storage import StorageMonitor
from syrinx_stages.runtime.telemetry.metrics import Metrics, export_settings, rows_label

log = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S", TalkerSettings, CodecSettings)
R = TypeVar("R", bound=Claimed)
E = TypeVar("E", bound=Engine)


class Worker(OwnedRequests[R], Generic[R, S, E]):
    """One replica of a stage.

    `load` creates the engine; `start` calls it on the engine's thread. `standby_of` names the replica whose standby
    this one is.
    """

    def __init__(
        self,
        connector: StageConnector,
        load: Callable[[], E],
        replica: str,
        max_resident: int,
        live: LiveSettings[S],
        metrics: Metrics,
        standby_of: str = "",
    ) -> None:
        super().__init__(connector, replica, max_resident, metrics, standby_of)
        self.live: LiveSettings[S] = live
        self.engine: E
        self.steps: InFlightSteps[Any, Any]
        """Engine steps that are not read yet. Only the engine's thread launches and reads them."""
        self._period_start = 0.0
        """Monotonic time from which the period of the next step counts."""
        self._load = load
        self.engine_thread = SerialThread(f"{self.stage}-engine")
        """Calls that open and release rows are queued; others run at once."""
        self.failed = self._tasks.failed
        """Set when the process must exit and be restarted."""
        self._started = False
        self._unready: str | None = "loading the model"
        self._storage = StorageMonitor(connector, metrics[m.REDIS_FULL].labels(self.stage).set)
        # Resolved once: label lookups are measurable in every step.
        self.rows_running = metrics[m.ROWS_RUNNING].labels(self.stage)
        self._frames = metrics[m.FRAMES].labels(self.stage)
        self.set_up()

    # Implemented by a stage ------------------------------------------------------------------------------------

    @abstractmethod
    def set_up(self) -> None:
        """Creates the state that only this stage has. Called by the constructor."""

    @abstractmethod
    async def run_iteration(self) -> float | None:
        """Schedules and runs at most one step.

        Returns the monotonic time at which to run again unless `wake` is set before: 0 means at once, None never.
        """

    async def warm_up(self) -> None:
        """Prepares a loaded engine to serve."""
        await self.engine_thread.run(self.engine.warm_up)
        self.steps = InFlightSteps()

    # Lifecycle -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the model, warms up the engine and starts to claim requests. Raises what `load` raises."""
        self.settings_changed()
        self.engine = await self.engine_thread.run(self._load)
        self._unready = "warming up"
        await self.warm_up()
        self._apply(self.engine.limits)
        await self._storage.check_server()
        for run in (self.publisher.run, self._read_loop, self._step_loop, self._storage.run):
            self._tasks.spawn(run())
        for run in (self.ownership.claim_loop, self.ownership.lease_loop, self.ownership.report_loop):
            self._tasks.spawn(run())
        self._unready = None
        self._started = True

    def ready(self) -> str | None:
        """Returns None if the engine is warm and the consumer group is being read, else the reason why not."""
        not_reading = None if self.ownership.is_consuming else "not reading the request stream"
        return self._unready or self._tasks.failure or self._storage.unready or not_reading

    def warnings(self) -> Sequence[str]:
        """Returns what may cost requests or streams although the stage is ready."""
        return self._storage.warnings

    def _apply(self, limits: Limits) -> None:
        self.live.limits = {name: value for name, value in structs.asdict(limits).items() if value is not None}
        if limits.max_resident is not None:
            self.ownership.capacity = min(self.ownership.capacity, limits.max_resident)
        self.settings_changed()

    def settings_changed(self) -> None:
        """Exports the settings in force and schedules again."""
        self.speed.max_num_seqs = self.live.max_num_seqs
        self.metrics[m.MAX_NUM_SEQS].labels(self.stage).set(self.speed.max_num_seqs)
        export_settings(self.metrics, self.stage, self.live)
        self.wake.set()

    async def drain(self, seconds: float) -> None:
        """Stops claiming and waits up to `seconds` for owned requests; `close` hands over the remaining ones.

        Returns at once if the stage has failed, as it finishes nothing.
        """
        self._unready = "draining"
        self.ownership.stop_claiming()
        empty = asyncio.create_task(self.ownership.wait_until_empty(asyncio.get_running_loop().time() + seconds))
        failed = asyncio.create_task(self.failed.wait())
        await asyncio.wait([empty, failed], return_when=asyncio.FIRST_COMPLETED)
        for task in (empty, failed):
            task.cancel()

    async def stop(self) -> None:
        """Stops serving and keeps the claims. Idempotent."""
        self._closed = True
        self._unready = "closed"
        await self.reader.close()
        await self._tasks.cancel()

    async def close(self) -> None:
        """Hands over the remaining claims and frees threads and connections. Does not wait for a model to load.

        After a failure the leases expire instead, which counts as a delivery: a request may have caused the failure.
        """
        await self.stop()
        await self.ownership.close(hand_over=not self.failed.is_set())
        if self._started:
            await self.engine_thread.close()
        else:
            self.engine_thread.abandon()

    # Steps -----------------------------------------------------------------------------------------------------

    async def _step_loop(self) -> None:
        self.begin_period()
        while True:
            self.wake.clear()
            await self.publisher.wait_for_room()
            wake_at = await self.run_iteration()
            if wake_at == 0:
                continue
            if self.engine_thread.has_queued:
                await self.engine_thread.run(lambda: None)
            try:
                async with asyncio.timeout(None if wake_at is None else wake_at - monotonic()):
                    await self.wake.wait()
            except TimeoutError:
                pass
            self.begin_period()

    def begin_period(self) -> None:
        """Begins the period of the next step."""
        self._period_start = time.monotonic()

    def exclude(self, start: float, end: float) -> None:
        """Leaves work that is for no step, between two monotonic times, out of the period of the next one."""
        self._period_start += max(0.0, end - max(start, self._period_start))

    def count_step(self, rows: int, frames: int, seconds: float) -> None:
        """Counts a step whose results are published, and the busy time of the engine for it.

        Its period ends: admission counts all of the process's time from one step to the next, not only the engine's.
        """
        self.speed.add_step(rows, frames, time.monotonic() - self._period_start)
        self.begin_period()
        self.metrics[m.STEP_SECONDS].labels(self.stage, rows_label(rows)).observe(seconds)
        self._frames.inc(frames)
