"""The requests that a replica owns: what it reads and writes for each of them, from the claim to the end."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

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
from syrinx_stages.contract import logs
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason, Entry
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.errors import RequestError, stage_failed
from syrinx_stages.runtime.requests.journal import Journal
from syrinx_stages.runtime.requests.ownership import Ownership
from syrinx_stages.runtime.requests.publisher import Publisher
from syrinx_stages.runtime.tasks import Tasks
from syrinx_stages.runtime.telemetry.metrics import Metrics
from syrinx_stages.runtime.telemetry.tracing import RequestTraces
from syrinx_stages.scheduling.speed import EngineSpeed

log = logging.getLogger(__name__)

GAVE_UP_RETRY_SECONDS = 5.0
"""A client may send a request again after this long if the replicas that served it have failed."""


class Claimed(Protocol):
    """The state of a claimed request in a stage."""

    @property
    def claim(self) -> Claim:
        """The claim that it serves."""


R = TypeVar("R", bound=Claimed)


class _Ending(Append, frozen=True):
    """The end of a request, and the reason that `syrinx_requests_finished_total` counts it under."""

    reason: str = ""


class OwnedRequests(ABC, Generic[R]):
    """The requests of one replica of a stage. An admitted one has a row of type `R`."""

    stage: str
    group: Stage
    input_kinds: tuple[StreamKind, ...]
    """The streams of each owned request that this stage reads."""
    output_kind: StreamKind
    """The stream that it writes."""
    first_phase: str
    """What happens to a request after its claim, as a span."""

    def __init__(
        self, connector: StageConnector, replica: str, max_resident: int, metrics: Metrics, standby_of: str = ""
    ) -> None:
        self.replica = replica
        self.connector = connector
        self.metrics = metrics
        self.speed = EngineSpeed()
        self.traces = RequestTraces(metrics.tracer, self.stage, replica)
        self.rows: dict[str, R] = {}
        """By request."""
        self.wake = asyncio.Event()
        """Set when something changed that affects the schedule."""
        self._tasks = Tasks()
        self._closed = False
        self.reader = connector.reader()
        self.journal = Journal(self.output_kind)
        self.ownership = Ownership(
            connector.consumer(self.group, replica, self.journal.ended, standby_of),
            max_resident,
            self._claimed,
            self._lost,
            self.admissible,
            self.capacity,
            metrics[m.TAKEOVERS].labels(self.stage),
        )
        # Both series must exist from the start: `rate` ignores the first value of a series.
        self._rows_lost = metrics[m.LOST_CLAIMS].labels(self.stage)
        metrics[m.REQUESTS_FINISHED].labels(self.stage, EndReason.ERROR)
        seconds = metrics[m.REDIS_SECONDS].labels(self.stage)
        self.publisher = Publisher(connector, self.journal, self._written, self._refused, seconds)

    # Implemented by a stage ------------------------------------------------------------------------------------

    @abstractmethod
    async def admit(self, claim: Claim) -> None:
        """Adds a row for a claimed request. Raises `RequestError` if it cannot be served."""

    @abstractmethod
    def on_entry(self, event: StreamEntry) -> None:
        """Handles an entry of the input stream of an owned request."""

    @abstractmethod
    def release(self, row: R) -> None:
        """Frees a row's state in the engine before the next step."""

    @abstractmethod
    def spare_requests(self) -> float:
        """Returns how many further requests could be served in time."""

    def rows_without_input(self) -> int:
        """Returns how many rows wait for the first entry of their input stream."""
        return 0

    def admissible(self) -> int:
        """Returns how many further requests to claim now; none if less than 1."""
        return math.floor(self.spare_requests())

    def capacity(self) -> Capacity:
        """Returns what the replica can serve now.

        A row without input counts as free: the stage before claims nothing for a stage that is full.
        """
        free = min(self.ownership.free + self.rows_without_input(), self.spare_requests())
        return Capacity(round(free, 1), self.speed.requests_per_second)

    # Claims ----------------------------------------------------------------------------------------------------

    def owns(self, claim: Claim) -> bool:
        """Returns whether this very claim is still held."""
        return self.ownership.claims.get(claim.request.id) is claim

    def log_fields(self, request_id: str) -> dict[str, str]:
        """Returns the `extra` of a log record that concerns a request."""
        claim = self.ownership.claims.get(request_id)
        return logs.of_request(request_id, "" if claim is None else claim.request.traceparent)

    def _claimed(self, claim: Claim) -> None:
        waited = max(0.0, time.time() - claim.request.accepted_at)
        self.metrics[m.CLAIM_WAIT].labels(self.stage).observe(waited)
        self._count_rows()
        self.traces.claimed(claim, self.first_phase)
        self._tasks.spawn(self._admit(claim))

    async def _admit(self, claim: Claim) -> None:
        request_id = claim.request.id
        try:
            ended = claim.fence.start(self.output_kind).sequence == END_SEQUENCE
            if claim.deliveries > MAX_DELIVERIES and not ended:
                message = f"gave up: {MAX_DELIVERIES} {self.stage} replicas failed while they served it"
                raise RequestError(message, retry_after=GAVE_UP_RETRY_SECONDS)
            await self.admit(claim)
        except ConnectorError as error:
            # The lease expires, and a replica that reaches Redis takes the request over.
            fields = self.log_fields(request_id)
            log.warning("request %s is left to other replicas: %s", request_id, error, extra=fields)
            self.evict(request_id)
        except Exception as error:
            self.fail(claim, error)

    def fail(self, claim: Claim, error: Exception) -> None:
        """Ends an owned request with an error after the entries that were put, unless they end it."""
        position = self.journal.last_position(claim)
        if not self.owns(claim) or position.sequence == END_SEQUENCE:
            return
        if not isinstance(error, RequestError):
            request_id = claim.request.id
            log.error("request %s failed", request_id, exc_info=error, extra=self.log_fields(request_id))
            error = stage_failed(self.stage)
        self.end(claim, position.frames, End(EndReason.ERROR, str(error), error.param, error.retry_after))

    def end(self, claim: Claim, frames: int, end: End, reason: str = "") -> None:
        """Writes the end of an owned request at `frames` and finishes the claim in the same transaction.

        `reason` is the label under which it is counted. By default an error of the request is counted as `invalid`, and
        any other end under its own reason.
        """
        self.drop_row(claim.request.id)
        if end.is_complete:
            self.speed.add_request(frames)
        at, after = Position(frames, END_SEQUENCE), self.journal.last_position(claim)
        reason = reason or ("invalid" if end.param else end.reason)
        ending = (claim.request.id, self.output_kind, at, end, claim.fence, after, claim.entry_id, reason)
        self.publisher.put([_Ending(*ending)])

    def output(self, claim: Claim, position: Position, entry: Entry) -> Append:
        """Returns the next entry of the output stream of an owned request. Put it before another one is created."""
        after = self.journal.last_position(claim)
        return Append(claim.request.id, self.output_kind, position, entry, claim.fence, after)

    def evict(self, request_id: str) -> None:
        """Removes a request, and all that this replica has of it."""
        self.traces.dropped(request_id)
        self.ownership.forget(request_id)
        self.journal.forget(request_id)
        for kind in self.input_kinds:
            self.reader.unsubscribe(request_id, kind)
        self.drop_row(request_id)
        self._count_rows()
        self.wake.set()

    def drop_row(self, request_id: str) -> None:
        """Removes the row of a request, if it has one."""
        row = self.rows.pop(request_id, None)
        if row is not None:
            self.release(row)

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
            assert isinstance(append.entry, End)
            self.traces.ended(append.request_id, append.position.frames, append.entry)
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
