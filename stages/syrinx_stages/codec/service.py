"""The codec service: code frames in, PCM out; moves messages between the connector and the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from syrinx_stages.codec.engine import CodecEngine
from syrinx_stages.codec.scheduler import Call, Row, schedule
from syrinx_stages.codec.shapes import Shapes
from syrinx_stages.connector.base import Append, Claim, StageConnector, StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, STREAM_START, Group, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, EndReason, Reference
from syrinx_stages.contract.settings import CodecSettings, StageConfig
from syrinx_stages.contract.silence import LeadingSilenceTrimmer
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.runtime.device import open_device
from syrinx_stages.runtime.in_flight import CompletedStep, InFlightSteps
from syrinx_stages.runtime.metrics import Metrics, rows_label
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.worker import Worker

log = logging.getLogger(__name__)

_UPSTREAM = "upstream"
"""What errors that are a talker's are counted under."""


class Stream(Row, kw_only=True):
    """A row with what the schedule need not know."""

    skip: int
    """Frames that an earlier owner has already given out: decoded again for their state."""
    codes: list[bytes]
    """Pending frames, one item each."""
    given: int
    """Frames of audio given out: `emitted` without those in calls that are not read yet."""
    in_flight: int = 0
    """Calls with this row that are not read yet."""
    leading: LeadingSilenceTrimmer | None = None
    """What the gateway makes of its audio; None where an earlier owner began it."""
    talker: str = ""
    signed: bool = False
    """Some entry of ours has said who made it."""
    end: End | None = None


class _Part(Struct, frozen=True):
    """A row's part in a call."""

    row: Stream
    codes: list[bytes]
    at: Position | None = None
    """Where its audio goes; None if the frames are decoded for their state alone."""


class _Taken(Struct, frozen=True):
    """A call and the frames that were taken from its rows."""

    call: Call
    parts: list[_Part]


