"""The codec service: reads code frames from the connector, decodes them on the engine and publishes PCM."""

import asyncio
import functools
import hashlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from syrinx_stages.codec.engine import CodecEngine, split_frames
from syrinx_stages.codec.shapes import CapturedShapes
from syrinx_stages.codec.streams import Stream, Upcoming
from syrinx_stages.codec.turn import Batch, Completed, References, RowCodes, take_turn
from syrinx_stages.connector.base import Claim, StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.frames import checksum, pack_checksums
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_START, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, EndReason, Reference
from syrinx_stages.contract.settings import CodecSettings
from syrinx_stages.contract.silence import LeadingSilenceTrimmer
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.requests.worker import Worker
from syrinx_stages.scheduling.codec import Call, schedule
from syrinx_stages.scheduling.codec_rows import Rows

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""How often the codes of a claim are decoded again from the first one."""
_UPSTREAM = "upstream"
"""Metric label of errors caused by the talker."""


class CodecService(Worker[Stream, CodecSettings, CodecEngine]):
    """One codec replica. See `Worker` for claims, ownership and shutdown."""

    stage = "codec"
    group = Stage.CODEC
    input_kinds = (StreamKind.CODES,)
    output_kind = StreamKind.AUDIO
    first_phase = "wait"
    rows: Rows[Stream]

    def set_up(self) -> None:
        self.rows = Rows()
        self._shapes = CapturedShapes()
        self._between: list[Stream] = []
        """Rows of which all codes of a segment are taken, and the next one has arrived."""
        self._references = References()

    async def warm_up(self) -> None:
        """Warms up the engine and captures the configured shapes."""
        await super().warm_up()
        self._export_capture_costs()
        while self._shapes.change_due(self.live.current.capture_pairs, idle=True):
            await self._change_shapes()

    async def admit(self, claim: Claim) -> None:
        """Adds a row and subscribes to its codes from the first frame on."""
        request = claim.request
        last = claim.fence.start(self.output_kind)
        if last.sequence == END_SEQUENCE:
            await self.ownership.finish(request.id)
            self.evict(request.id)
            return
        self._open(claim, last.frames)

    def _open(self, claim: Claim, published: int, restarts: int = 0) -> None:
        """Adds a row that decodes a request's codes and publishes the audio after `published`."""
        request, now = claim.request, monotonic()
        self.rows[request.id] = Stream(
            id=request.id,
            claim=claim,
            accepted_at=now - max(0.0, time.time() - request.accepted_at),
            live=request.live,
            decoded=published,
            # Playback may have consumed everything published so far.
            first_audio_at=now - published * FAMILY.frame_seconds if published else None,
            codes=[],
            checksums=[],
            upcoming=deque(),
            published=published,
            streams_text=request.streams_text,
            restarts=restarts,
        )
        self.engine_thread.queue(lambda: self.engine.open(request.id))
        self.reader.subscribe(request.id, StreamKind.CODES, STREAM_START)

    def _restart(self, row: Stream) -> None:
        """Decodes a request's codes again: Redis has lost those of this row, and a talker has generated other ones.

        If audio of the former ones is published, its checksums tell the gateway that what follows does not continue it.
        """
        if row.restarts == MAX_RESTARTS:
            end = End(EndReason.ERROR, "the talker's checksums do not match its codes")
            self.end(row.claim, row.published, end, _UPSTREAM)
            return
        log.warning("request %s: its codes were generated again differently", row.id, extra=self.log_fields(row.id))
        self.drop_row(row.id)
        # The next events may still be of the former subscription.
        asyncio.get_running_loop().call_soon(self._reopen, row.claim, row.restarts + 1)

    def _reopen(self, claim: Claim, restarts: int) -> None:
        if self.owns(claim):
            self._open(claim, self.journal.last_position(claim).frames, restarts)

    def release(self, row: Stream) -> None:
        """Frees the decoder's state before the next step."""
        self.engine_thread.queue(lambda: self.engine.release(row.id))

    def spare_requests(self) -> float:
        """Returns how many further requests could be decoded in time: none while a live stream is late."""
        now = monotonic()
        spare = self.speed.spare_requests(self.rows.demands(now))
        return min(spare, 0.0) if self.speed.real_time and self.rows.is_late(now) else spare

    def rows_without_input(self) -> int:
        """Returns how many rows have no codes yet."""
        return sum(not (row.pending or row.in_flight or row.decoded) for row in self.rows.values())

    def settings_changed(self) -> None:
        """Exports the new settings and reschedules."""
        super().settings_changed()
        settings = self.live.current
        ramp = self.metrics[m.CHUNK_RAMP]
        # The previous ramp may have been longer.
        ramp.clear()
        for position, frames in enumerate(settings.chunk_ramp):
            ramp.labels(str(position)).set(frames)
        self._export_captured_shapes()

    async def _change_shapes(self) -> None:
        await self.engine_thread.run(self._shapes.change, self.engine, self.live.current.capture_pairs)
        self.begin_period()
        self._export_captured_shapes()
        self._export_capture_costs()

    def _export_captured_shapes(self) -> None:
        self.metrics[m.CAPTURED_SHAPES].set(len(self._shapes.usable(self.live.current.capture_pairs)))

    def _export_capture_costs(self) -> None:
        for (rows, frames), cost in self.engine.capture_costs.items():
            self.metrics[m.CAPTURE_SECONDS].labels(str(rows), str(frames)).set(cost.seconds)
            self.metrics[m.CAPTURE_BYTES].labels(str(rows), str(frames)).set(cost.bytes)

    def on_entry(self, event: StreamEntry) -> None:
        """Queues the frames of an entry. Reference and already published frames only rebuild decoder state."""
        row = self.rows.get(event.request_id)
        if row is None:
            return
        try:
            self._read(row, event)
        except ValueError as error:
            self._refuse(row, str(error))
        if self.rows.get(row.id) is row:
            self.rows.changed(row)
        self.wake.set()

    def _read(self, row: Stream, event: StreamEntry) -> None:
        """Adds an entry to a row. Raises ValueError for invalid codes."""
        match event.entry:
            case Reference(codes):
                # A voice without codes is for the gateway.
                if codes:
                    split_frames(codes, self.engine.codebook_size)
                row.reference_codes = codes
            case Codes(talker=talker, checksum=expected):
                row.talker = talker or row.talker
                row.waits_for_text = event.entry.waits_for_text
                row.provenance_sent = row.provenance_sent and not talker
                if row.streams_text and not (row.pending or row.in_flight):
                    row.resume(monotonic())
                self._receive(row, event.position.frames, event.entry)
                if row.checksum != expected:
                    self._restart(row)
                else:
                    self._begin_next(row)
            case End() as end:
                if end.is_complete and row.checksum != end.checksum:
                    self._restart(row)
                    return
                row.input_ended = row.segment_ended = True
                row.end = end

    def _receive(self, row: Stream, position: int, entry: Codes) -> None:
        """Adds the frames of an entry that a row has not got. Raises ValueError if they are invalid."""
        segment = entry.segment
        if segment is not None and (row.newest is None or row.newest.number < segment.number):
            if row.newest is None:
                row.received, row.checksum, row.taken_checksum = segment.frames, segment.checksum, segment.checksum
            row.newest = segment
            row.segment_ended = True
            row.upcoming.append(Upcoming(segment, [], []))
        if row.newest is None:
            raise ValueError("an entry belongs to no segment")
        frames = split_frames(entry.codes, self.engine.codebook_size)
        # After a fail-over, the first entry of another talker may begin with frames that were read before.
        if (new := position - row.received) > len(frames):
            raise ValueError(f"{new - len(frames)} frames are missing before an entry")
        frames = frames[len(frames) - max(new, 0) :]
        _, *checksums = accumulate(frames, lambda before, frame: checksum(frame, before), initial=row.checksum)
        row.received = max(row.received, position)
        row.checksum = checksums[-1] if checksums else row.checksum
        row.codes_at = monotonic()
        row.first_codes_at = min(row.first_codes_at, row.codes_at)
        if row.upcoming:
            row.upcoming[-1].codes.extend(frames)
            row.upcoming[-1].checksums.extend(checksums)
            row.following += len(frames)
        else:
            self._add(row, frames, checksums)

    def _add(self, row: Stream, frames: Sequence[bytes], checksums: Sequence[int]) -> None:
        """Adds frames of the segment that is being decoded. Those with published audio only rebuild the state."""
        row.codes += frames
        row.checksums += checksums
        row.pending = len(row.codes)
        replayed = min(row.skip, len(frames))
        row.skip -= replayed
        row.context += replayed

    def _refuse(self, row: Stream, message: str) -> None:
        log.error("request %s: invalid codes entry: %s", row.id, message, extra=self.log_fields(row.id))
        end = End(EndReason.ERROR, f"the talker sent codes the codec cannot decode: {message}")
        self.end(row.claim, row.published, end, _UPSTREAM)

    def _begin_next(self, row: Stream) -> None:
        """Begins a row's next segment once all codes of the one before are taken."""
        while row.upcoming and not row.codes:
            upcoming = row.upcoming.popleft()
            row.following -= len(upcoming.codes)
            segment = upcoming.segment
            if row.segment is not None:
                self.engine_thread.queue(functools.partial(self.engine.open, row.id))
            if row.segment is None and not row.published:
                # The ones before were published in a stream that Redis has lost.
                row.decoded = row.published = segment.frames
                row.withheld_seconds += segment.frames * FAMILY.frame_seconds
            row.segment, row.segment_ended = segment, segment.is_whole or bool(row.upcoming) or row.input_ended
            row.context, row.skip = 0, max(row.decoded - segment.frames, 0)
            if segment.is_whole and row.skip >= len(upcoming.codes):
                row.taken_checksum = upcoming.checksums[-1]
                continue
            row.is_named = row.skip > 0
            row.trimmer = None if row.skip else LeadingSilenceTrimmer()
            if row.reference_codes:
                self._begin_reference(row)
            self._add(row, upcoming.codes, upcoming.checksums)

    def _begin_reference(self, row: Stream) -> None:
        """Sets a row's state to that after its reference, or queues the codes of that as context."""
        prefill, digest = self.engine.prefill, hashlib.blake2b(row.reference_codes).digest()
        state = None if prefill is None else self._references.get(digest)
        if prefill is None or state is None:
            row.reference = digest if not row.skip and prefill is not None else b""
            row.codes = split_frames(row.reference_codes, self.engine.codebook_size)
            row.checksums = [row.taken_checksum] * len(row.codes)
            row.context = len(row.codes)
            return

        def restore() -> None:
            self._references.add(digest, state)
            prefill.restore(row.id, state)

        self.engine_thread.queue(restore)

    async def run_iteration(self) -> float | None:
        """Ends fully decoded streams, launches the most urgent call and publishes the oldest completed one."""
        for row in self._between:
            if self.rows.get(row.id) is row:
                self._begin_next(row)
                self.rows.changed(row)
        self._between.clear()
        for row in [row for row in self.rows.without_codes_to_come() if not row.in_flight]:
            assert row.end is not None
            self.end(row.claim, row.published, row.end, _UPSTREAM if row.end.reason is EndReason.ERROR else "")
        settings = self.live.current
        usable = self._shapes.usable(settings.capture_pairs)
        overhead, cost = self.engine.overhead_frames, self.speed.seconds_per_frame
        # Without padding, two rows rarely share a call. Under full load, most calls decode the longest chunk of one.
        self.speed.full_step_frames = None if overhead else settings.chunk_ramp[-1]
        context = self.engine.prefill.context_frames if self.engine.prefill else None
        plan = schedule(self.rows, monotonic(), settings, usable, overhead, cost, context)
        call = plan.call
        if self._shapes.change_due(settings.capture_pairs, idle=call is None):
            # Calls in flight complete first.
            call = None
            if not self.steps:
                await self._change_shapes()
                return 0.0
        elif call and self.steps and sum(call.frames) < self.engine.overhead_frames:
            # Too small to be queued behind a running call: frames that arrive until then can join it.
            call = None
        if call or not self.steps:
            self.rows_running.set(len(call.ids) if call else 0)
        if call is None and not self.steps:
            return plan.wake_at
        batch = self._take_codes(call) if call else None
        completed = await self.engine_thread.run(take_turn, self.engine, self.steps, self._references, batch)
        if completed:
            self._publish(completed)
        return 0.0

    def _take_codes(self, call: Call) -> Batch:
        """Moves a call's frames from their rows to a batch; from now on they count as decoded."""
        items = []
        for request_id, frames in zip(call.ids, call.frames, strict=True):
            row = self.rows[request_id]
            codes, checksums = row.codes[:frames], [row.taken_checksum, *row.checksums[:frames]]
            del row.codes[:frames], row.checksums[:frames]
            row.taken_checksum = checksums[-1]
            row.pending -= frames
            row.in_flight += 1
            if row.context:
                row.context -= frames
                reference = b"" if row.context else row.reference
                items.append(RowCodes(row, codes, checksums, reference=reference))
            else:
                row.decoded += frames
                segment, row.is_named = None if row.is_named else row.segment, True
                items.append(RowCodes(row, codes, checksums, Position(row.decoded), segment, row.trimmer))
            if row.upcoming and not row.codes:
                self._between.append(row)
            self.rows.changed(row)
        return Batch(call, items)

    def _publish(self, completed: Completed) -> None:
        """Publishes the audio of a call, except for rows that were evicted or claimed again since its launch."""
        now = monotonic()
        appends = []
        for item, pcm in zip(completed.context.rows, completed.result, strict=True):
            row = item.row
            row.in_flight -= 1
            if self.rows.get(row.id) is not row:
                continue
            if pcm is None:
                self.end(row.claim, row.published, End(EndReason.ERROR, "the codec failed to decode this request"))
                continue
            if item.position is None:
                continue
            row.published = item.position.frames
            row.first_audio_at = now if row.first_audio_at is None else row.first_audio_at
            if item.trimmer:
                before = item.trimmer.withheld
                item.trimmer.feed(pcm)
                row.withheld_seconds += (item.trimmer.withheld - before) / FAMILY.sample_rate
            self.rows.changed(row)
            talker = codec = ""
            if not row.provenance_sent:
                row.provenance_sent = True
                talker, codec = row.talker, self.replica
                self.traces.begin(row.id, "first_call", completed.seconds, after="wait")
                self.traces.begin(row.id, "decode", after="first_call")
            audio = Audio(pcm, talker, codec, pack_checksums(item.checksums), item.segment)
            appends.append(self.output(row.claim, item.position, audio))
        self.publisher.put(appends)
        self.ownership.recheck_admission()
        if completed.context.call.prefill:
            self.begin_period()
        else:
            self._count_call(completed)

    def _count_call(self, completed: Completed) -> None:
        call, (rows, frames) = completed.context.call, completed.context.call.min_shape
        self.count_step(rows, sum(call.frames), completed.seconds)
        shape = (str(rows), str(frames), call.result)
        self.metrics[m.CODEC_CALLS].labels(*shape).inc()
        self.metrics[m.CODEC_CALL_SECONDS].labels(*shape).inc(completed.seconds)
