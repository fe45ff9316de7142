"""The talker service: reads requests from the connector, runs the engine and publishes code frames."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from syrinx_stages.connector.base import Append, Claim, StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.frames import marks_of, split_frames
from syrinx_stages.contract.keys import REFERENCE_POSITION, STREAM_START, Group, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason, PlaybackProgress, Reference, SpeechRequest
from syrinx_stages.contract.settings import TalkerSettings
from syrinx_stages.runtime.in_flight import CompletedStep
from syrinx_stages.runtime.serial_thread import SerialThread
from syrinx_stages.runtime.worker import Worker
from syrinx_stages.talker.engine import EngineFull, TalkerEngine
from syrinx_stages.talker.prefill import burst_size
from syrinx_stages.talker.prompt import Prepared
from syrinx_stages.talker.runaway import RunawayDetector, Signal
from syrinx_stages.talker.scheduler import LISTENER_TIMEOUT, Row, Survey, late_margin, survey

log = logging.getLogger(__name__)

MAX_UNSTARTED = 4
"""Claimed requests of which no frame is being generated yet, while references are encoded: enough to keep the engine
busy. Others wait for whichever replica is free. Without a reference, at most one is ready beyond those of the next
prefill."""

COLD_REQUESTS = 2
"""Requests that are served at the same time until the speed of the engine is known."""

CODEC_DELAY_SECONDS = 0.15
"""Time from a request's first codes until the codecs' capacity reports count it."""

SURVEY_SECONDS = 0.02
"""Admission uses the survey of the last step if it is not older, and no row has come or gone."""

HELD_FRAMES = 4
"""Frames of a stream that is ahead of its listener are published in entries of this many."""
HELD_LEAD_SECONDS = 1.0
"""A stream with less audio ahead of its listener gets each frame at once."""

FRAME_BYTES = 2 * FAMILY.code_groups
"""Bytes of the codes of a frame."""

_FAILED = "the talker failed to process this request"


class Stream(Row, kw_only=True):
    """A row with the state that the scheduler does not need."""

    held: list[bytes]
    """Frames that are generated and not published yet."""
    detector: RunawayDetector | None
    """None if the request is not guarded."""


class Waiting(Struct, frozen=True):
    """A request that waits for prefill."""

    claim: Claim
    prepared: Prepared
    delivered: Position
    """Last reported delivery to the client when the request was claimed."""
    detector: RunawayDetector | None = None
    """It knows the frames of previous owners."""

    @property
    def id(self) -> str:
        """The request's id."""
        return self.claim.request.id


_Completed = CompletedStep[Sequence[Stream], Mapping[str, bytes | End]]


class _Launched(Struct, frozen=True):
    """What became of the prefills of one iteration."""

    failed: Sequence[Waiting]
    rejected: Sequence[Waiting]
    """Requests for which the engine has no memory now."""
    prefill_seconds: float


