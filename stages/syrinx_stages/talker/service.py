"""The talker service: requests in, code frames out; moves messages between the connector and the engine."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from syrinx_stages.connector.base import Append, Claim, StageConnector, StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import REFERENCE_POSITION, STREAM_START, Group, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason, PlaybackProgress, Reference
from syrinx_stages.contract.settings import StageConfig, TalkerSettings
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.runtime.device import open_device
from syrinx_stages.runtime.in_flight import CompletedStep, InFlightSteps
from syrinx_stages.runtime.metrics import Metrics, rows_label
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.worker import Worker, shut_down
from syrinx_stages.talker.engine import NoRoom, Prepared, TalkerEngine
from syrinx_stages.talker.scheduler import Row, abandoned, late, margin, schedule

log = logging.getLogger(__name__)

LISTENER_PATIENCE = 60.0
"""Seconds without a sign of the listener after which a stream that waits for him is given up."""


MOST_UNSTARTED = 4
"""Requests that may be claimed ahead of their first frame: enough to keep the engine busy; the rest can wait for
whichever replica is free first."""
_FAILED = "the talker failed at this request"


class Waiting(Struct, frozen=True):
    """A request that is ready for prefill."""

    claim: Claim
    prepared: Prepared
    played: Position
    """How far its listener had been served when it was claimed."""


class _Done(Struct, frozen=True):
    """What the engine did in a turn."""

    completed: CompletedStep[Sequence[Row], Mapping[str, bytes | End]] | None
    failed: Sequence[Waiting]
    """Requests that it failed at."""
    refused: Sequence[Waiting]
    """Requests that it has no room for now."""
    prefill_seconds: float


class TalkerService(Worker[Row, TalkerSettings, TalkerEngine[Any]]):
    """One talker replica."""

    stage = "talker"
    group = Group.TALKERS
    input_kind = StreamKind.PLAYBACK
    output_kind = StreamKind.CODES

    def __init__(
        self,
        connector: StageConnector,
        load: Callable[[], TalkerEngine[Any]],
        replica: str,
        max_resident: int,
        live: LiveSettings[TalkerSettings],
        metrics: Metrics,
    ) -> None:
        super().__init__(connector, load, replica, max_resident, live, metrics)
        self._waiting: dict[str, Waiting] = {}
        self._unsigned: set[str] = set()
        """Requests whose next entry says who made it."""
        self._prepare_thread = ThreadPoolExecutor(1, "talker-prepare")
        self._steps: InFlightSteps[Sequence[Row], Mapping[str, bytes | End]]
        self._resident: set[str] = set()
        """Requests that the engine holds state of."""
        self._full = False
        """The engine had no room for a request, and no row has left since."""
        self._starved = 0
        """Steps in a row that made nothing."""
        self._step_seconds = math.inf
        """Of the last steps, the mean."""
        # Looked up once: what a step leaves of its time is little.
        self._running = metrics[m.ROWS_RUNNING].labels(self.stage)
        self._frames = metrics[m.FRAMES].labels(self.stage)
        self._prefill_seconds = metrics[m.PREFILL_SECONDS].labels(self.stage)

    async def warm_up(self) -> None:
        """Warms the engine up."""
        await super().warm_up()
        self._steps = InFlightSteps(self.engine.depth)

    async def close(self) -> None:
        """Hands over what is left and frees threads and connections."""
        await super().close()
        await shut_down(self._prepare_thread)

    async def admit(self, claim: Claim) -> None:
        """Prepares a request (tokens, reference audio) off the engine's thread and queues it for prefill."""
        request = claim.request
        frames: list[bytes] = []
        told = False
        played: Position | None = None
        if claim.redelivered:
            entries = await self.connector.history(request.id, self.output_kind)
            if not entries or any(isinstance(item.entry, End) for item in entries):
                await self.ownership.finish(request.id)
                self.evict(request.id)
                return
            frames = [item.entry.codes for item in entries if isinstance(item.entry, Codes)]
            told = any(isinstance(item.entry, Reference) for item in entries)
            played = await self.connector.last_position(request.id, self.input_kind)
        pcm = await self.connector.reference(request.id) if request.has_reference else None
        loop = asyncio.get_running_loop()
        prepared = await loop.run_in_executor(self._prepare_thread, self.engine.prepare, request, b"".join(frames), pcm)
        if not self.owns(claim):
            return
        if prepared.reference_codes is not None and not told:
            entry = Reference(prepared.reference_codes)
            self.publisher.put([Append(request.id, self.output_kind, REFERENCE_POSITION, entry)])
        self._waiting[request.id] = Waiting(claim, prepared, played or STREAM_START)
        self.wake.set()

    def evict(self, request_id: str) -> None:
        """Forgets a request."""
        self._waiting.pop(request_id, None)
        self._unsigned.discard(request_id)
        self._resident.discard(request_id)
        self._full = False
        super().evict(request_id)

    def on_entry(self, event: StreamEntry) -> None:
        """Notes how far the client has been served."""
        row = self.rows.get(event.request_id)
        if row is None or not isinstance(event.entry, PlaybackProgress):
            return
        row.heard = time.monotonic()
        row.delivered = event.position.frames
        if row.first_delivered is None:
            row.first_delivered = row.heard
        self.wake.set()

    def can_admit(self) -> bool:
        """Nothing new while streams that play run dry: a few that play well are worth more than many that stutter."""
        if self._full:
            return False
        started = sum(row.first_frame is not None for row in self.rows.values())
        unstarted = len(self.ownership.claims) - started
        lead_limit = self.live.current.lead_limit_seconds
        return unstarted < max(MOST_UNSTARTED, self.engine.prefill_rows) and not late(
            self.rows.values(), time.monotonic(), lead_limit, margin(self._step_seconds)
        )

    async def run_iteration(self) -> float | None:
        """Prefills requests that wait, begins a step of the rows that are due, and reads the oldest step."""
        settings, now = self.live.current, time.monotonic()
        for request_id in abandoned(self.rows.values(), now, settings.lead_limit_seconds, LISTENER_PATIENCE):
            message = f"nobody has listened for {LISTENER_PATIENCE:.0f} s"
            self.end(request_id, self.rows[request_id].produced, End(EndReason.CANCELLED, message))
        admitted = self._next_admitted(now)
        step = schedule(self.rows.values(), now, settings.max_num_seqs, settings.lead_limit_seconds)
        self._running.set(len(step.ids))
        if not (admitted or step.ids or self._steps):
            return step.wake
        rows = [self.rows[request_id] for request_id in step.ids]
        for row in rows:
            row.in_flight += 1
        done = await self.run_engine(self._work, admitted, rows)
        if admitted:
            refused = {waiting.claim.request.id for waiting in done.refused}
            # Without those that were dropped meanwhile.
            self._resident |= {waiting.claim.request.id for waiting in admitted} & self.rows.keys() - refused
            self._prefill_seconds.observe(done.prefill_seconds)
        if done.completed:
            self._publish(done.completed)
        for waiting in done.failed:
            self.rows.pop(waiting.claim.request.id, None)
            await self.fail(waiting.claim, _FAILED)
        for waiting in done.refused:
            await self._refused_room(waiting)
        self.ownership.recheck_admission()
        return 0.0

    def _next_admitted(self, now: float) -> list[Waiting]:
        """As many as cost little more than one a turn, so that a burst does not silence those that play."""
        if self._full:
            return []
        waiting = sorted(self._waiting.values(), key=lambda item: item.claim.request.accepted_at)
        chosen = waiting[: self.engine.prefill_rows]
        for item in chosen:
            request = item.claim.request
            del self._waiting[request.id]
            self._unsigned.add(request.id)
            self.rows[request.id] = _row(item, now)
            self.reader.subscribe(request.id, self.input_kind, item.played)
        return chosen

    async def _refused_room(self, waiting: Waiting) -> None:
        """Waits on, until a row has left."""
        request_id = waiting.claim.request.id
        if self.rows.pop(request_id, None) is None:
            return
        if not (self._resident or self._queued_calls):
            await self.fail(waiting.claim, "the request is too long for the memory of the talker", "input")
            return
        self.reader.unsubscribe(request_id, self.input_kind)
        self._waiting[request_id] = waiting
        # What left meanwhile is not released yet: then it is worth another try at once.
        self._full = not self._queued_calls

    def _publish(self, completed: CompletedStep[Sequence[Row], Mapping[str, bytes | End]]) -> None:
        """Gives out what a step has made. Rows that were dropped meanwhile, or claimed anew, are left out."""
        now = time.monotonic()
        self._make_room([row for row in completed.context if self.rows.get(row.id) is row], completed.result)
        appends = []
        for row in completed.context:
            row.in_flight -= 1
            result = completed.result.get(row.id)
            if result is None or self.rows.get(row.id) is not row:
                continue
            if isinstance(result, End):
                self.end(row.id, row.produced, result)
                continue
            row.produced += 1
            row.first_frame = now if row.first_frame is None else row.first_frame
            appends.append(self._append(row, result))
        self.publisher.put(appends)
        self._step_seconds = _smoothed(self._step_seconds, completed.seconds)
        self._frames.inc(len(appends))
        self.metrics[m.STEP_SECONDS].labels(self.stage, rows_label(len(completed.context))).observe(completed.seconds)

    def _make_room(self, rows: Sequence[Row], results: Mapping[str, bytes | End]) -> None:
        """Where there was no memory for a frame of any row, the one that can wait longest is left to a later owner."""
        if any(row.id in results for row in rows):
            self._starved = 0
        elif rows:
            self._starved += 1
            if self._starved > 0:
                log.warning("no memory for a frame of %d requests: one of them has to wait", len(rows))
                self.evict(max(rows, key=Row.underrun_at).id)
                # Steps that are launched already know nothing of it.
                self._starved = -self.engine.depth

    # On the engine's thread ------------------------------------------------------------------------------------

    def _work(self, admitted: Sequence[Waiting], rows: Sequence[Row]) -> _Done:
        """All that a turn asks of the engine."""
        began = time.monotonic()
        failed: list[Waiting] = []
        refused: list[Waiting] = []
        self._prefill(admitted, failed, refused)
        prefill_seconds = time.monotonic() - began
        lost = {waiting.claim.request.id for waiting in failed + refused}
        due = [row for row in rows if row.id not in lost]
        if due:
            self._steps.launch(due, lambda: self._launch([row.id for row in due]))
        return _Done(self._steps.read_oldest(bool(due)), failed, refused, prefill_seconds)

    def _prefill(self, admitted: Sequence[Waiting], failed: list[Waiting], refused: list[Waiting]) -> None:
        """Prefills requests: together, or else each alone."""
        if not admitted:
            return
        try:
            self.engine.admit([waiting.prepared for waiting in admitted])
        except Exception as error:
            full = isinstance(error, NoRoom)
            if not (full or self.engine.isolates_rows):
                raise
            if len(admitted) > 1:
                for waiting in admitted:
                    self._prefill([waiting], failed, refused)
            elif full:
                refused += admitted
            else:
                log.exception("request %s fails at prefill", admitted[0].claim.request.id)
                failed += admitted

    def _launch(self, ids: Sequence[str]) -> Callable[[], Mapping[str, bytes | End]]:
        """Begins a step; if it fails, each row alone, so that one bad request harms no other."""
        try:
            step = self.engine.launch(ids)
        except Exception:
            if not self.engine.isolates_rows:
                raise
            log.exception("a step of %d rows failed", len(ids))
            results = {key: result for request_id in ids for key, result in self._step_alone(request_id).items()}
            return lambda: results
        return lambda: self.engine.read(step)

    def _step_alone(self, request_id: str) -> Mapping[str, bytes | End]:
        try:
            return self.engine.read(self.engine.launch([request_id]))
        except Exception:
            log.exception("request %s fails in the engine", request_id)
            return {request_id: End(EndReason.ERROR, _FAILED)}

    def _append(self, row: Row, codes: bytes) -> Append:
        talker = self.replica if row.id in self._unsigned else ""
        self._unsigned.discard(row.id)
        return Append(row.id, self.output_kind, Position(row.produced), Codes(codes, talker))


def _smoothed(mean: float, seconds: float) -> float:
    """A mean that follows about the last ten."""
    return seconds if mean == math.inf else mean + (seconds - mean) / 10


def _row(waiting: Waiting, now: float) -> Row:
    """A request as the schedule sees it, from its claim on."""
    request = waiting.claim.request
    # Of a stream taken over, what was handed over may have been played: never hold it back too early.
    delivered = waiting.played.frames
    began = now - delivered * FAMILY.frame_seconds
    return Row(
        id=request.id,
        accepted=now - max(0.0, time.time() - request.accepted_at),
        live=request.live,
        produced=waiting.prepared.frames,
        first_frame=began if waiting.prepared.frames else None,
        heard=now,
        delivered=delivered,
        first_delivered=began if delivered else None,
    )


def build(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[TalkerService, None]:
    """The talker of a process; it has no public application."""
    live = LiveSettings(config.talker, config.settings_generation, config.max_resident)

    def load() -> TalkerEngine[Any]:
        return IMPLEMENTATION.load_talker_engine(config, open_device(config.device, metrics), live)

    return TalkerService(connector, load, config.replica, config.max_resident, live, metrics), None
