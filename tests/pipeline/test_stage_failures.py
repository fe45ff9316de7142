"""Failures of talker and codec: nothing leaks, and no request is lost."""

import asyncio
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from support import small_checkpoint
from support.stages import pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from support.writing import chained
from syrinx_stages.connector.base import Claim, ConnectorError, StageConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import REFERENCE_POSITION, StreamKind
from syrinx_stages.contract.messages import EndReason, TaskType
from syrinx_stages.contract.stages import Stage
from syrinx_stages.model.checkpoint import Checkpoint

SHORT_LEASE = 0.2
LONG_TEXT = "The old teacher carried seven green apples before breakfast."


async def claim_as_crashed_replica(connector: StageConnector, group: Stage) -> Claim:
    """A replica claims a request and is never received of again."""
    claims: list[Claim] = []
    while not claims:
        claims = [*await connector.consumer(group, "dead").claim(1)]
    return claims[0]


async def test_cancelling_before_the_row_is_open_ends_the_subscription() -> None:
    """The request is cancelled while the engine is busy and the row is not open yet."""
    async with pipeline(talkers=0) as stages:
        codec, connector = stages.workers[0], stages.connector()
        busy, idle_tasks = threading.Event(), len(codec._tasks._running)
        working = asyncio.create_task(codec.engine_thread.run(busy.wait))
        ticket = await submit(connector, request("a"))
        await until(lambda: "a" in codec.rows, "the request has a row")
        await connector.release(ticket)
        await until(lambda: "a" not in codec.rows, "it was cancelled")
        busy.set()
        await working
        await codec.engine_thread.run(lambda: None)
        await until(lambda: len(codec._tasks._running) == idle_tasks, "it was admitted")
        assert not codec.reader._subscriptions


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_a_request_evicted_during_a_redis_outage_is_claimed_again(stage: str) -> None:
    async with pipeline(lease_seconds=SHORT_LEASE) as stages:
        worker = stages.worker(stage)
        real, failures = worker.admit, iter([ConnectorError("Redis is unavailable")])

        async def admit(claim: Claim) -> None:
            if error := next(failures, None):
                raise error
            await real(claim)

        worker.admit = admit
        received = await synthesize(stages.connector(), request("a"))
    assert received.end.reason is EndReason.STOP


async def test_claims_and_takeovers_together_never_exceed_the_rows() -> None:
    """A takeover fills the only row while a claim waits; the claimed request is released, not failed."""
    async with pipeline(0, 0, lease_seconds=SHORT_LEASE) as stages:
        connector = stages.connector()
        await submit(connector, request("a"))
        await claim_as_crashed_replica(stages.connector(), Stage.CODEC)
        codec = await stages.codec(max_resident=1, max_num_seqs=1)
        await until(lambda: "a" in codec.rows, "it was taken over")
        await submit(connector, request("b"))
        await stages.talker()
        received = await asyncio.gather(receive(connector, "a"), receive(connector, "b"))
    assert [item.end.reason for item in received] == [EndReason.STOP] * 2


async def test_a_full_codec_gets_the_codes_that_it_waits_for() -> None:
    """Its only row is that of a request that no talker has claimed yet. The talker must not wait for a free row."""
    async with pipeline(codecs=0) as stages:
        await stages.codec(max_resident=1, max_num_seqs=1)
        for name in ("a", "b", "c"):
            await submit(stages.connector(), request(name))
        received = [await receive(stages.connector(), name) for name in ("a", "b", "c")]
    assert [item.end.reason for item in received] == [EndReason.STOP] * 3


