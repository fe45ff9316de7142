"""The talker service: reads requests from the connector, runs the engine and publishes code frames."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from syrinx_stages.connector.base import Append, Claim, ConnectorError, StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.admission import MAX_UNSTARTED, late_margin
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.frames import checksum, marks_of, split_frames
from syrinx_stages.contract.keys import REFERENCE_POSITION, STREAM_START, Group, Position, StreamKind
from syrinx_stages.contract.messages import (
    Codes,
    End,
    EndReason,
    PlaybackProgress,
    Reference,
    RunawayGuard,
    SpeechRequest,
)
from syrinx_stages.contract.settings import TalkerSettings
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.in_flight import CompletedStep
from syrinx_stages.runtime.serial_thread import SerialThread
from syrinx_stages.runtime.worker import Worker
from syrinx_stages.talker.engine import EngineFull, TalkerEngine
from syrinx_stages.talker.holding import Holder, Holding
from syrinx_stages.talker.prefill import burst_size
from syrinx_stages.talker.prompt import Prepared
from syrinx_stages.talker.runaway import RunawayDetector, Signal
from syrinx_stages.talker.scheduler import (
    LISTENER_TIMEOUT,
    TEXT_TIMEOUT,
    Row,
    Survey,
    survey,
)
from syrinx_stages.talker.text import RowText, StreamedTextDetector

log = logging.getLogger(__name__)


COLD_REQUESTS = 2
"""Requests that are served at the same time until the speed of the engine is known."""

CODEC_DELAY_SECONDS = 0.15
"""Time from a request's first codes until the codecs' capacity reports count it."""

SURVEY_SECONDS = 0.02
"""Admission uses the survey of the last step if it is not older, and no row has come or gone."""

FRAME_BYTES = 2 * FAMILY.code_groups
"""Bytes of the codes of a frame."""

_FAILED = "the talker failed to process this request"


class Stream(Holder, kw_only=True):
    """A row with the state that the scheduler does not need."""

    detector: RunawayDetector | StreamedTextDetector | None
    """None if the request is not guarded."""
    text: RowText | None
    """None if the text was complete from the start."""
    checksum: int
    """Of the frames that are published."""

    @property
    def is_suspicious(self) -> bool:
        return self.detector is not None and self.detector.is_suspicious


class Waiting(Struct, frozen=True):
    """A request that waits for prefill."""

    claim: Claim
    prepared: Prepared
    delivered: Position
    """Last reported delivery to the client when the request was claimed."""
    detector: RunawayDetector | StreamedTextDetector | None = None
    """It knows the frames of previous owners."""
    text: RowText | None = None
    """See `Stream`."""
    checksum: int = 0
    """Of the frames of previous owners."""

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
    started: float
    prefilled: float
    """When the prefills began and ended, in monotonic seconds."""
    without_text: Sequence[str]
    """Rows for whose further text the engine has no memory."""


class _Extension(Struct, frozen=True):
    """Further text of a resident request."""

    request_id: str
    tokens: Sequence[int]
    ended: bool


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
        self._holding = Holding(self.rows)
        self._engine_full = False
        """The engine rejected a request, and no row has been evicted since."""
        self._empty_steps = 0
        self._step_seconds = math.inf
        self._prefill_seconds = self.metrics[m.PREFILL_SECONDS].labels(self.stage)
        self._unpublished: _Completed | None = None
        """The last step, whose results are to be published."""
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
        text = await self._read_text(request, len(frames)) if request.streams_text else None
        prepared, detector = await self._prepare_thread.run(self._prepare, request, frames, reference, text)
        if not self.owns(claim):
            return
        if prepared.reference is not None and not reference_published:
            self.publisher.put([self.output(request.id, REFERENCE_POSITION, prepared.reference)])
        since, written = delivered or STREAM_START, checksum(b"".join(frames))
        self._waiting[request.id] = Waiting(claim, prepared, since, detector, text, written)
        self.traces.begin(request.id, "prefill")
        self.wake.set()

    async def _read_text(self, request: SpeechRequest, frames: int) -> RowText:
        """Returns the text so far. Raises ConnectorError if that of the existing frames is missing.

        The gateway writes it again after Redis has lost it; then an owner can continue.
        """
        tokens = self.engine.open_text(request.languages)
        events = await self.connector.history(request.id, StreamKind.TEXT)
        text = await self._prepare_thread.run(_read_text, tokens, request.text, events)
        if text.frames < frames:
            raise ConnectorError(f"the text of {frames} frames is missing")
        text.set_given()
        return text

    def _prepare(
        self, request: SpeechRequest, frames: Sequence[bytes], reference: bytes | None, text: RowText | None
    ) -> tuple[Prepared, RunawayDetector | StreamedTextDetector | None]:
        start = time.monotonic()
        streamed = () if text is None else (text.tokens,)
        prepared = self.engine.prepare(request, b"".join(frames), reference, *streamed)
        if text is not None:
            text.max_frames = prepared.max_frames
        detector = None if request.guard is None else _detector(request.guard, text)
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
        self.reader.unsubscribe(request_id, StreamKind.TEXT)
        super().evict(request_id)

    def on_entry(self, event: StreamEntry) -> None:
        """Records the client's playback progress, or text that has arrived."""
        row = self.rows.get(event.request_id)
        if row is None:
            return
        if event.kind is StreamKind.TEXT:
            self._add_text(row, event)
            return
        if not isinstance(event.entry, PlaybackProgress):
            return
        row.last_feedback_at = monotonic()
        row.delivered = event.position.frames
        if row.first_delivered_at is None:
            row.first_delivered_at = row.last_feedback_at
        self.wake.set()

    def _add_text(self, row: Stream, event: StreamEntry) -> None:
        """Adds an entry of the text stream; the next iteration passes it on to the engine."""
        assert row.text is not None
        try:
            row.text.add(event)
        except ConnectorError as error:
            log.warning("request %s is claimed again: %s", row.id, error, extra=self.log_fields(row.id))
            self.claim_again(self.ownership.claims[row.id])
            return
        if isinstance(event.entry, End):
            self.fail(self.ownership.claims[row.id], event.entry.message)
        if isinstance(row.detector, StreamedTextDetector) and row.text.guard is not None:
            row.detector.set_end(row.text.rows, row.text.guard)
        self.wake.set()

    def _extensions(self, now: float) -> list[_Extension]:
        """Returns the text that has arrived for resident rows. Their next frames are due with it."""
        found = []
        for row in self.rows.values():
            if row.text is None or row.id not in self._resident or (new := row.text.take()) is None:
                continue
            row.add_text(row.text.given_frames, now)
            found.append(_Extension(row.id, *new))
        return found

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
        (seen, count, made_at), now = self._surveyed, monotonic()
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
        since, rows = monotonic() - CODEC_DELAY_SECONDS, self.rows
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
        now = monotonic()
        if self._holding.check_at <= now:
            self._publish_due((), now)
        admitted = self._next_prefills(now)
        extensions = self._extensions(now)
        found = self._survey(now)
        for request_id in found.abandoned:
            self._end_abandoned(self.rows[request_id])
        ids = found.first(self.live.max_num_seqs)
        self.rows_running.set(len(ids))
        if not (admitted or ids or self.steps or extensions):
            wake_at = min(found.wake_at, self._holding.check_at)
            return None if wake_at == math.inf else wake_at
        depth = self.engine.depth if len(ids) > self.engine.prompt_rows else 1
        rows = [self.rows[request_id] for request_id in ids] if len(self.steps) < depth else []
        for row in rows:
            row.in_flight += 1
        job = self.engine_thread.start(self._launch_and_read, admitted, extensions, rows, depth)
        if self._unpublished:
            self._publish(self._unpublished)
        launched, self._unpublished = await job
        self._count_prefill(admitted, launched)
        # The frames of many rows are published while the engine's thread launches the next step.
        if self._unpublished and not (depth > 1 and self.steps):
            self._publish(self._unpublished)
            self._unpublished = None
        for waiting in launched.failed:
            self.rows.pop(waiting.id, None)
            self.fail(waiting.claim, _FAILED)
        for waiting in launched.rejected:
            self._requeue(waiting)
        for request_id in launched.without_text:
            log.warning("the text of request %s has no place in the engine: a later owner continues it", request_id)
            self.evict(request_id)
        self.ownership.recheck_admission()
        return 0.0

    def _end_abandoned(self, row: Stream) -> None:
        missing = f"no text has arrived for {TEXT_TIMEOUT:.0f} s" if row.waits_for_text else None
        message = missing or f"the client has not read for {LISTENER_TIMEOUT:.0f} s"
        self._end(row, End(EndReason.CANCELLED, message))

    def _count_prefill(self, admitted: Sequence[Waiting], launched: _Launched) -> None:
        if not admitted:
            return
        rejected = {waiting.id for waiting in launched.rejected}
        # Requests that were evicted in the meantime have no row any more.
        resident = {waiting.id for waiting in admitted} & self.rows.keys() - rejected
        for request_id in resident:
            self.traces.begin(request_id, "first_frame")
        self._resident |= resident
        self._prefill_seconds.observe(launched.prefilled - launched.started)
        self.exclude(launched.started, launched.prefilled)

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
            if item.text is not None:
                self.reader.subscribe(item.id, StreamKind.TEXT, item.text.position)
        return chosen

    def _requeue(self, waiting: Waiting) -> None:
        """Queues a rejected request again until a row is evicted, or fails it if no other request holds memory."""
        if self.rows.pop(waiting.id, None) is None:
            return
        if not (self._resident or self.engine_thread.has_queued):
            self.fail(waiting.claim, "the request is too long for the talker's memory", "input")
            return
        self.reader.unsubscribe(waiting.id, self.input_kind)
        self.reader.unsubscribe(waiting.id, StreamKind.TEXT)
        self._waiting[waiting.id] = waiting
        # Queued calls release evicted rows. Then an immediate retry may succeed.
        self._engine_full = not self.engine_thread.has_queued

    def _publish(self, completed: _Completed) -> None:
        """Publishes a step's results. Ignores rows that were evicted or claimed again in the meantime."""
        now = monotonic()
        rows, results = self.rows, completed.result
        self._evict_if_starved(completed.context, results)
        stepped: list[Stream] = []
        ended: list[tuple[Stream, End]] = []
        frames = 0
        for row in completed.context:
            row.in_flight -= 1
            result = results.get(row.id)
            if result is None or rows.get(row.id) is not row:
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
            else:
                stepped.append(row)
        self._publish_due(stepped, now)
        for row, end in ended:
            self._end(row, end)
        # An exponential moving average over about ten steps.
        mean, seconds = self._step_seconds, completed.seconds
        self._step_seconds = seconds if mean == math.inf else mean + (seconds - mean) / 10
        self.count_step(len(completed.context), frames, completed.seconds)

    def _publish_due(self, stepped: Sequence[Stream], now: float) -> None:
        """Publishes the frames that are due, of rows that have just got one or have held some for a while."""
        self.publisher.put([self._entry(row) for row in self._holding.take(stepped, now)])

    def _entry(self, row: Stream) -> Append:
        """Returns an entry of the frames that a row holds."""
        talker = ""
        if row.id in self._unattributed:
            self._unattributed.remove(row.id)
            self.traces.begin(row.id, "generate")
            talker = self.replica
        codes, marks = b"".join(row.held), marks_of(row.held)
        row.held.clear()
        row.checksum = checksum(codes, row.checksum)
        waits_for_text = row.produced >= row.text_frames
        entry = Codes(codes, talker, marks, row.checksum, waits_for_text)
        return self.output(row.id, Position(row.produced), entry)

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
        self.end(row.id, row.produced, structs.replace(end, checksum=row.checksum))

    def _evict_if_starved(self, stepped: Sequence[Stream], results: Mapping[str, bytes | End]) -> None:
        """Evicts the row with the latest deadline if no row had memory for a frame. A later owner continues it."""
        rows = self.rows
        if any(row.id in results and rows.get(row.id) is row for row in stepped):
            self._empty_steps = 0
        elif present := [row for row in stepped if rows.get(row.id) is row]:
            self._empty_steps += 1
            if self._empty_steps > 0:
                log.warning("no memory for the next frame of %d requests: evicting one of them", len(present))
                self.evict(max(present, key=Row.underrun_at).id)
                # Steps that are already in flight do not benefit from it.
                self._empty_steps = -self.engine.depth

    # On the engine's thread ------------------------------------------------------------------------------------

    def _launch_and_read(
        self, admitted: Sequence[Waiting], extensions: Sequence[_Extension], rows: Sequence[Stream], depth: int
    ) -> tuple[_Launched, _Completed | None]:
        """Prefills requests, passes on text, launches a step, and reads the oldest one if `depth` are in flight."""
        started = time.monotonic()
        failed: list[Waiting] = []
        rejected: list[Waiting] = []
        self._prefill(admitted, failed, rejected)
        prefilled = time.monotonic()
        without_text = [each.request_id for each in extensions if not self._extend(each)]
        without_state = {*(waiting.id for waiting in failed + rejected), *without_text}
        due = [row for row in rows if row.id not in without_state]
        if due:
            self.steps.launch(due, lambda: self._launch([row.id for row in due]))
        return _Launched(failed, rejected, started, prefilled, without_text), self.steps.read_oldest(bool(due), depth)

    def _extend(self, extension: _Extension) -> bool:
        """Passes text on to the engine. Returns False if it failed with this row only."""
        try:
            self.engine.extend(extension.request_id, extension.tokens, extension.ended)
        except Exception:
            if not self.engine.isolates_rows:
                raise
            request_id = extension.request_id
            log.exception("the text of request %s failed in the engine", request_id, extra=self.log_fields(request_id))
            return False
        return True

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


def _read_text(tokens: StreamedText, beginning: str, events: Sequence[StreamEntry]) -> RowText:
    """Returns the text of a request from its beginning and its text stream."""
    text = RowText(tokens, beginning)
    for event in events:
        text.add(event)
    return text


def _written_frames(entries: Sequence[StreamEntry]) -> list[bytes]:
    """Returns the frames in the entries of a request, with their marks."""
    codes = [item.entry for item in entries if isinstance(item.entry, Codes)]
    return [frame for each in codes for frame in split_frames(each.codes, each.marks, FRAME_BYTES)]


def _detector(guard: RunawayGuard, text: RowText | None) -> RunawayDetector | StreamedTextDetector:
    """Returns the detector of a request that has no frames yet."""
    if text is None:
        return RunawayDetector(guard)
    detector = StreamedTextDetector()
    if text.guard is not None:
        detector.set_end(text.rows, text.guard)
    return detector


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
        text=waiting.text,
        checksum=waiting.checksum,
        text_frames=math.inf if waiting.text is None else waiting.text.given_frames,
        last_text_at=now,
    )