class TalkerService(Worker[Stream, TalkerSettings, TalkerEngine]):
    """One talker replica. See `Worker` for claims, ownership and shutdown."""

    stage = "talker"
    group = Group.TALKERS
    input_kind = StreamKind.PLAYBACK
    output_kind = StreamKind.CODES
    first_phase = "prepare"

    def set_up(self) -> None:
        self._waiting: dict[str, Waiting] = {}
        self._unattributed: set[str] = set()
        """Requests whose next entry names this replica."""
        self._prepare_thread = SerialThread("talker-prepare")
        self._resident: set[str] = set()
        self._engine_full = False
        """The engine rejected a request, and no row has been evicted since."""
        self._empty_steps = 0
        self._step_seconds = math.inf
        self._prefill_seconds = self.metrics[m.PREFILL_SECONDS].labels(self.stage)
        self._surveyed: tuple[Survey, int, float] = survey((), 0.0, 0.0), 0, -math.inf
        """The last survey, the number of its rows, and when it was made."""
        for signal in Signal:
            self.metrics[m.RUNAWAYS].labels(signal)

    async def close(self) -> None:
        await super().close()
        await self._prepare_thread.close()

    async def admit(self, claim: Claim) -> None:
        """Prepares a request (tokens, reference audio) outside the engine's thread and queues it for prefill."""
        request = claim.request
        frames: list[bytes] = []
        reference_published = False
        delivered: Position | None = None
        if not claim.redelivered:
            self.traces.record_wait(claim)
        if claim.redelivered:
            entries = await self.connector.history(request.id, self.output_kind)
            if not entries or any(isinstance(item.entry, End) for item in entries):
                await self.ownership.finish(request.id)
                self.evict(request.id)
                return
            if entries[-1].position != claim.fence.start(self.output_kind):
                # A fail-over has lost entries since the claim, and their owner may write them again.
                if self.owns(claim):
                    self.claim_again(claim)
                return
            frames = _written_frames(entries)
            reference_published = any(isinstance(item.entry, Reference) for item in entries)
            self.journal.restore(claim, entries)
            delivered = await self.connector.last_position(request.id, self.input_kind)
        reference = await self.connector.reference(request.id) if request.has_reference else None
        prepared, detector = await self._prepare_thread.run(self._prepare, request, frames, reference)
        if not self.owns(claim):
            return
        if prepared.reference is not None and not reference_published:
            self.publisher.put([self.output(request.id, REFERENCE_POSITION, prepared.reference)])
        self._waiting[request.id] = Waiting(claim, prepared, delivered or STREAM_START, detector)
        self.traces.begin(request.id, "prefill")
        self.wake.set()

    def _prepare(
        self, request: SpeechRequest, frames: Sequence[bytes], reference: bytes | None
    ) -> tuple[Prepared, RunawayDetector | None]:
        start = time.monotonic()
        prepared = self.engine.prepare(request, b"".join(frames), reference)
        detector = None if request.guard is None else RunawayDetector(request.guard)
        if detector is not None:
            for frame in frames:
                detector.add(frame)
        self.metrics[m.PREPARE_SECONDS].labels(request.task_type).observe(time.monotonic() - start)
        return prepared, detector

    def evict(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)
        self._unattributed.discard(request_id)
        self._resident.discard(request_id)
        self._engine_full = False
        super().evict(request_id)

    def on_entry(self, event: StreamEntry) -> None:
        """Records the client's playback progress."""
        row = self.rows.get(event.request_id)
        if row is None or not isinstance(event.entry, PlaybackProgress):
            return
        row.last_feedback_at = time.monotonic()
        row.delivered = event.position.frames
        if row.first_delivered_at is None:
            row.first_delivered_at = row.last_feedback_at
        self.wake.set()

    def admissible(self) -> int:
        """Returns how many further requests to claim now. Streams in progress come first: none while one is late."""
        if self._engine_full:
            return 0
        rows = self.rows
        started = (row is not None and row.frames for row in map(rows.get, self.ownership.claims))
        claims = zip(self.ownership.claims.values(), started, strict=True)
        unstarted = [claim for claim, has_frames in claims if not has_frames]
        ready = sum(not claim.request.encodes_reference for claim in unstarted)
        prefill_rows = self.engine.prefill_rows
        room = min(max(MAX_UNSTARTED, prefill_rows) - len(unstarted), prefill_rows + 1 - ready)
        return min(room, super().admissible()) if room > 0 else 0

    def spare_requests(self) -> float:
        """Returns how many further requests could be generated and decoded in time; none while a stream is late."""
        (seen, count, made_at), now = self._surveyed, time.monotonic()
        if count != len(self.rows) or now - made_at > SURVEY_SECONDS:
            seen = self._survey(now)
        spare = self.speed.spare_requests(seen.demands)
        if math.isinf(self.speed.capacity):
            spare = min(spare, max(COLD_REQUESTS - len(self.ownership.claims), 0))
        late_before = now + late_margin(self._step_seconds)
        late = any(self.rows[key].underrun_at() < late_before for key in seen.late if key in self.rows)
        return min(spare, self._codecs_room(), 0.0 if late and self.speed.real_time else math.inf)

    def _survey(self, now: float) -> Survey:
        lead_limit, margin = self.live.current.lead_limit_seconds, late_margin(self._step_seconds)
        found = survey(self.rows.values(), now, lead_limit, self.engine.ahead_frames, margin)
        self._surveyed = found, len(self.rows), now
        return found

    def _codecs_room(self) -> float:
        """Returns how many further requests the codecs could decode, without those whose codes they had not seen."""
        since, rows = time.monotonic() - CODEC_DELAY_SECONDS, self.rows
        unseen = 0
        for request_id, claim in self.ownership.claims.items():
            row = rows.get(request_id)
            is_seen = row is not None and row.first_frame_at is not None and row.first_frame_at < since
            unseen += not (is_seen or claim.redelivered)
        return self.ownership.codecs_free - unseen

    async def run_iteration(self) -> float | None:
        """Prefills waiting requests, launches a step of the due rows, and reads the oldest step in flight.

        Returns when to run again (monotonic seconds), 0 for immediately, or None to wait for an event.
        """
        now = time.monotonic()
        admitted = self._next_prefills(now)
        found = self._survey(now)
        for request_id in found.abandoned:
            message = f"the client has not read for {LISTENER_TIMEOUT:.0f} s"
            self._end(self.rows[request_id], End(EndReason.CANCELLED, message))
        ids = found.first(self.live.max_num_seqs)
        self.rows_running.set(len(ids))
        if not (admitted or ids or self.steps):
            return found.wake_at
        depth = self.engine.depth if len(ids) > self.engine.prompt_rows else 1
        rows = [self.rows[request_id] for request_id in ids] if len(self.steps) < depth else []
        for row in rows:
            row.in_flight += 1
        launched, completed = await self.engine_thread.run(self._launch_and_read, admitted, rows, depth)
        self._count_prefill(admitted, launched)
        if completed:
            self._publish(completed)
        for waiting in launched.failed:
            self.rows.pop(waiting.id, None)
            self.fail(waiting.claim, _FAILED)
        for waiting in launched.rejected:
            self._requeue(waiting)
        self.ownership.recheck_admission()
        return 0.0

    def _count_prefill(self, admitted: Sequence[Waiting], launched: _Launched) -> None:
        if not admitted:
            return
        rejected = {waiting.id for waiting in launched.rejected}
        # Requests that were evicted in the meantime have no row any more.
        resident = {waiting.id for waiting in admitted} & self.rows.keys() - rejected
        for request_id in resident:
            self.traces.begin(request_id, "first_frame")
        self._resident |= resident
        self._prefill_seconds.observe(launched.prefill_seconds)

    def _next_prefills(self, now: float) -> list[Waiting]:
        """Creates rows for the oldest waiting requests: so few that their prefill does not stall the other streams."""
        if self._engine_full:
            return []
        waiting = sorted(self._waiting.values(), key=lambda item: item.claim.request.accepted_at)
        waiting = waiting[: self.engine.prefill_rows]
        chosen = waiting[: burst_size([item.prepared.positions for item in waiting])]
        for item in chosen:
            del self._waiting[item.id]
            self._unattributed.add(item.id)
            self.rows[item.id] = _row(item, now)
            self.reader.subscribe(item.id, self.input_kind, item.delivered)
        return chosen

    def _requeue(self, waiting: Waiting) -> None:
        """Queues a rejected request again until a row is evicted, or fails it if no other request holds memory."""
        if self.rows.pop(waiting.id, None) is None:
            return
        if not (self._resident or self.engine_thread.has_queued):
            self.fail(waiting.claim, "the request is too long for the talker's memory", "input")
            return
        self.reader.unsubscribe(waiting.id, self.input_kind)
        self._waiting[waiting.id] = waiting
        # Queued calls release evicted rows. Then an immediate retry may succeed.
        self._engine_full = not self.engine_thread.has_queued

    def _publish(self, completed: _Completed) -> None:
        """Publishes a step's results. Ignores rows that were evicted or claimed again in the meantime."""
        now = time.monotonic()
        self._evict_if_starved([row for row in completed.context if self.rows.get(row.id) is row], completed.result)
        appends: list[Append] = []
        ended: list[tuple[Stream, End]] = []
        frames = 0
        for row in completed.context:
            row.in_flight -= 1
            result = completed.result.get(row.id)
            if result is None or self.rows.get(row.id) is not row:
                continue
            if isinstance(result, End):
                ended.append((row, result))
                continue
            frames += 1
            row.produced += 1
            row.held.append(result)
            row.first_frame_at = now if row.first_frame_at is None else row.first_frame_at
            if row.detector is not None and (signal := row.detector.add(result)) is not None:
                self._cut_runaway(row, row.detector.good_frames, signal)
                ended.append((row, End(EndReason.RUNAWAY)))
            elif _must_publish(row, now):
                appends.append(self._entry(row))
        self.publisher.put(appends)
        for row, end in ended:
            self._end(row, end)
        # An exponential moving average over about ten steps.
        mean, seconds = self._step_seconds, completed.seconds
        self._step_seconds = seconds if mean == math.inf else mean + (seconds - mean) / 10
        self.count_step(len(completed.context), frames, completed.seconds)

    def _entry(self, row: Stream) -> Append:
        """Returns an entry of the frames that a row holds."""
        talker = ""
        if row.id in self._unattributed:
            self._unattributed.remove(row.id)
            self.traces.begin(row.id, "generate")
            talker = self.replica
        codes = Codes(b"".join(row.held), talker, marks_of(row.held))
        row.held.clear()
        return self.output(row.id, Position(row.produced), codes)

    def _cut_runaway(self, row: Stream, good_frames: int, signal: Signal) -> None:
        """Drops the frames of a runaway after its good ones, as far as they are not published."""
        detected_at, published = row.produced, row.produced - len(row.held)
        row.produced = max(good_frames, published)
        del row.held[row.produced - published :]
        self.metrics[m.RUNAWAYS].labels(signal).inc()
        message = "request %s is a runaway (%s): stopped at frame %d, after %d frames"
        log.info(message, row.id, signal, detected_at, row.produced, extra=self.log_fields(row.id))

    def _end(self, row: Stream, end: End) -> None:
        """Ends a request after the frames that its row holds."""
        if row.held:
            self.publisher.put([self._entry(row)])
        self.end(row.id, row.produced, end)

    def _evict_if_starved(self, rows: Sequence[Stream], results: Mapping[str, bytes | End]) -> None:
        """Evicts the row with the latest deadline if no row had memory for a frame. A later owner continues it."""
        if any(row.id in results for row in rows):
            self._empty_steps = 0
        elif rows:
            self._empty_steps += 1
            if self._empty_steps > 0:
                log.warning("no memory for the next frame of %d requests: evicting one of them", len(rows))
                self.evict(max(rows, key=Row.underrun_at).id)
                # Steps that are already in flight do not benefit from it.
                self._empty_steps = -self.engine.depth

    # On the engine's thread ------------------------------------------------------------------------------------

    def _launch_and_read(
        self, admitted: Sequence[Waiting], rows: Sequence[Stream], depth: int
    ) -> tuple[_Launched, _Completed | None]:
        """Prefills requests, launches a step, and reads the oldest one unless fewer than `depth` are in flight."""
        start = time.monotonic()
        failed: list[Waiting] = []
        rejected: list[Waiting] = []
        self._prefill(admitted, failed, rejected)
        prefill_seconds = time.monotonic() - start
        without_state = {waiting.id for waiting in failed + rejected}
        due = [row for row in rows if row.id not in without_state]
        if due:
            self.steps.launch(due, lambda: self._launch([row.id for row in due]))
        return _Launched(failed, rejected, prefill_seconds), self.steps.read_oldest(bool(due), depth)

    def _prefill(self, admitted: Sequence[Waiting], failed: list[Waiting], rejected: list[Waiting]) -> None:
        """Prefills requests as a batch or, if that fails, one by one."""
        if not admitted:
            return
        try:
            self.engine.admit([waiting.prepared for waiting in admitted])
        except Exception as error:
            full = isinstance(error, EngineFull)
            if not (full or self.engine.isolates_rows):
                raise
            if len(admitted) > 1:
                for waiting in admitted:
                    self._prefill([waiting], failed, rejected)
            elif full:
                rejected += admitted
            else:
                request_id = admitted[0].id
                log.exception("prefill of request %s failed", request_id, extra=self.log_fields(request_id))
                failed += admitted

    def _launch(self, ids: Sequence[str]) -> Callable[[], Mapping[str, bytes | End]]:
        return self.launch_step(
            len(ids),
            lambda: self.engine.launch(ids),
            lambda: {key: result for request_id in ids for key, result in self._step_alone(request_id).items()},
        )

    def _step_alone(self, request_id: str) -> Mapping[str, bytes | End]:
        try:
            return self.engine.read(self.engine.launch([request_id]))
        except Exception:
            log.exception("request %s failed in the engine", request_id, extra=self.log_fields(request_id))
            return {request_id: End(EndReason.ERROR, _FAILED)}


