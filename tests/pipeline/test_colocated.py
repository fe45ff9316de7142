"""Talker and codec in one process, with the bundled voice."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from support.colocated import ColocatedPipeline
from support.stages import LEASE_SECONDS, pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from support.writing import Owner
from syrinx_stages.colocated.connectors import CodecConnector, TalkerConnector
from syrinx_stages.colocated.service import ColocatedService, build
from syrinx_stages.connector.base import Append, ConnectorError, Refusal, StreamEntry
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Codes, EndReason
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.settings import SettingsUpdate
from syrinx_stages.runtime.telemetry.metrics import Metrics

LONG = "The old teacher carried seven green apples before breakfast and described two heavy bags."
TEXTS = (
    "Her brother opened a window.",
    "A young doctor painted the garden gate.",
    "Our captain described a watch.",
    "The farmer repaired two apples.",
    "My neighbour watched.",
    "The quiet student carried the paper.",
)


class RecordingPipeline(ColocatedPipeline):
    """Records all writes in order. A test can make writes fail."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[Append, Refusal | None]] = []
        self.redis_down = False
        """Whether writes fail."""

    def connector(self) -> RedisConnector:
        connector = self.streams.connector(RecordingConnector)
        connector.world = self
        return connector

    def positions(self, kind: StreamKind) -> list[Position]:
        return [append.position for append, refusal in self.written if append.kind is kind and refusal is None]

    async def talker_ended(self) -> None:
        """Waits until the end of some codes is written."""
        await until(lambda: any(at.sequence == END_SEQUENCE for at in self.positions(StreamKind.CODES)), "it ended")


class RecordingConnector(RedisConnector):
    world: RecordingPipeline

    async def append(self, appends: Sequence[Append]) -> Sequence[Refusal | None]:
        # A round trip takes a while.
        await asyncio.sleep(0.001)
        if self.world.redis_down:
            raise ConnectorError("Redis is unavailable")
        outcomes = await super().append(appends)
        self.world.written += zip(appends, outcomes, strict=True)
        return outcomes


@contextlib.asynccontextmanager
async def processes(count: int = 1, lease_seconds: float = LEASE_SECONDS) -> AsyncIterator[RecordingPipeline]:
    stages = RecordingPipeline()
    stages.streams.lease_seconds = lease_seconds
    try:
        for replica in range(count):
            await stages.colocated(replica)
        yield stages
    finally:
        await stages.close()


def hold_codec(process: ColocatedService) -> threading.Event:
    """Blocks the codec's engine until the returned event is set."""
    codec = process.workers[1]
    go = threading.Event()
    codec.engine_thread.queue(go.wait)
    return go


def sample(process: ColocatedService, stage: int, name: str) -> float:
    worker = process.workers[stage]
    return worker.metrics.registry.get_sample_value(name, {"stage": worker.stage}) or 0.0


async def lost_claim(process: ColocatedService) -> None:
    """Waits until one stage has lost its claim."""
    await until(lambda: sum(sample(process, stage, "syrinx_lost_claims_total") for stage in (0, 1)), "it is lost")


@pytest.fixture(scope="module")
def undisturbed() -> bytes:
    """The audio of `LONG` from two processes."""

    async def received() -> bytes:
        async with pipeline() as stages:
            return (await synthesize(stages.connector(), request("a", LONG))).pcm

    return asyncio.run(received())


async def test_one_process_generates_the_same_audio_as_two() -> None:
    async with pipeline() as stages:
        separate = await synthesize(stages.connector(), request("a"))
    async with processes() as stages:
        together = await synthesize(stages.connector(), request("a"))
    assert together.pcm == separate.pcm
    # Where the other chunks end depends on time: the first one waits for slow codes, later ones avoid underruns.
    assert together.chunks[-1] == separate.chunks[-1]
    assert (together.talkers, together.codecs) == (["talker-0"], ["codec-0"])


async def test_audio_is_written_after_the_codes_it_was_decoded_from() -> None:
    async with processes() as stages:
        await asyncio.gather(*(synthesize(stages.connector(), request(f"n{i}", text)) for i, text in enumerate(TEXTS)))
        codes: dict[str, Position] = {}
        for append, refusal in stages.written:
            assert refusal is None
            if append.kind is StreamKind.CODES:
                codes[append.request_id] = append.position
            else:
                assert append.position <= codes[append.request_id]


