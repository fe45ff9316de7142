"""Talker and codec with engines that have two steps in flight."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
import torch

from support.deferred import DeferredCodecEngine, DeferredTalkerEngine, Queue
from support.stages import Pipeline, pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from support.writing import Owner, codes_entry
from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract.keys import Position, StreamKind
from syrinx_stages.contract.messages import EndReason
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.process import run_service
from syrinx_stages.runtime.requests.in_flight import CompletedStep
from syrinx_stages.runtime.requests.worker import Worker
from syrinx_stages.runtime.settings import SettingsUpdate
from syrinx_stages.scheduling.admission import COLD_REQUESTS
from syrinx_stages.talker.cuda import prefill

SHORT_LEASE = 0.2
LONG_TEXT = "The old teacher carried seven green apples before breakfast."
TEXTS = ("Her brother opened a broken window.", "A young doctor painted the garden gate.", "My neighbour watched.")


@contextlib.asynccontextmanager
async def pipelined(lease_seconds: float = 0.5, **counts: int) -> AsyncIterator[Pipeline]:
    """A pipeline whose engines have depth 2."""
    options = {"talker_engine": DeferredTalkerEngine, "codec_engine": DeferredCodecEngine}
    async with pipeline(lease_seconds=lease_seconds, **options, **counts) as stages:
        yield stages


@contextlib.contextmanager
def holding(engine: Queue) -> Iterator[None]:
    """Keeps launched steps in flight."""
    engine.hold()
    try:
        yield
    finally:
        engine.resume()


async def both_in_flight(worker: Worker) -> None:
    await until(lambda: len(worker.engine.unread) == 2, "two steps are in flight")


async def test_audio_is_identical_with_two_steps_in_flight() -> None:
    requests = [request(f"r{index}", text) for index, text in enumerate((LONG_TEXT, *TEXTS))]
    async with pipeline() as stages:
        expected = await asyncio.gather(*(synthesize(stages.connector(), item) for item in requests))
    async with pipelined() as stages:
        received = await asyncio.gather(*(synthesize(stages.connector(), item) for item in requests))
        talker, codec = (worker.engine for worker in stages.workers)
        await until(lambda: not talker._rows and not codec._slots, "no state is left")
        assert talker.max_in_flight == 2
    assert [item.pcm for item in received] == [item.pcm for item in expected]
    assert all(item.end.reason is EndReason.STOP for item in received)


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_admission_counts_what_the_process_does_for_a_step_and_no_pauses(stage: str) -> None:
    host, pause = itertools.cycle((0.0, 0.15)), 1.5
    async with pipelined() as stages:
        worker = stages.worker(stage)
        publish, add_step = worker._publish, worker.speed.add_step
        slept = 0.0
        steps: list[tuple[float, float]] = []

        def slow_publish(completed: CompletedStep) -> None:
            nonlocal slept
            slept = next(host)
            time.sleep(slept)
            publish(completed)

        def count(rows: int, frames: int, seconds: float) -> None:
            steps.append((seconds, slept))
            add_step(rows, frames, seconds)

        worker._publish, worker.speed.add_step = slow_publish, count
        await asyncio.gather(*(synthesize(stages.connector(), request(f"first {index}")) for index in range(3)))
        await asyncio.sleep(pause)
        await synthesize(stages.connector(), request("second"))
    assert all(seconds >= slept for seconds, slept in steps)
    assert {slept for _, slept in steps} == {0.0, 0.15}
    assert max(seconds for seconds, _ in steps) < pause


async def test_small_steps_run_one_at_a_time() -> None:
    async with pipelined() as stages:
        talker = stages.worker("talker").engine
        talker.prompt_rows, talker.max_in_flight = 2.0, 0
        await asyncio.gather(*(synthesize(stages.connector(), request(f"small {index}")) for index in range(2)))
        assert talker.max_in_flight == 1
        # How many rows a step has depends on when they are claimed.
        async with asyncio.timeout(DEADLINE):
            for number in itertools.count():
                large = (request(f"large {number} {index}", live=False) for index in range(4))
                await asyncio.gather(*(synthesize(stages.connector(), each) for each in large))
                if talker.max_in_flight == 2:
                    break


async def test_a_step_is_read_when_there_is_nothing_else_to_launch() -> None:
    """No more codes arrive, but the launched call is read."""
    async with pipelined(talkers=0) as stages:
        connector = stages.connector()
        await submit(connector, request("a"))
        frames = codes_entry(np.zeros((2, 16), "<i2").tobytes(), talker="talker-0")
        assert await Owner(connector).append([StreamEntry("a", StreamKind.CODES, Position(2), frames)]) == [None]
        assert (await receive(connector, "a", until_frames=2)).chunks == [2]
        assert not stages.worker("codec").engine.unread


@pytest.mark.parametrize(("max_positions", "admitted"), [(10_000, 3), (1, 1)])
async def test_waiting_requests_are_prefilled_in_one_call(
    monkeypatch: pytest.MonkeyPatch, max_positions: int, admitted: int
) -> None:
    monkeypatch.setattr(prefill, "MAX_BURST_POSITIONS", max_positions)
    async with pipelined() as stages:
        talker = stages.worker("talker")
        first = asyncio.create_task(synthesize(stages.connector(), request("a", LONG_TEXT, live=False)))
        await until(lambda: "a" in talker.rows and talker.rows["a"].take.length > 20, "it has generated 20 frames")
        with holding(talker.engine):
            others = [
                asyncio.create_task(synthesize(stages.connector(), request(f"r{index}", TEXTS[2])))
                for index in range(3)
            ]
            await until(lambda: sum(row.is_new for row in talker.rows.values()) == 3, "three wait")
        received = await asyncio.gather(first, *others)
        assert max(talker.engine.admitted) == admitted
    assert all(item.end.reason is EndReason.STOP for item in received)


async def test_a_talker_claims_few_requests_until_it_knows_how_fast_it_is() -> None:
    async with pipelined() as stages:
        talker, connector = stages.worker("talker"), stages.connector()
        with holding(talker.engine):
            for index in range(4):
                await submit(connector, request(f"r{index}", TEXTS[2]))
            await until(lambda: len(talker.ownership.claims) == COLD_REQUESTS, "some are claimed")
            assert (await connector.queue()).length == 4 - COLD_REQUESTS
        received = [await receive(connector, f"r{index}") for index in range(4)]
    assert all(item.end.reason is EndReason.STOP for item in received)


async def test_requests_without_memory_wait_until_others_end() -> None:
    async with pipelined() as stages:
        talker = stages.worker("talker")
        talker.engine.room = 2
        requests = [request(f"r{index}", TEXTS[2]) for index in range(6)]
        received = await asyncio.gather(*(synthesize(stages.connector(), item) for item in requests))
        assert max(talker.engine.admitted) <= 2
    assert all(item.end.reason is EndReason.STOP for item in received)


async def test_a_stream_is_preempted_when_memory_runs_out_and_resumes_later() -> None:
    requests = [request("a", LONG_TEXT), request("b", LONG_TEXT)]
    async with pipeline() as stages:
        expected = [await synthesize(stages.connector(), item) for item in requests]
    async with pipelined(lease_seconds=SHORT_LEASE) as stages:
        stages.worker("talker").engine.memory = max(item.chunks[-1] for item in expected) + 5
        received = await asyncio.gather(*(synthesize(stages.connector(), item) for item in requests))
    assert [item.end.reason for item in received] == [EndReason.STOP] * 2
    assert [item.pcm for item in received] == [item.pcm for item in expected]


async def test_a_request_that_never_fits_in_memory_fails_with_a_reason() -> None:
    async with pipelined() as stages:
        stages.worker("talker").engine.room = 0
        received = await synthesize(stages.connector(), request("a"))
    assert (received.end.reason, received.end.param) == (EndReason.ERROR, "input")
    assert "memory" in received.end.message


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_cancelling_a_request_with_steps_in_flight_frees_all_state(stage: str) -> None:
    async with pipelined() as stages:
        undisturbed = await synthesize(stages.connector(), request("b"))
        worker, connector = stages.worker(stage), stages.connector()
        ticket = await submit(connector, request("a", LONG_TEXT))
        await receive(connector, "a", until_frames=2)
        with holding(worker.engine):
            await until(lambda: worker.engine.unread, "a step is in flight")
            await connector.release(ticket)
            await until(lambda: "a" not in worker.rows, "it was cancelled")
        assert (await synthesize(connector, request("b"))).pcm == undisturbed.pcm
        await until(lambda: not any(item.rows or item.ownership.claims for item in stages.workers), "rows are free")
        await until(
            lambda: not (stages.workers[0].engine._rows or stages.workers[1].engine._slots),
            "the engines' state is freed",
        )


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_a_request_claimed_again_ignores_steps_launched_before(stage: str) -> None:
    async with pipeline() as stages:
        undisturbed = await synthesize(stages.connector(), request("a", LONG_TEXT))
    async with pipelined(lease_seconds=SHORT_LEASE) as stages:
        worker, connector = stages.worker(stage), stages.connector()
        await submit(connector, request("a", LONG_TEXT))
        receiving = asyncio.create_task(receive(connector, "a"))
        await until(lambda: "a" in worker.rows and worker.rows["a"].in_flight, "it has a step in flight")
        with holding(worker.engine):
            await until(lambda: worker.engine.unread, "a step is in flight")
            before = worker.rows["a"]
            worker.evict("a")
            await until(lambda: "a" in worker.rows, "the only replica has taken it over from itself")
        received = await receiving
        assert worker.rows.get("a") is not before
    assert received.end.reason is EndReason.STOP
    assert received.pcm == undisturbed.pcm
    assert received.chunks == sorted(set(received.chunks))


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_drain_waits_for_steps_in_flight(stage: str) -> None:
    async with pipelined() as stages:
        worker, connector = stages.worker(stage), stages.connector()
        await submit(connector, request("a"))
        receiving = asyncio.create_task(receive(connector, "a"))
        await until(lambda: "a" in worker.rows, "it has a step in flight")
        with holding(worker.engine):
            await until(lambda: worker.engine.unread, "a step is in flight")
            draining = asyncio.create_task(worker.drain(DEADLINE))
            await until(lambda: worker.ready() == "draining", "it drains")
            assert not draining.done()
        await draining
        assert not worker.ownership.claims
        assert (await receiving).end.reason is EndReason.STOP


async def test_a_stage_closes_with_steps_in_flight() -> None:
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    stages = Pipeline(talker_engine=DeferredTalkerEngine, codec_engine=DeferredCodecEngine)
    talker = await stages.talker()
    await submit(stages.connector(), request("a"))
    talker.engine.hold()
    await both_in_flight(talker)
    closing = asyncio.create_task(stages.close())
    await until(lambda: talker.ready() == "closed", "it closes")
    talker.engine.resume()
    await asyncio.wait_for(closing, DEADLINE)
    assert set(threading.enumerate()) <= threads  # those of processes that were "killed" before may end meanwhile
    assert asyncio.all_tasks() <= tasks
    successor = stages.connector().consumer(Stage.TALKER, "successor")
    assert [claim.request.id for claim in await successor.take_over(5)] == ["a"], "handed over, not dropped"
    await stages.streams.close()


# Device errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["talker", "codec"])
@pytest.mark.parametrize("method", ["launch", "read", "release"])
async def test_a_device_error_ends_the_process_and_another_replica_takes_over(
    monkeypatch: pytest.MonkeyPatch, stage: str, method: str
) -> None:
    async with pipeline() as stages:
        undisturbed = await synthesize(stages.connector(), request("a"))

    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    async with pipelined(SHORT_LEASE, talkers=int(stage != "talker"), codecs=int(stage != "codec")) as stages:
        worker = await stages.start(stage, "broken")
        stages.workers.remove(worker)
        monkeypatch.setattr(worker, "start", lambda: asyncio.sleep(0))
        process = asyncio.create_task(run_service(worker, asyncio.Event(), DEADLINE))
        connector = stages.connector()
        await submit(connector, request("a"))
        receiving = asyncio.create_task(receive(connector, "a"))
        await until(lambda: "a" in worker.rows and worker.rows["a"].in_flight, "it has a step in flight")
        monkeypatch.setattr(worker.engine, method, broken)
        if method == "release":
            worker.engine_thread.queue(lambda: worker.engine.release("b"))
        assert await asyncio.wait_for(process, DEADLINE) == 1
        await worker.close()
        await stages.start(stage, "next")
        received = await receiving
    assert received.end.reason is EndReason.STOP
    assert received.pcm == undisturbed.pcm


# Captured shapes -----------------------------------------------------------------------------------------------


def captured(codec: Worker) -> float | None:
    return codec.metrics.registry.get_sample_value("syrinx_codec_captured_shapes")


def set_pairs(codec: Worker, *pairs: tuple[int, int]) -> None:
    codec.live.apply(SettingsUpdate({"capture_pairs": pairs}))
    codec.settings_changed()


async def test_shapes_are_captured_before_readiness_and_between_calls_after_a_change() -> None:
    async with pipelined(codecs=0) as stages:
        codec = await stages.codec(capture_pairs=((1, 2), (2, 4)))
        assert codec.engine.captured == {(1, 2), (2, 4)}
        assert captured(codec) == 2
        synthesis = asyncio.create_task(synthesize(stages.connector(), request("a", LONG_TEXT)))
        await until(lambda: codec.engine.shapes, "a call was made")
        set_pairs(codec, (1, 2), (1, 4), (4, 16))
        await until(lambda: codec.engine.captured == {(1, 2), (1, 4), (4, 16)}, "they are captured")
        await until(lambda: captured(codec) == 3, "the metric shows it")
        assert (await synthesis).end.reason is EndReason.STOP
        set_pairs(codec)
        await until(lambda: not codec.engine.captured, "they are freed, in an idle codec too")
        assert captured(codec) == 0


async def test_a_shape_that_does_not_fit_in_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DeferredCodecEngine.capture

    def capture(engine: DeferredCodecEngine, shape: tuple[int, int]) -> None:
        if shape == (16, 64):
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(engine, shape)

    monkeypatch.setattr(DeferredCodecEngine, "capture", capture)
    async with pipelined(codecs=0) as stages:
        codec = await stages.codec(capture_pairs=((16, 64), (1, 2)))
        assert codec.ready() is None or "reading" in codec.ready()
        assert captured(codec) == 1
        assert (await synthesize(stages.connector(), request("a"))).end.reason is EndReason.STOP