def _written_frames(entries: Sequence[StreamEntry]) -> list[bytes]:
    """Returns the frames in the entries of a request, with their marks."""
    codes = [item.entry for item in entries if isinstance(item.entry, Codes)]
    return [frame for each in codes for frame in split_frames(each.codes, each.marks, FRAME_BYTES)]


def _must_publish(row: Stream, now: float) -> bool:
    """Returns whether the frames that a row holds must be published now.

    Frames under suspicion are held until a listener needs them: if they belong to a runaway, it ends before them.
    """
    is_urgent = row.underrun_at() < now + HELD_LEAD_SECONDS
    if row.detector is not None and row.detector.is_suspicious:
        return is_urgent and row.live
    return is_urgent or len(row.held) >= HELD_FRAMES


def _row(waiting: Waiting, now: float) -> Stream:
    request = waiting.claim.request
    # After a takeover, assume that everything delivered has been played, so that the lead is not overestimated.
    delivered = waiting.delivered.frames
    playback_start = now - delivered * FAMILY.frame_seconds
    return Stream(
        id=request.id,
        accepted_at=now - max(0.0, time.time() - request.accepted_at),
        live=request.live,
        produced=waiting.prepared.frames,
        first_frame_at=playback_start if waiting.prepared.frames else None,
        last_feedback_at=now,
        delivered=delivered,
        first_delivered_at=playback_start if delivered else None,
        held=[],
        detector=waiting.detector,
    )