async def test_the_codec_has_codes_before_they_are_written() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await submit(stages.connector(), request("a", LONG))
        await until(lambda: process.workers[0].rows, "the talker has begun")
        stages.redis_down = True
        await until(lambda: sample(process, 1, "syrinx_frames_total") > 0, "the codec decodes")
        assert stages.positions(StreamKind.AUDIO) == []
        stages.redis_down = False
        assert (await receive(stages.connector(), "a")).end.reason is EndReason.STOP


async def test_another_process_continues_at_the_next_frame_after_a_crash(undisturbed: bytes) -> None:
    async with processes() as stages:
        await submit(stages.connector(), request("a", LONG))
        await receive(stages.connector(), "a", until_frames=8)
        await stages.kill_process(stages.processes[0])
        successor = await stages.colocated(1)
        received = await receive(stages.connector(), "a")
        assert [sample(successor, stage, "syrinx_takeovers_total") for stage in (0, 1)] == [1, 1]
    assert received.pcm == undisturbed
    assert (received.talkers[-1], received.codecs[-1]) == ("talker-1", "codec-1")


async def test_a_claim_is_kept_until_the_codec_has_ended(undisturbed: bytes) -> None:
    async with processes(2) as stages:
        go = [hold_codec(process) for process in stages.processes]
        await submit(stages.connector(), request("a", LONG, live=False))
        await stages.talker_ended()
        process = next(each for each in stages.processes if each.workers[1].ownership.claims)
        assert not process.workers[0].ownership.claims
        # Longer than a lease, but no other process takes it over.
        await asyncio.sleep(0.8)
        assert [len(each.workers[1].ownership.claims) for each in stages.processes if each is not process] == [0]
        for each in go:
            each.set()
        assert (await receive(stages.connector(), "a")).pcm == undisturbed
        await until(lambda: not process.workers[1].ownership.claims, "the request is done")
        assert (await stages.connector().queue()).length == 0
        assert stages.streams.raw.xlen(stages.streams.keys.requests) == 0, "it left the queue of both groups"


async def test_another_process_decodes_the_rest_if_one_dies_after_the_talker_ended(undisturbed: bytes) -> None:
    async with processes() as stages:
        first = stages.processes[0]
        await submit(stages.connector(), request("a", LONG, live=False))
        await receive(stages.connector(), "a", until_frames=4)
        go = hold_codec(first)
        await stages.talker_ended()
        killing = asyncio.create_task(stages.kill_process(first))
        await asyncio.sleep(0)
        go.set()
        await killing
        await stages.colocated(1)
        received = await receive(stages.connector(), "a")
    assert received.pcm == undisturbed


async def test_a_superseded_talker_evicts_the_request_from_its_codec() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await submit(stages.connector(), request("a", LONG))
        await receive(stages.connector(), "a", until_frames=4)
        stages.redis_down = True
        await asyncio.sleep(0.05)
        # Another process takes it over.
        claim = process.workers[0].ownership.claims["a"]
        later_codes = StreamEntry("a", StreamKind.CODES, Position(500), Codes(np.zeros(16, "<i2").tobytes()))
        assert await Owner(stages.streams.connector()).append([later_codes]) == [None]
        stages.streams.raw.xclaim(stages.streams.keys.requests, Stage.TALKER, "talker-9", 0, [claim.entry_id])
        stages.redis_down = False
        await lost_claim(process)
        assert not any("a" in worker.rows for worker in process.workers)
        # Audio of codes that were not written is not written.
        assert max(stages.positions(StreamKind.AUDIO)) <= max(stages.positions(StreamKind.CODES))


async def test_a_superseded_codec_evicts_the_request_from_its_talker() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await submit(stages.connector(), request("a", "The old teacher. " * 30))
        await receive(stages.connector(), "a", until_frames=4)
        before = process.workers[0].ownership.claims["a"]
        end = StreamEntry("a", StreamKind.AUDIO, Position(5000), Codes(b""))
        other = Owner(stages.streams.connector(), group=Stage.TALKER)
        if await other.append([end]) != [None]:
            # The codec has written once more before it. Now it no longer owns the stream.
            assert await other.append([end]) == [None]
        await lost_claim(process)
        assert process.workers[0].ownership.claims.get("a") is not before