async def test_another_talker_takes_over_between_reference_and_first_frame(tmp_path: Path) -> None:
    base = Checkpoint(str(small_checkpoint.write(tmp_path / "model", "base")))
    reference = (0.25 * np.sin(np.arange(24_000) / 20)).astype("<f4").tobytes()
    fields = {"task_type": TaskType.BASE, "voice": None, "has_reference": True, "reference_text": "Okay."}
    item = request("a", max_frames=5, total_frames=5, **fields)
    async with pipeline(0, 0, lease_seconds=SHORT_LEASE, checkpoint=base) as stages:
        connector = stages.connector()
        await submit(connector, item, reference)
        claim = await claim_as_crashed_replica(stages.connector(), Stage.TALKER)
        entry = stages.talker_engine(base).prepare(item, b"", reference).reference
        written = chained(claim, StreamKind.CODES, (REFERENCE_POSITION, entry))
        assert await stages.connector().append(written) == [None]
        talker = await stages.talker()
        await stages.codec()
        received = await receive(connector, "a")
        takeovers = talker.metrics.registry.get_sample_value("syrinx_takeovers_total", {"stage": "talker"})
    assert (received.end.reason, received.end.message, takeovers) == (EndReason.LENGTH, "", 1)


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_a_takeover_keeps_the_deadline_of_the_stream(stage: str) -> None:
    """The deadline follows from the reported playback, not from the time of the takeover."""
    async with pipeline(0, 1, lease_seconds=SHORT_LEASE) as stages:
        limit = {"lead_limit_seconds": 1.0}
        await stages.talker(**limit)
        connector = stages.connector()
        await submit(connector, request("a", LONG_TEXT))
        await receive(connector, "a", until_frames=8)
        await connector.report_playback({"a": 8})
        await stages.kill(stages.worker(stage))
        successor = await stages.start(stage, "new", **(limit if stage == "talker" else {}))
        await until(lambda: "a" in successor.rows, "it was taken over")
        row = successor.rows["a"]
        await until(lambda: stage == "codec" or row.first_frame_at is not None, "it continues")
        done = row.frames if stage == "talker" else row.decoded
        assert done >= 8
        assert row.underrun_at() <= time.monotonic() + (done - 8) * FAMILY.frame_seconds


async def test_a_failed_prefill_does_not_affect_other_requests() -> None:
    async with pipeline() as stages:
        talker = stages.workers[0]
        real = talker.engine.admit

        def admit(prepared) -> None:
            if prepared[0].request.id == "bad":
                raise RuntimeError("out of memory")
            real(prepared)

        talker.engine.admit = admit
        bad, good = await asyncio.gather(*(synthesize(stages.connector(), request(name)) for name in ("bad", "good")))
        assert talker.ready() is None
    assert (bad.end.reason, bad.end.message) == (EndReason.ERROR, "the talker failed to process this request")
    assert good.end.reason is EndReason.STOP


async def test_a_request_whose_scores_are_not_finite_ends_alone() -> None:
    async with pipeline() as stages:
        talker = stages.workers[0]
        real = talker.engine.launch

        def launch(ids):
            if "bad" in ids and talker.engine._rows["bad"].frames == 3:
                with torch.inference_mode():
                    talker.engine._rows["bad"].last_frame.fill_(torch.nan)
            return real(ids)

        talker.engine.launch = launch
        bad, good = await asyncio.gather(*(synthesize(stages.connector(), request(name)) for name in ("bad", "good")))
        assert talker.ready() is None
    message = "the talker computed scores that are not finite numbers"
    assert (bad.end.reason, bad.end.message) == (EndReason.ERROR, message)
    assert good.end.reason is EndReason.STOP


async def test_requests_of_a_failed_stage_count_a_delivery() -> None:
    """The request may have caused the failure, so its deliveries are limited."""
    async with pipeline(1, 0, lease_seconds=SHORT_LEASE) as stages:
        talker = stages.worker("talker")

        async def run_iteration() -> None:
            await until(lambda: talker.ownership.claims, "it owns a request")
            raise RuntimeError("broken")

        talker.run_iteration = run_iteration
        await submit(stages.connector(), request("a"))
        await asyncio.wait_for(talker.failed.wait(), DEADLINE)
        await asyncio.wait_for(talker.drain(DEADLINE), 1.0)
        stages.workers.remove(talker)
        await talker.close()
        successor, claims = stages.connector().consumer(Stage.TALKER, "successor"), []
        while not claims:
            claims = [*await successor.take_over(1)]
            await asyncio.sleep(0.01)
    assert [claim.deliveries for claim in claims] == [2]