class CodecService(Worker[Stream, CodecSettings, CodecEngine[Any]]):
    """One codec replica."""

    stage = "codec"
    group = Group.CODECS
    input_kind = StreamKind.CODES
    output_kind = StreamKind.AUDIO

    def __init__(
        self,
        connector: StageConnector,
        load: Callable[[], CodecEngine[Any]],
        replica: str,
        max_resident: int,
        live: LiveSettings[CodecSettings],
        metrics: Metrics,
    ) -> None:
        super().__init__(connector, load, replica, max_resident, live, metrics)
        self._shapes = Shapes()
        self._calls: InFlightSteps[_Taken, Sequence[bytes | None]]
        self._running = metrics[m.ROWS_RUNNING].labels(self.stage)
        self._frames = metrics[m.FRAMES].labels(self.stage)

    async def warm_up(self) -> None:
        """Warms the engine up and captures the shapes that calls are padded to."""
        await super().warm_up()
        self._calls = InFlightSteps(self.engine.depth)
        self._show_costs()
        while self._shapes.due(self.live.current.capture_pairs, idle=True):
            await self._change_shapes()

    async def admit(self, claim: Claim) -> None:
        """Opens a row; its frames follow from the codes stream, from the first one on."""
        request = claim.request
        last = await self.connector.last_position(request.id, self.output_kind) if claim.redelivered else STREAM_CREATED
        if last is None or last.sequence == END_SEQUENCE:
            await self.ownership.finish(request.id)
            self.evict(request.id)
            return
        if not self.owns(claim):
            return
        now = time.monotonic()
        self.rows[request.id] = Stream(
            id=request.id,
            accepted=now - max(0.0, time.time() - request.accepted_at),
            live=request.live,
            emitted=last.frames,
            # All that was given out may have been played.
            first_audio=now - last.frames * FAMILY.frame_seconds if last.frames else None,
            skip=last.frames,
            codes=[],
            given=last.frames,
            leading=None if last.frames else LeadingSilenceTrimmer(),
        )
        self.queue_engine_call(lambda: self.engine.open(request.id))
        self.reader.subscribe(request.id, self.input_kind, STREAM_START)

    def settings_changed(self) -> None:
        """Looks at the rows again under the new settings, and shows these."""
        super().settings_changed()
        settings = self.live.current
        ramp = self.metrics[m.CHUNK_RAMP]
        # The last ramp may have had more positions.
        ramp.clear()
        for position, frames in enumerate(settings.chunk_ramp):
            ramp.labels(str(position)).set(frames)
        self._show_shapes()

    async def _change_shapes(self) -> None:
        await self.run_engine(self._shapes.change, self.engine, self.live.current.capture_pairs)
        self._show_shapes()
        self._show_costs()

    def _show_shapes(self) -> None:
        self.metrics[m.CAPTURED_SHAPES].set(len(self._shapes.ready(self.live.current.capture_pairs)))

    def _show_costs(self) -> None:
        for (rows, frames), cost in self.engine.costs.items():
            self.metrics[m.CAPTURE_SECONDS].labels(str(rows), str(frames)).set(cost.seconds)
            self.metrics[m.CAPTURE_BYTES].labels(str(rows), str(frames)).set(cost.bytes)

    def on_entry(self, event: StreamEntry) -> None:
        """Queues frames; a reference and what was already given out are decoded for their state alone."""
        row = self.rows.get(event.request_id)
        if row is None:
            return
        match event.entry:
            case Reference(codes):
                row.silent += self._queue(row, codes)
            case Codes(codes, talker):
                row.talker = talker or row.talker
                row.signed = row.signed and not talker
                again = min(row.skip, self._queue(row, codes))
                row.skip -= again
                row.silent += again
            case End() as end:
                row.ended, row.end = True, end
            case _:
                return
        self.wake.set()

    def _queue(self, row: Stream, codes: bytes) -> int:
        """Takes frames in; returns how many. Codes the decoder does not know end the stream with an error."""
        try:
            frames = self.engine.split(codes)
        except ValueError as error:
            log.error("request %s: bad codes entry: %s", row.id, error)
            end = End(EndReason.ERROR, f"the talker sent codes the codec cannot decode: {error}")
            self.end(row.id, row.given, end, _UPSTREAM)
            return 0
        row.codes.extend(frames)
        row.pending = len(row.codes)
        return len(frames)

    async def run_iteration(self) -> float | None:
        """Ends streams that are decoded to their end, begins the most urgent decoder call, and reads the oldest."""
        for row in [row for row in self.rows.values() if row.ended and not row.pending and not row.in_flight]:
            assert row.end is not None
            self.end(row.id, row.given, row.end, _UPSTREAM if row.end.reason is EndReason.ERROR else "")
        settings = self.live.current
        ready = self._shapes.ready(settings.capture_pairs)
        plan = schedule(self.rows.values(), time.monotonic(), settings, ready, self.engine.overhead_frames)
        call = plan.call
        if self._shapes.due(settings.capture_pairs, idle=call is None):
            # What is in flight lands first.
            call = None
            if not self._calls:
                await self._change_shapes()
                return 0.0
        elif call and self._calls and sum(call.frames) < self.engine.overhead_frames:
            # Too small to be launched ahead: what comes until the last call lands can share it.
            call = None
        if call or not self._calls:
            self._running.set(len(call.ids) if call else 0)
        if call is None and not self._calls:
            return plan.wake
        completed = await self.run_engine(self._work, self._taken(call) if call else None)
        if completed:
            self._publish(completed)
        return 0.0

    def _taken(self, call: Call) -> _Taken:
        """Takes a call's frames from their rows: from now on they count as given out."""
        parts = []
        for request_id, frames in zip(call.ids, call.frames, strict=True):
            row = self.rows[request_id]
            codes = row.codes[:frames]
            del row.codes[:frames]
            row.pending -= frames
            row.in_flight += 1
            if row.silent:
                row.silent -= frames
                parts.append(_Part(row, codes))
            else:
                row.emitted += frames
                parts.append(_Part(row, codes, Position(row.emitted)))
        return _Taken(call, parts)

    def _publish(self, completed: CompletedStep[_Taken, Sequence[bytes | None]]) -> None:
        """Gives out what a call has made. Rows that were dropped meanwhile, or claimed anew, are left out."""
        now = time.monotonic()
        appends = []
        for part, pcm in zip(completed.context.parts, completed.result, strict=True):
            row = part.row
            row.in_flight -= 1
            if self.rows.get(row.id) is not row:
                continue
            if pcm is None:
                self.end(row.id, row.given, End(EndReason.ERROR, "the codec failed at this request"))
                continue
            if part.at is None:
                continue
            row.given = part.at.frames
            row.first_audio = now if row.first_audio is None else row.first_audio
            if row.leading:
                row.leading.feed(pcm)
                row.withheld = row.leading.withheld / FAMILY.sample_rate
            appends.append(self._append(row, part.at, pcm))
        self.publisher.put(appends)
        self._count(completed.context.call, completed.seconds)

    # On the engine's thread ------------------------------------------------------------------------------------

    def _work(self, taken: _Taken | None) -> CompletedStep[_Taken, Sequence[bytes | None]] | None:
        """All that a turn asks of the engine."""
        if taken:
            self._calls.launch(taken, lambda: self._launch(taken))
        return self._calls.read_oldest(launched=taken is not None)

    def _launch(self, taken: _Taken) -> Callable[[], Sequence[bytes | None]]:
        """Begins a call; if it fails, each row alone, so that one bad request harms no other."""
        try:
            call = self.engine.launch(taken.call.ids, [part.codes for part in taken.parts], taken.call.shape)
        except Exception:
            if not self.engine.isolates_rows:
                raise
            log.exception("a decoder call of %d rows failed", len(taken.parts))
            alone = [self._decode_alone(part) for part in taken.parts]
            return lambda: alone
        return lambda: self.engine.read(call)

    def _decode_alone(self, part: _Part) -> bytes | None:
        try:
            return self.engine.read(self.engine.launch([part.row.id], [part.codes], (1, len(part.codes))))[0]
        except Exception:
            log.exception("request %s fails in the decoder", part.row.id)
            return None

    # ------------------------------------------------------------------------------------------------------------

    def _append(self, row: Stream, at: Position, pcm: bytes) -> Append:
        talker, codec = ("", "") if row.signed else (row.talker, self.replica)
        row.signed = True
        return Append(row.id, self.output_kind, at, Audio(pcm, talker, codec))

    def _count(self, call: Call, seconds: float) -> None:
        rows, frames = call.wanted
        shape = (str(rows), str(frames), call.result)
        self.metrics[m.STEP_SECONDS].labels(self.stage, rows_label(rows)).observe(seconds)
        self.metrics[m.CODEC_CALLS].labels(*shape).inc()
        self.metrics[m.CODEC_CALL_SECONDS].labels(*shape).inc(seconds)
        self.metrics[m.PADDED_FRAMES].inc(call.padding)
        self._frames.inc(sum(call.frames))


def build(config: StageConfig, connector: StageConnector, metrics: Metrics) -> tuple[CodecService, None]:
    """The codec of a process; it has no public application."""

    def load() -> CodecEngine[Any]:
        return IMPLEMENTATION.load_codec_engine(config, open_device(config.device, metrics))

    live = LiveSettings(config.codec, config.settings_generation, config.max_resident)
    return CodecService(connector, load, config.replica, config.max_resident, live, metrics), None
