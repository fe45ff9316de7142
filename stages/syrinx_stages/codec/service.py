"""The codec service: code frames in, PCM out; moves messages between the connector and the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from syrinx_stages.codec.eager_engine import EagerCodecEngine
from syrinx_stages.codec.engine import CodecEngine
from syrinx_stages.codec.scheduler import Call, Row, schedule
from syrinx_stages.connector.base import Append, Claim, Connector, StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.audio import FRAME_SECONDS
from syrinx_stages.contract.keys import END_PART, OPENED, START, Group, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, EndReason, Reference
from syrinx_stages.contract.settings import CapturePair, CodecSettings, StageConfig
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.runtime.device import open_device
from syrinx_stages.runtime.metrics import Metrics, row_bucket
from syrinx_stages.runtime.settings import Live
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
    talker: str = ""
    signed: bool = False
    """Some entry of ours has said who made it."""
    end: End | None = None


class CodecService(Worker[Stream, CodecSettings, CodecEngine[Any]]):
    """One codec replica."""

    stage = "codec"
    group = Group.CODECS
    reads = StreamKind.CODES
    writes = StreamKind.AUDIO

    async def admit(self, claim: Claim) -> None:
        """Opens a row; its frames follow from the codes stream, from the first one on."""
        request = claim.request
        last = await self.connector.last_position(request.id, self.writes) if claim.begun else OPENED
        if last is None or last.part == END_PART:
            await self.ownership.finish(request.id)
            self.drop(request.id)
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
            first_audio=now - last.frames * FRAME_SECONDS if last.frames else None,
            skip=last.frames,
            codes=[],
        )
        await self.run_engine(self.engine.open, request.id)
        if not self.owns(claim):
            return
        self.reader.watch(request.id, self.reads, START)

    def settings_changed(self) -> None:
        """Looks at the rows again under the new settings, and shows these."""
        super().settings_changed()
        settings = self.live.current
        ramp = self.metrics[m.CHUNK_RAMP]
        # The last ramp may have had more positions.
        ramp.clear()
        for position, frames in enumerate(settings.chunk_ramp):
            ramp.labels(str(position)).set(frames)
        self.metrics[m.CAPTURE_PAIRS].set(len(settings.capture_pairs))

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
        self.work.set()

    def _queue(self, row: Stream, codes: bytes) -> int:
        """Takes frames in; returns how many. Codes the decoder does not know end the stream with an error."""
        try:
            frames = self.engine.split(codes)
        except ValueError as error:
            log.error("request %s: bad codes entry: %s", row.id, error)
            end = End(EndReason.ERROR, f"the talker sent codes the codec cannot decode: {error}")
            self.end(row.id, row.emitted, end, _UPSTREAM)
            return 0
        row.codes.extend(frames)
        row.pending = len(row.codes)
        return len(frames)

    async def turn(self) -> float | None:
        """Ends streams that are decoded to their end and runs the most urgent decoder call."""
        for row in [row for row in self.rows.values() if row.ended and not row.pending]:
            assert row.end is not None
            self.end(row.id, row.emitted, row.end, _UPSTREAM if row.end.reason is EndReason.ERROR else "")
        plan = schedule(self.rows.values(), time.monotonic(), self.live.current)
        self.metrics[m.ROWS_RUNNING].labels(self.stage).set(len(plan.call.ids) if plan.call else 0)
        if plan.call is None:
            return plan.wake
        await self._decode(plan.call)
        return 0.0

    async def _decode(self, call: Call) -> None:
        rows = [self.rows[request_id] for request_id in call.ids]
        codes = [row.codes[: call.frames] for row in rows]
        started = time.monotonic()
        chunks = await self._engine_decode(call, codes)
        now = time.monotonic()
        self._count(call, now - started)
        appends = []
        for row, pcm in zip(rows, chunks, strict=True):
            if self.rows.get(row.id) is not row:
                continue
            if pcm is None:
                self.end(row.id, row.emitted, End(EndReason.ERROR, "the codec failed at this request"))
                continue
            del row.codes[: call.frames]
            row.pending = len(row.codes)
            if row.silent:
                row.silent -= call.frames
                continue
            row.emitted += call.frames
            row.first_audio = now if row.first_audio is None else row.first_audio
            appends.append(self._append(row, pcm))
        self.publisher.put(appends)

    async def _engine_decode(self, call: Call, codes: Sequence[Sequence[bytes]]) -> Sequence[bytes | None]:
        """One call; if it fails, each row alone, so that one bad request harms no other."""
        try:
            return await self.run_engine(self._decode_now, call.ids, codes, call.shape)
        except Exception:
            log.exception("a decoder call of %d rows failed", len(call.ids))
        chunks: list[bytes | None] = []
        for request_id, frames in zip(call.ids, codes, strict=True):
            try:
                chunks += await self.run_engine(self._decode_now, [request_id], [frames], (1, len(frames)))
            except Exception:
                log.exception("request %s fails in the decoder", request_id)
                chunks.append(None)
        return chunks

    def _decode_now(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> Sequence[bytes]:
        return self.engine.read(self.engine.launch(ids, codes, shape))

    def _append(self, row: Stream, pcm: bytes) -> Append:
        talker, codec = ("", "") if row.signed else (row.talker, self.replica)
        row.signed = True
        return Append(row.id, self.writes, Position(row.emitted), Audio(pcm, talker, codec))

    def _count(self, call: Call, seconds: float) -> None:
        rows = len(call.ids)
        self.metrics[m.STEP_SECONDS].labels(self.stage, row_bucket(rows)).observe(seconds)
        shape = (str(rows), str(call.frames), call.result)
        self.metrics[m.CODEC_CALLS].labels(*shape).inc()
        self.metrics[m.CODEC_CALL_SECONDS].labels(*shape).inc(seconds)
        self.metrics[m.PADDED_FRAMES].inc(call.shape[0] * call.shape[1] - rows * call.frames)
        self.metrics[m.FRAMES].labels(self.stage).inc(rows * call.frames)


def build(config: StageConfig, connector: Connector, metrics: Metrics) -> tuple[CodecService, None]:
    """The codec of a process; it has no public application."""

    def load() -> CodecEngine[Any]:
        checkpoint = Checkpoint(config.model, open_device(config.device, metrics))
        return EagerCodecEngine(checkpoint.load_codec_decoder(), config.max_resident)

    live = Live(config.codec, config.settings_generation, config.max_resident)
    return CodecService(connector, load, config.replica, config.max_resident, live, metrics), None
