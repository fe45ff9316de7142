"""The base class of the talker and codec services: claims, incoming entries, engine steps, outgoing entries, drain.

A subclass adds its rows and its schedule. The engine has its own thread; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar

from syrinx_stages.connector.base import (
    MAX_DELIVERIES,
    Append,
    Cancelled,
    Capacity,
    Claim,
    ConnectorError,
    Gone,
    Refusal,
    StageConnector,
    StreamEntry,
)
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.keys import END_SEQUENCE, Group, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason, Entry
from syrinx_stages.contract.settings import CodecSettings, TalkerSettings
from syrinx_stages.runtime.engine import Engine
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.runtime.in_flight import InFlightSteps
from syrinx_stages.runtime.journal import Journal
from syrinx_stages.runtime.metrics import Metrics, export_settings, rows_label
from syrinx_stages.runtime.ownership import Ownership
from syrinx_stages.runtime.publisher import Publisher
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.speed import EngineSpeed
from syrinx_stages.runtime.storage import StorageMonitor
from syrinx_stages.runtime.tasks import Tasks

log = logging.getLogger(__name__)

GAVE_UP_RETRY_SECONDS = 5.0
"""A client may send a request again after this long if the replicas that served it have failed."""

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", TalkerSettings, CodecSettings)
R = TypeVar("R")
E = TypeVar("E", bound=Engine)


class _Ending(Append, frozen=True):
    """The end of a request, and the reason that `syrinx_requests_finished_total` counts it under."""

    reason: str = ""


class Worker(ABC, Generic[R, S, E]):
    """One replica of a stage. `R` is the row type: the scheduling state of one request.

    `load` creates the engine; `start` calls it on the engine's thread.
    """

    stage: str
    group: Group
    input_kind: StreamKind
    """The stream of each owned request that this stage reads."""
    output_kind: StreamKind
    """The stream that it writes."""

    def __init__(
        self,
        connector: StageConnector,
        load: Callable[[], E],
        replica: str,
        max_resident: int,
        live: LiveSettings[S],
        metrics: Metrics,
    ) -> None:
        self.live: LiveSettings[S] = live
        self.replica = replica
        self.connector = connector
        self.metrics = metrics
        self.speed = EngineSpeed()
        self.rows: dict[str, R] = {}
        self.wake = asyncio.Event()
        """Set when something changed that affects the schedule."""
        self.engine: E
        self.steps: InFlightSteps[Any, Any]
        """Engine steps that are not read yet. Only the engine's thread launches and reads them."""
        self._load = load
        self._engine_thread = ThreadPoolExecutor(1, f"{self.stage}-engine")
        self._queued_calls: list[Callable[[], None]] = []
        """Functions to run on the engine's thread, in order, before its next call: open and release rows."""
        self._tasks = Tasks()
        self.failed = self._tasks.failed
        """Set when the process must exit and be restarted."""
        self._started = False
        self._closed = False
        self._unready: str | None = "loading the model"
        self.admin_targets: tuple[Any, ...] = (self,)
        self._peer: Worker[Any, Any, Any] | None = None
        self.reader = connector.reader()
        self.ownership = Ownership(
            connector.consumer(self.group, replica),
            max_resident,
            self._claimed,
            self._lost,
            self.can_admit,
            self.capacity,
            metrics[m.TAKEOVERS].labels(self.stage),
        )
        # Both series must exist from the start: `rate` ignores the first value of a series.
        self._rows_lost = metrics[m.LOST_CLAIMS].labels(self.stage)
        metrics[m.REQUESTS_FINISHED].labels(self.stage, EndReason.ERROR)
        self.journal = Journal(self.output_kind)
        seconds = metrics[m.REDIS_SECONDS].labels(self.stage)
        self.publisher = Publisher(connector, self.journal, self._written, self._refused, seconds)
        self._storage = StorageMonitor(connector)
        # Resolved once: label lookups are measurable in every step.
        self.rows_running = metrics[m.ROWS_RUNNING].labels(self.stage)
        self._frames = metrics[m.FRAMES].labels(self.stage)
        self.set_up()

    # Implemented by a stage ------------------------------------------------------------------------------------

    @abstractmethod
    def set_up(self) -> None:
        """Creates the state that only this stage has. Called by the constructor."""

    @abstractmethod
    async def admit(self, claim: Claim) -> None:
        """Adds a row for a claimed request. Raises `RequestError` if it cannot be served."""

    @abstractmethod
    def on_entry(self, event: StreamEntry) -> None:
        """Handles an entry of the input stream of an owned request."""

    @abstractmethod
    async def run_iteration(self) -> float | None:
        """Schedules and runs at most one step.

        Returns the monotonic time at which to run again unless `wake` is set before: 0 means at once, None never.
        """

    async def warm_up(self) -> None:
        """Prepares a loaded engine to serve."""
        await self.run_engine(self.engine.warm_up)
        self.steps = InFlightSteps(self.engine.depth)

    @abstractmethod
    def spare_requests(self) -> int:
        """Returns how many further requests could be served in time."""

    def rows_without_input(self) -> int:
        """Returns how many rows wait for the first entry of their input stream."""
        return 0

    def can_admit(self) -> bool:
        """Returns whether to claim another request now."""
        return self.spare_requests() > 0

    def capacity(self) -> Capacity:
        """Returns what the replica can serve now.

        A row without input counts as free: the stage before claims nothing for a stage that is full.
        """
        free = min(self.ownership.free + self.rows_without_input(), self.spare_requests())
        return Capacity(max(0, free), self.speed.requests_per_second)

    # Lifecycle -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the model, warms up the engine and starts to claim requests. Raises what `load` raises."""
        self.settings_changed()
        loop = asyncio.get_running_loop()
        self.engine = await loop.run_in_executor(self._engine_thread, self._load)
        self._unready = "warming up"
        await self.warm_up()
        for run in (self.publisher.run, self._read_loop, self._step_loop, self._storage.run):
            self._tasks.spawn(run())
        for run in (self.ownership.claim_loop, self.ownership.lease_loop, self.ownership.report_loop):
            self._tasks.spawn(run())
        self._unready = None
        self._started = True

    def ready(self) -> str | None:
        """Returns None if the engine is warm and the consumer group is being read, else the reason why not."""
        if (reason := self._reason()) is not None or self._peer is None:
            return reason
        return f"{self._peer.stage}: {reason}" if (reason := self._peer._reason()) is not None else None

    def _reason(self) -> str | None:
        not_reading = None if self.ownership.is_consuming else "not reading the request stream"
        return self._unready or self._tasks.failure or self._storage.full or not_reading

    def settings_changed(self) -> None:
        """Exports the settings in force and schedules again."""
        self.metrics[m.MAX_NUM_SEQS].labels(self.stage).set(self.live.current.max_num_seqs)
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

    def pair_with(self, other: Worker[Any, Any, Any]) -> None:
        """Makes a failure of either worker fail both, and each ready only if both are. Call it before `start`."""
        self.failed = self._tasks.failed = other.failed
        self._peer, other._peer = other, self

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
            await shut_down(self._engine_thread)
        else:
            self._engine_thread.shutdown(wait=False, cancel_futures=True)

    # Claims ----------------------------------------------------------------------------------------------------

    def owns(self, claim: Claim) -> bool:
        """Returns whether this very claim is still held."""
        return self.ownership.claims.get(claim.request.id) is claim

    def _claimed(self, claim: Claim) -> None:
        waited = max(0.0, time.time() - claim.request.accepted_at)
        self.metrics[m.CLAIM_WAIT].labels(self.stage).observe(waited)
        self._count_rows()
        self._tasks.spawn(self._admit(claim))

    async def _admit(self, claim: Claim) -> None:
        request_id = claim.request.id
        try:
            ended = claim.fence.start(self.output_kind).sequence == END_SEQUENCE
            if claim.deliveries > MAX_DELIVERIES and not ended:
                message = f"gave up: {MAX_DELIVERIES} {self.stage} replicas failed while they served it"
                raise RequestError(message, retry_after=GAVE_UP_RETRY_SECONDS)
            await self.admit(claim)
        except RequestError as error:
            self.fail(claim, str(error), error.param, error.retry_after)
        except ConnectorError as error:
            # The lease expires, and a replica that reaches Redis takes the request over.
            log.warning("request %s is left to other replicas: %s", request_id, error)
            self.evict(request_id)
        except Exception:
            log.exception("request %s could not be admitted", request_id)
            self.fail(claim, f"the {self.stage} failed to process this request")

    def fail(self, claim: Claim, message: str, param: str = "", retry_after: float = 0.0) -> None:
        """Ends an owned request with an error after the entries that were put."""
        if self.owns(claim):
            frames = self.journal.last_position(claim).frames
            self.end(claim.request.id, frames, End(EndReason.ERROR, message, param, retry_after))

    def end(self, request_id: str, frames: int, end: End, reason: str = "") -> None:
        """Writes the end of a request at `frames` and finishes the claim in the same transaction.

        `reason` is the label under which it is counted. By default an error of the request is counted as `invalid`, and
        any other end under its own reason.
        """
        reason = reason or ("invalid" if end.param else end.reason)
        claim = self.ownership.claims.get(request_id)
        self.rows.pop(request_id, None)
        if end.reason in (EndReason.STOP, EndReason.LENGTH):
            self.speed.add_request(frames)
        if claim is not None:
            at, after = Position(frames, END_SEQUENCE), self.journal.last_position(claim)
            ending = _Ending(request_id, self.output_kind, at, end, claim.fence, after, claim.entry_id, reason)
            self.publisher.put([ending])

    def output(self, request_id: str, position: Position, entry: Entry) -> Append:
        """Returns the next entry of the output stream of an owned request. Put it before another one is created."""
        claim = self.ownership.claims[request_id]
        after = self.journal.last_position(claim)
        return Append(request_id, self.output_kind, position, entry, claim.fence, after)

    def evict(self, request_id: str) -> None:
        """Removes a request; its engine state is freed before the next step."""
        self.ownership.forget(request_id)
        self.journal.forget(request_id)
        self.rows.pop(request_id, None)
        self.reader.unsubscribe(request_id, self.input_kind)
        self.queue_engine_call(lambda: self.engine.release(request_id))
        self._count_rows()
        self.wake.set()

    def _lost(self, request_id: str) -> None:
        self._rows_lost.inc()
        self.evict(request_id)

    def claim_again(self, claim: Claim) -> None:
        """Drops a request and claims it anew, if this replica still owns it: its stream is not what the row expects."""
        self._lost(claim.request.id)
        if self.ownership.claiming:
            self._tasks.spawn(self.ownership.reclaim(claim))

    def _count_rows(self) -> None:
        self.metrics[m.ROWS_RESIDENT].labels(self.stage).set(len(self.ownership.claims))

    # Messages --------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        while not self._closed:
            for event in await self.reader.read():
                if event.request_id not in self.ownership.claims:
                    continue
                if isinstance(event, Cancelled):
                    self.evict(event.request_id)
                else:
                    self.on_entry(event)

    def _written(self, append: Append) -> None:
        if isinstance(append, _Ending):
            self.metrics[m.REQUESTS_FINISHED].labels(self.stage, append.reason).inc()
            self.evict(append.request_id)

    def _refused(self, append: Append, outcome: Refusal) -> None:
        claim = self.ownership.claims.get(append.request_id)
        if claim is None or claim.fence != append.fence:
            return
        if isinstance(outcome, Gone):
            self.evict(append.request_id)
            return
        self.claim_again(claim)

    # Steps -----------------------------------------------------------------------------------------------------

    async def _step_loop(self) -> None:
        while True:
            self.wake.clear()
            await self.publisher.wait_for_room()
            wake_at = await self.run_iteration()
            if wake_at == 0:
                continue
            if self._queued_calls:
                await self.run_engine(lambda: None)
            try:
                async with asyncio.timeout(None if wake_at is None else wake_at - time.monotonic()):
                    await self.wake.wait()
            except TimeoutError:
                pass

    def queue_engine_call(self, call: Callable[[], None]) -> None:
        """Queues a function to run on the engine's thread before the next engine call. Does not wait."""
        self._queued_calls.append(call)

    async def run_engine(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function on the engine's thread, after the queued calls."""
        queued, self._queued_calls = self._queued_calls, []

        def job() -> T:
            for call in queued:
                call()
            return function(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._engine_thread, job)

    def launch_step(self, rows: int, launch: Callable[[], Any], run_separately: Callable[[], T]) -> Callable[[], T]:
        """Launches a step of `rows` rows on the engine's thread and returns the function that reads its results.

        If the engine isolates rows and `launch` fails, returns the results of `run_separately`, which runs each row in
        a step of its own, so that one bad request cannot fail the others.
        """
        try:
            step = launch()
        except Exception:
            if not self.engine.isolates_rows:
                raise
            log.exception("a step of %d rows failed in the %s", rows, self.stage)
            results = run_separately()
            return lambda: results
        return lambda: self.engine.read(step)

    def count_step(self, rows: int, frames: int, seconds: float, full: bool) -> None:
        """Counts a completed step. `full`: the engine had as much work as it can do."""
        self.speed.add_step(rows, frames, seconds, full)
        self.metrics[m.STEP_SECONDS].labels(self.stage, rows_label(rows)).observe(seconds)
        self._frames.inc(frames)


async def shut_down(executor: ThreadPoolExecutor) -> None:
    """Ends an executor's thread after its current work, without blocking the event loop."""
    await asyncio.get_running_loop().run_in_executor(executor, lambda: None)
    executor.shutdown()
