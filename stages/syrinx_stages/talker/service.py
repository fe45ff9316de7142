"""The talker service: reads requests from the connector, runs the engine and publishes code frames."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from syrinx_stages.connector.base import Append, Claim, ConnectorError, StageConnector, StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.frames import checksum
from syrinx_stages.contract.keys import REFERENCE_POSITION, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import (
    Codes,
    End,
    EndReason,
    PlaybackProgress,
    SpeechRequest,
    encode,
)
from syrinx_stages.contract.settings import TalkerSettings
from syrinx_stages.contract.stages import Stage
from syrinx_stages.normalization.reading import Reading
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.runtime.requests.worker import Worker
from syrinx_stages.runtime.serial_thread import SerialThread
from syrinx_stages.scheduling.admission import late_margin, spare_requests, unstarted_room
from syrinx_stages.scheduling.talker import (
    LISTENER_TIMEOUT,
    TEXT_TIMEOUT,
    Row,
    Schedule,
    schedule,
)
from syrinx_stages.talker.cuda.prefill import burst_size
from syrinx_stages.talker.engine import TalkerEngine
from syrinx_stages.talker.holding import Holding
from syrinx_stages.talker.prompt import Prepared
from syrinx_stages.talker.speech import BEGINNING, Fault, Take
from syrinx_stages.talker.streams import Opening, Stream, Written, new_row, written_of
from syrinx_stages.talker.text import RowText
from syrinx_stages.talker.turn import Completed, Done, Extension, Results, Stepped, Turn, take_turn

log = logging.getLogger(__name__)


CODEC_DELAY_SECONDS = 0.15
"""Time from a request's first codes until the codecs' capacity reports count it."""

SCHEDULE_SECONDS = 0.02
"""Admission uses the schedule of the last step if it is not older, and no row has come or gone."""

Loaded = tuple[TalkerEngine, Reading]
"""An engine, and how its checkpoint reads texts."""


class TalkerService(Worker[Stream, TalkerSettings, TalkerEngine]):
    """One talker replica. See `Worker` for claims, ownership and shutdown."""

    stage = "talker"
    group = Stage.TALKER
    input_kinds = (StreamKind.PLAYBACK, StreamKind.TEXT)
    output_kind = StreamKind.CODES
    first_phase = "prepare"

    def __init__(self, connector: StageConnector, load: Callable[[], Loaded], *arguments: Any) -> None:
        """See `Worker`."""

        def engine() -> TalkerEngine:
            loaded, self._reading = load()
            return loaded

        super().__init__(connector, engine, *arguments)

    def set_up(self) -> None:
        self._prepare_thread = SerialThread("talker-prepare")
        self._holding = Holding(self.rows)
        self._engine_full = False
        """The engine rejected a request, and no row has been evicted since."""
        self._empty_steps = 0
        self._step_seconds = math.inf
        self._prefill_seconds = self.metrics[m.PREFILL_SECONDS].labels(self.stage)
        self._unpublished: Completed | None = None
        """The last step, whose results are to be published."""
        self._scheduled: tuple[Schedule, int, float] = schedule((), 0.0, 0, 0.0), 0, -math.inf
        """The last schedule, the number of its rows, and when it was made."""
        for fault in Fault:
            self.metrics[m.SEGMENT_FAULTS].labels(fault)

    async def close(self) -> None:
        await super().close()
        await self._prepare_thread.close()

    async def admit(self, claim: Claim) -> None:
        """Prepares a request (tokens, reference audio) outside the engine's thread and queues it for prefill."""
        request = claim.request
        begin = request.resumes or BEGINNING
        written = Written(begin, total=begin.frames, checksum=begin.checksum)
        delivered: Position | None = None
        if not claim.redelivered:
            self.traces.record_wait(claim)
        else:
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
            written = written_of(entries, written)
            self.journal.restore(claim, entries)
            delivered = await self.connector.last_position(request.id, StreamKind.PLAYBACK)
        reference = await self.connector.reference(request.id) if request.has_reference else None
        text = await self._read_text(request, written) if request.streams_text else None
        row = new_row(claim, self._reading, text, reference, written, delivered or STREAM_START)
        prepared = None
        if not row.is_opening:
            prepared = await self._prepare_thread.run(self._prepare, row, written.frames)
        if not self.owns(claim):
            return
        if prepared is None and not row.is_opening:
            self._end(row, row.speech.end())
            return
        row.prompt = prepared
        self.rows[row.id] = row
        self.reader.subscribe(row.id, StreamKind.PLAYBACK, delivered or STREAM_START)
        if text is not None:
            self.reader.subscribe(row.id, StreamKind.TEXT, text.position)
        if prepared is None:
            self._proceed(row)
        elif prepared.reference is not None and not written.has_reference:
            self.publisher.put([self.output(claim, REFERENCE_POSITION, prepared.reference)])
        self.traces.begin(request.id, "prefill")
        self.wake.set()

    async def _read_text(self, request: SpeechRequest, written: Written) -> RowText:
        """Returns the text so far. Raises ConnectorError if that of the existing frames is missing.

        The gateway writes it again after Redis has lost it; then an owner can continue.
        """
        text = RowText(request, self._reading, self.engine.open_text(request), self.engine.text_lookahead)
        events = await self.connector.history(request.id, StreamKind.TEXT)
        await self._prepare_thread.run(text.read, events)
        if not text.covers(written.position.number, len(written.frames)):
            raise ConnectorError(f"the text of {written.total} frames is missing")
        return text

    def _prepare(self, row: Stream, frames: Sequence[bytes] = ()) -> Prepared | None:
        """Opens a row's next take and makes its prompt, given its frames. Returns None if the text is over."""
        start = time.monotonic()
        if (take := row.speech.begin()) is None:
            return None
        take.replay(frames)
        streamed = (row.text.tokens,) if row.text is not None and row.speech.is_open else ()
        prepared = self.engine.prepare(take.request, b"".join(frames), row.reference, *streamed)
        row.segment = None if frames else row.speech.segment
        if row.text is not None and row.speech.is_open:
            row.text.max_frames = prepared.max_frames
            row.complete_first(self._reading)
        if prepared.voice is not None and take.request.encodes_reference:
            row.reference = encode(prepared.voice)
            row.speech.use_prepared_voice()
        row.expected = 0 if take.streams or take.bounds is None else take.bounds.expected
        self.metrics[m.PREPARE_SECONDS].labels(take.request.task_type).observe(time.monotonic() - start)
        return prepared

    def _proceed(self, row: Stream) -> None:
        """Closes a take that has ended, and goes on with the next one. Waits while the text for either is missing."""
        if row.ended is not None and not row.lacks_text:
            self._close_take(row, row.ended)
        if row.lacks_text:
            row.text_frames = row.frames
        else:
            self._tasks.spawn(self._go_on(row))

    async def _go_on(self, row: Stream) -> None:
        """Prepares the next take of a row and queues it for prefill, or ends the request."""
        try:
            row.prompt = await self._prepare_thread.run(self._prepare, row)
        except Exception as error:
            self.fail(row.claim, error)
            return
        if self.rows.get(row.id) is not row:
            return
        if row.prompt is None:
            self._end(row, row.speech.end())
            return
        self.wake.set()

    def release(self, row: Stream) -> None:
        """Frees the state of the take that the engine has, before the next step."""
        self._engine_full = False
        if take := row.resident:
            row.resident = ""
            self.engine_thread.queue(lambda: self.engine.release(take))

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
            self.claim_again(row.claim)
            return
        if isinstance(event.entry, End):
            self.fail(row.claim, RequestError(event.entry.message))
        row.last_text_at = monotonic()
        row.complete_first(self._reading)
        if row.is_opening and row.prompt is None and row.waits_for_text and not row.lacks_text:
            row.add_text(math.inf, row.last_text_at)
            self._proceed(row)
        self.wake.set()

    def _extensions(self, now: float) -> list[Extension]:
        """Returns the text that has arrived for resident rows. Their next frames are due with it."""
        found = []
        for row in self.rows.values():
            if row.text is None or not row.resident or row.speech.number or (new := row.text.take()) is None:
                continue
            row.add_text(row.text.given_frames, now)
            found.append(Extension(row, *new))
        return found

    def admissible(self) -> int:
        """Returns how many further requests to claim now. Streams in progress come first: none while one is late."""
        if self._engine_full:
            return 0
        rows = map(self.rows.get, self.ownership.claims)
        started = (row is not None and not row.is_new and (row.frames or row.waits_for_text) for row in rows)
        claims = zip(self.ownership.claims.values(), started, strict=True)
        unstarted = [claim for claim, has_frames in claims if not has_frames]
        ready = sum(not claim.request.encodes_reference for claim in unstarted)
        room = unstarted_room(len(unstarted), ready, self.engine.prefill_rows)
        return min(room, super().admissible()) if room > 0 else 0

    def spare_requests(self) -> float:
        """Returns how many further requests could be generated and decoded in time; none while a stream is late."""
        (seen, count, made_at), now = self._scheduled, monotonic()
        if count != len(self.rows) or now - made_at > SCHEDULE_SECONDS:
            seen = self._schedule(now, 0)
        late_before = now + late_margin(self._step_seconds)
        is_late = any(self.rows[key].plays_until() < late_before for key in seen.late if key in self.rows)
        spare = spare_requests(self.speed, seen.demands, len(self.ownership.claims), is_late)
        return min(spare, self._codecs_room())

    def _schedule(self, now: float, max_num_seqs: int) -> Schedule:
        lead_limit, margin = self.live.current.lead_limit_seconds, late_margin(self._step_seconds)
        rows = (row for row in self.rows.values() if not row.is_new)
        found = schedule(rows, now, max_num_seqs, lead_limit, self.engine.ahead_frames, margin)
        self._scheduled = found, len(self.rows), now
        return found

    def _codecs_room(self) -> float:
        """Returns how many further requests the codecs could decode, without those whose codes they had not seen."""
        since, rows = monotonic() - CODEC_DELAY_SECONDS, self.rows
        unseen = 0
        for request_id, claim in self.ownership.claims.items():
            row = rows.get(request_id)
            first_frame_at = None if row is None or row.is_new else row.first_frame_at
            is_seen = first_frame_at is not None and first_frame_at < since
            unseen += not (is_seen or claim.redelivered)
        return self.ownership.codecs_free - unseen

    async def run_iteration(self) -> float | None:
        """Prefills waiting requests, launches a step of the due rows, and reads the oldest step in flight.

        Returns when to run again (monotonic seconds), 0 for immediately, or None to wait for an event.
        """
        now = monotonic()
        if self._holding.check_at <= now:
            self._publish_due((), now)
        admitted = self._next_prefills()
        extensions = self._extensions(now)
        found = self._schedule(now, self.live.max_num_seqs)
        for request_id in found.abandoned:
            self._end_abandoned(self.rows[request_id])
        ids = found.ids
        if not ids:
            self.publisher.put([self._entry(row) for row in self._holding.flush()])
        self.rows_running.set(len(ids))
        if not (admitted or ids or self.steps or extensions):
            wake_at = min(found.wake_at, self._holding.check_at)
            return None if wake_at == math.inf else wake_at
        depth = self.engine.depth if len(ids) > self.engine.prompt_rows else 1
        rows = [self.rows[request_id] for request_id in ids] if len(self.steps) < depth else []
        stepped = [(row, row.take) for row in rows]
        for row in rows:
            row.in_flight += 1
        job = self.engine_thread.start(take_turn, self.engine, self.steps, Turn(admitted, extensions, stepped, depth))
        if self._unpublished:
            self._publish(self._unpublished)
        done = await job
        self._unpublished = done.step
        self._count_prefill(admitted, done)
        # The frames of many rows are published while the engine's thread launches the next step.
        if self._unpublished and not (depth > 1 and self.steps):
            self._publish(self._unpublished)
            self._unpublished = None
        for row, error in done.failed:
            self.fail(row.claim, error)
        for opening in done.rejected:
            self._requeue(opening)
        for row in done.without_text:
            log.warning("the text of request %s has no place in the engine: a later owner continues it", row.id)
            self.evict(row.id)
        self.ownership.recheck_admission()
        return 0.0

    def _end_abandoned(self, row: Stream) -> None:
        missing = f"no text has arrived for {TEXT_TIMEOUT:.0f} s" if row.waits_for_text else None
        message = missing or f"the client has not read for {LISTENER_TIMEOUT:.0f} s"
        self._end(row, End(EndReason.CANCELLED, message))

    def _count_prefill(self, admitted: Sequence[Opening], done: Done) -> None:
        if not admitted:
            return
        rejected = {row.id for row, _ in done.rejected}
        for row, _ in admitted:
            if row.id not in rejected:
                self.traces.begin(row.id, "first_frame", after="prefill")
        self._prefill_seconds.observe(done.prefilled - done.started)
        self.exclude(done.started, done.prefilled)

    def _next_prefills(self) -> list[Opening]:
        """Gives the engine the oldest takes that wait for prefill: so few that they do not stall other streams."""
        if self._engine_full:
            return []
        waiting = [Opening(row, row.prompt) for row in self.rows.values() if row.prompt is not None]
        waiting.sort(key=lambda opening: opening.row.claim.request.accepted_at)
        waiting = waiting[: self.engine.prefill_rows]
        chosen = waiting[: burst_size([prompt.positions for _, prompt in waiting])]
        for row, _ in chosen:
            row.prompt, row.resident = None, row.take.id
            row.is_new = row.is_opening = False
        return chosen

    def _requeue(self, opening: Opening) -> None:
        """Queues a rejected take again until a row is evicted, or fails it if no other request holds memory."""
        row = opening.row
        if self.rows.get(row.id) is not row:
            return
        row.resident, row.in_flight = "", 0
        if not (self.engine_thread.has_queued or any(each.resident for each in self.rows.values())):
            self.fail(row.claim, RequestError("the request is too long for the talker's memory", "input"))
            return
        row.prompt, row.is_opening = opening.prompt, True
        # Queued calls release evicted rows. Then an immediate retry may succeed.
        self._engine_full = not self.engine_thread.has_queued

    def _publish(self, completed: Completed) -> None:
        """Publishes a step's results. Ignores takes that were closed, and rows that were evicted, in the meantime."""
        now = monotonic()
        results = completed.result
        present = [(row, take) for row, take in completed.context if self._is_open(row, take)]
        self._evict_if_starved(present, results)
        releasing: list[Stream] = []
        ended: list[tuple[Stream, End]] = []
        frames = 0
        for row, take in present:
            if not self._is_open(row, take):
                continue
            row.in_flight -= 1
            result = results.get(take.id)
            if isinstance(result, bytes):
                frames += 1
                row.first_frame_at = now if row.first_frame_at is None else row.first_frame_at
                self._add(row, take.add(result))
                if row.held:
                    releasing.append(row)
                if take.fault is not None:
                    result = End(EndReason.STOP)
            if isinstance(result, End):
                ended.append((row, result))
        self._publish_due(releasing, now)
        for row, end in ended:
            if end.reason is EndReason.ERROR:
                self._end(row, end)
            else:
                row.ended, row.is_opening, row.in_flight = end.reason, True, 0
                self.release(row)
                self._proceed(row)
        # An exponential moving average over about ten steps.
        mean, seconds = self._step_seconds, completed.seconds
        self._step_seconds = seconds if mean == math.inf else mean + (seconds - mean) / 10
        self.count_step(len(completed.context), frames, completed.seconds)

    def _is_open(self, row: Stream, take: Take) -> bool:
        return self.rows.get(row.id) is row and row.resident == take.id and row.speech.take is take

    def _add(self, row: Stream, frames: Sequence[bytes]) -> None:
        """Adds frames to those that may be published."""
        row.held += frames
        row.produced += len(frames)
        row.withheld = len(row.take.frames)

    def _close_take(self, row: Stream, reason: EndReason) -> None:
        """Publishes what the end of a take releases."""
        take, row.ended = row.take, None
        closed = row.speech.close(reason)
        if take.fault is not None:
            self._report_fault(row, take, closed is None)
        if closed is not None:
            if closed.whole is not None:
                row.segment = closed.whole
            self._add(row, closed.frames)
            if row.held:
                self.publisher.put([self._entry(row)])
        row.withheld = row.expected = 0

    def _report_fault(self, row: Stream, take: Take, is_retried: bool) -> None:
        assert take.fault is not None
        self.metrics[m.SEGMENT_FAULTS].labels(take.fault).inc()
        then = "it is retried" if is_retried else "the best attempt is sent"
        message = "request %s: segment %d failed its check (%s) after %d frames: %s"
        number = row.speech.segment.number
        log.info(message, row.id, number, take.fault, take.length, then, extra=self.log_fields(row.id))

    def _publish_due(self, stepped: Sequence[Stream], now: float) -> None:
        """Publishes the frames that are due, of rows that have just got one or have held some for a while."""
        self.publisher.put([self._entry(row) for row in self._holding.take(stepped, now)])

    def _entry(self, row: Stream) -> Append:
        """Returns an entry of the frames that a row holds."""
        talker = ""
        if row.names_talker:
            row.names_talker = False
            self.traces.begin(row.id, "generate")
            talker = self.replica
        codes, segment = b"".join(row.held), row.segment
        if segment is not None:
            segment = structs.replace(segment, checksum=row.checksum)
        row.held.clear()
        row.segment = None
        row.checksum = checksum(codes, row.checksum)
        waits_for_text = row.produced >= row.text_frames
        entry = Codes(codes, talker, segment, row.checksum, waits_for_text)
        return self.output(row.claim, Position(row.produced), entry)

    def _end(self, row: Stream, end: End) -> None:
        """Ends a request after the frames that its row holds."""
        if row.held:
            self.publisher.put([self._entry(row)])
        self.end(row.claim, row.produced, structs.replace(end, checksum=row.checksum))

    def _evict_if_starved(self, present: Sequence[Stepped], results: Results) -> None:
        """Evicts the row with the latest deadline if no row had memory for a frame. A later owner continues it."""
        if any(take.id in results for _, take in present):
            self._empty_steps = 0
        elif present:
            self._empty_steps += 1
            if self._empty_steps > 0:
                log.warning("no memory for the next frame of %d requests: evicting one of them", len(present))
                self.evict(max((row for row, _ in present), key=Row.underrun_at).id)
                # Steps that are already in flight do not benefit from it.
                self._empty_steps = -self.engine.depth
