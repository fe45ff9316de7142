"""The talker service: requests in, code frames out; moves messages between the connector and the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from syrinx_stages.connector.base import Append, Claim, Connector, StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.audio import FRAME_SECONDS
from syrinx_stages.contract.keys import REFERENCE, START, Group, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason, Played, Reference
from syrinx_stages.contract.settings import StageConfig, TalkerSettings
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.runtime.device import open_device
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.runtime.metrics import Metrics, row_bucket
from syrinx_stages.runtime.settings import Live
from syrinx_stages.runtime.worker import Worker, shut_down
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import Prepared, TalkerEngine
from syrinx_stages.talker.scheduler import Row, abandoned, late, schedule

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


class TalkerService(Worker[Row, TalkerSettings, TalkerEngine[Any]]):
    """One talker replica."""

    stage = "talker"
    group = Group.TALKERS
    reads = StreamKind.PLAYED
    writes = StreamKind.CODES

    def __init__(
        self,
        connector: Connector,
        load: Callable[[], TalkerEngine[Any]],
        replica: str,
        max_resident: int,
        live: Live[TalkerSettings],
        metrics: Metrics,
    ) -> None:
        super().__init__(connector, load, replica, max_resident, live, metrics)
        self._waiting: dict[str, Waiting] = {}
        self._unsigned: set[str] = set()
        """Requests whose next entry says who made it."""
        self._prepare_thread = ThreadPoolExecutor(1, "talker-prepare")

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
        if claim.begun:
            entries = await self.connector.history(request.id, self.writes)
            if not entries or any(isinstance(item.entry, End) for item in entries):
                await self.ownership.finish(request.id)
                self.drop(request.id)
                return
            frames = [item.entry.codes for item in entries if isinstance(item.entry, Codes)]
            told = any(isinstance(item.entry, Reference) for item in entries)
            played = await self.connector.last_position(request.id, self.reads)
        pcm = await self.connector.reference(request.id) if request.has_reference else None
        loop = asyncio.get_running_loop()
        prepared = await loop.run_in_executor(self._prepare_thread, self.engine.prepare, request, b"".join(frames), pcm)
        if not self.owns(claim):
            return
        if prepared.reference_codes is not None and not told:
            entry = Reference(prepared.reference_codes)
            self.publisher.put([Append(request.id, self.writes, REFERENCE, entry)])
        self._waiting[request.id] = Waiting(claim, prepared, played or START)
        self.work.set()

    def drop(self, request_id: str) -> None:
        """Forgets a request."""
        self._waiting.pop(request_id, None)
        self._unsigned.discard(request_id)
        super().drop(request_id)

    def on_entry(self, event: StreamEntry) -> None:
        """Notes how far the client has been served."""
        row = self.rows.get(event.request_id)
        if row is None or not isinstance(event.entry, Played):
            return
        row.heard = time.monotonic()
        row.delivered = event.position.frames
        if row.first_delivered is None:
            row.first_delivered = row.heard
        self.work.set()

    def welcome(self) -> bool:
        """Nothing new while streams that play run dry: a few that play well are worth more than many that stutter."""
        started = sum(row.first_frame is not None for row in self.rows.values())
        unstarted = len(self.ownership.claims) - started
        return unstarted < MOST_UNSTARTED and not late(
            self.rows.values(), time.monotonic(), self.live.current.lead_limit_seconds
        )

    async def turn(self) -> float | None:
        """Prefills one waiting request and steps the rows that are due."""
        await self._prefill_one()
        settings = self.live.current
        now = time.monotonic()
        for request_id in abandoned(self.rows.values(), now, settings.lead_limit_seconds, LISTENER_PATIENCE):
            message = f"nobody has listened for {LISTENER_PATIENCE:.0f} s"
            self.end(request_id, self.rows[request_id].produced, End(EndReason.CANCELLED, message))
        step = schedule(self.rows.values(), now, settings.max_num_seqs, settings.lead_limit_seconds)
        self.metrics[m.ROWS_RUNNING].labels(self.stage).set(len(step.ids))
        if step.ids:
            await self._step(step.ids)
            self.ownership.reconsider()
            return 0.0
        return 0.0 if self._waiting else step.wake

    async def _prefill_one(self) -> None:
        """One a turn, so that a burst of new streams does not silence those that play."""
        if not self._waiting:
            return
        waiting = min(self._waiting.values(), key=lambda item: item.claim.request.accepted_at)
        claim, prepared, request = waiting.claim, waiting.prepared, waiting.claim.request
        del self._waiting[request.id]
        started = time.monotonic()
        try:
            await self.run_engine(self.engine.admit, [prepared])
        except RequestError as error:
            await self.fail(claim, str(error), error.param)
            return
        except Exception:
            log.exception("request %s fails at prefill", request.id)
            await self.fail(claim, _FAILED)
            return
        if not self.owns(claim):
            self._released.append(request.id)
            return
        now = time.monotonic()
        self.metrics[m.PREFILL_SECONDS].labels(self.stage).observe(now - started)
        self._unsigned.add(request.id)
        # Of a stream taken over, what was handed over may have been played: never hold it back too early.
        delivered = waiting.played.frames
        began = now - delivered * FRAME_SECONDS
        self.rows[request.id] = Row(
            id=request.id,
            accepted=now - max(0.0, time.time() - request.accepted_at),
            live=request.live,
            produced=prepared.frames,
            first_frame=began if prepared.frames else None,
            heard=now,
            delivered=delivered,
            first_delivered=began if delivered else None,
        )
        self.reader.watch(request.id, self.reads, waiting.played)

    async def _step(self, ids: Sequence[str]) -> None:
        started = time.monotonic()
        results = await self._engine_step(ids)
        now = time.monotonic()
        self.metrics[m.STEP_SECONDS].labels(self.stage, row_bucket(len(ids))).observe(now - started)
        appends = []
        for request_id, result in results.items():
            row = self.rows.get(request_id)
            if row is None:
                continue
            if isinstance(result, End):
                self.end(request_id, row.produced, result)
                continue
            row.produced += 1
            row.first_frame = now if row.first_frame is None else row.first_frame
            appends.append(self._append(row, result))
        self.metrics[m.FRAMES].labels(self.stage).inc(len(appends))
        self.publisher.put(appends)

    async def _engine_step(self, ids: Sequence[str]) -> Mapping[str, bytes | End]:
        """One step; if it fails, each row alone, so that one bad request harms no other."""
        try:
            return await self.run_engine(self._step_now, ids)
        except Exception:
            log.exception("a step of %d rows failed", len(ids))
        results: dict[str, bytes | End] = {}
        for request_id in ids:
            try:
                results.update(await self.run_engine(self._step_now, [request_id]))
            except Exception:
                log.exception("request %s fails in the engine", request_id)
                results[request_id] = End(EndReason.ERROR, _FAILED)
        return results

    def _step_now(self, ids: Sequence[str]) -> Mapping[str, bytes | End]:
        return self.engine.read(self.engine.launch(ids))

    def _append(self, row: Row, codes: bytes) -> Append:
        talker = self.replica if row.id in self._unsigned else ""
        self._unsigned.discard(row.id)
        return Append(row.id, self.writes, Position(row.produced), Codes(codes, talker))


def build(config: StageConfig, connector: Connector, metrics: Metrics) -> tuple[TalkerService, None]:
    """The talker of a process; it has no public application."""

    def load() -> TalkerEngine[Any]:
        return EagerTalkerEngine(Checkpoint(config.model, open_device(config.device, metrics)))

    live = Live(config.talker, config.settings_generation, config.max_resident)
    return TalkerService(connector, load, config.replica, config.max_resident, live, metrics), None