@pytest.mark.parametrize("talker_ended", [False, True], ids=["both run", "only the codec runs"])
async def test_a_refused_codec_serves_a_request_again_at_once_if_its_process_still_owns_it(
    undisturbed: bytes, talker_ended: bool
) -> None:
    async with processes(lease_seconds=3600.0) as stages:
        process = stages.processes[0]
        await submit(stages.connector(), request("a", LONG, live=False))
        await receive(stages.connector(), "a", until_frames=4)
        go = hold_codec(process)
        if talker_ended:
            await stages.talker_ended()
        # The token of a claim whose reply was lost.
        epoch, _, rest = process.workers[1].ownership.claims["a"].fence.token.partition(":")
        stages.streams.raw.hset(stages.streams.keys.owners("a"), Stage.TALKER, f"{int(epoch) + 1}:{rest}")
        go.set()
        assert (await receive(stages.connector(), "a")).pcm == undisturbed
        await until(lambda: not any(worker.ownership.claims for worker in process.workers), "the request is done")
        assert stages.streams.raw.xlen(stages.streams.keys.requests) == 0


async def test_a_request_whose_streams_expire_after_the_claim_leaves_the_queue() -> None:
    async with processes(0) as stages:
        connector = TalkerConnector(stages.connector())
        talker = connector.consumer(Stage.TALKER, "talker-0")
        codec = CodecConnector(stages.connector(), connector).consumer(Stage.CODEC, "codec-0")
        await submit(stages.connector(), request("a"))
        [claim] = await talker.claim(1)
        # As the talker does when it finds no entries.
        talker.forget("a")
        await talker.finish(claim.entry_id)
        assert stages.streams.raw.xlen(stages.streams.keys.requests) == 0
        await codec.close()


async def test_a_disconnect_after_the_talker_has_ended_frees_the_codec() -> None:
    async with processes() as stages:
        process, connector = stages.processes[0], stages.connector()
        go = hold_codec(process)
        ticket = await submit(connector, request("a", live=False))
        await stages.talker_ended()
        await connector.release(ticket)
        await until(lambda: not process.workers[1].ownership.claims, "the codec has released its claim")
        go.set()
        assert (await synthesize(connector, request("b"))).end.reason is EndReason.STOP


async def test_a_request_waits_for_a_row_of_the_codec(undisturbed: bytes) -> None:
    async with processes() as stages:
        stages.processes[0].workers[1].ownership._capacity = 1
        received = await asyncio.gather(
            *(synthesize(stages.connector(), request(name, LONG, seed=request("a").seed)) for name in ("a", "b", "c"))
        )
    assert [each.pcm for each in received] == [undisturbed] * 3


async def test_each_stage_has_its_own_settings() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        process.codec.live.apply(SettingsUpdate({"chunk_ramp": [1, 3]}))
        process.codec.settings_changed()
        received = await synthesize(stages.connector(), request("a", live=False))
        assert received.chunks[:3] == [3, 6, 9]
        assert (process.talker.live.generation, process.codec.live.generation) == (1, 2)


async def test_each_stage_is_ready_only_when_both_are() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await until(lambda: process.talker.ready() is None and process.codec.ready() is None, "ready")
        process.workers[1]._unready = "warming up"
        assert (process.talker.ready(), process.codec.ready()) == ("codec: warming up", "warming up")


async def test_a_failure_of_one_stage_ends_the_process() -> None:
    async with processes() as stages:
        process = stages.processes[0]

        async def broken() -> None:
            raise RuntimeError("broken")

        process.workers[1]._tasks.spawn(broken())
        await asyncio.wait_for(process.failed.wait(), DEADLINE)
        assert process.workers[0].failed.is_set()


async def test_drain_finishes_the_requests_of_both_stages() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await submit(stages.connector(), request("a", LONG))
        await receive(stages.connector(), "a", until_frames=2)
        draining = asyncio.create_task(process.drain(DEADLINE))
        await asyncio.sleep(0)
        assert (process.talker.ready(), process.codec.ready()) == ("draining", "talker: draining")
        await submit(stages.connector(), request("b"))
        await draining
        assert (await receive(stages.connector(), "a")).end.reason is EndReason.STOP
        assert (await stages.connector().queue()).length == 1


async def test_a_closed_process_leaves_no_threads_or_tasks() -> None:
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    async with processes() as stages:
        await submit(stages.connector(), request("a"))
        await receive(stages.connector(), "a", until_frames=4)
    assert set(threading.enumerate()) <= threads  # those of processes that were "killed" before may end meanwhile
    assert asyncio.all_tasks() <= tasks


@pytest.mark.parametrize("field", ["pipeline", "generation", "model", "device", "drain_seconds"])
def test_incompatible_configurations_are_refused(field: str) -> None:
    talker = StageConfig(pipeline="p", generation="g", model="bundled")
    codec = structs.replace(talker, **{field: 5.0 if field == "drain_seconds" else "cuda"})
    with pytest.raises(StartError, match=f"^{field}: .* of the talker and .* of the codec cannot share a process"):
        build(talker, None, codec, None, Metrics(CollectorRegistry()))
