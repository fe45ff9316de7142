"""Talker and codec in one process, with the bundled voice: what a listener gets, and who serves what."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from support.colocated import ColocatedPipeline
from support.stages import DEADLINE, listen, pipeline, request, speak, submit
from syrinx_stages.colocated.service import ColocatedService
from syrinx_stages.connector.base import Append, ConnectorError, Gone, Superseded
from syrinx_stages.connector.memory import MemoryConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import Group, Position, StreamKind
from syrinx_stages.contract.messages import Codes, EndReason
from syrinx_stages.runtime.settings import SettingsUpdate

LONG = "The old teacher carried seven green apples before breakfast and described two heavy bags."
TEXTS = (
    "Her brother opened a broken window for his friends.",
    "A young doctor painted the garden gate.",
    "Our captain described a silver watch at the station.",
    "The farmer repaired seven green apples before breakfast.",
    "My neighbour watched the wooden boat in the city.",
    "The quiet student carried the morning paper after the storm.",
)


class Watched(ColocatedPipeline):
    """Notes what is written, in order, and lets a test keep writes from arriving."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[Append, Gone | Superseded | None]] = []
        self.away = False
        """Redis does not answer."""

    def connector(self) -> MemoryConnector:
        return WatchedConnector(self)

    def positions(self, kind: StreamKind) -> list[Position]:
        return [append.position for append, refusal in self.written if append.kind is kind and refusal is None]


class WatchedConnector(MemoryConnector):
    def __init__(self, world: Watched) -> None:
        super().__init__(world.streams)
        self.world = world

    async def append(self, appends: Sequence[Append]) -> Sequence[Gone | Superseded | None]:
        # A round trip takes a while.
        await asyncio.sleep(0.001)
        if self.world.away:
            raise ConnectorError("Redis is away")
        outcomes = await super().append(appends)
        self.world.written += zip(appends, outcomes, strict=True)
        return outcomes


@contextlib.asynccontextmanager
async def processes(count: int = 1) -> AsyncIterator[Watched]:
    stages = Watched()
    try:
        for replica in range(count):
            await stages.colocated(replica)
        yield stages
    finally:
        await stages.close()


async def until(condition: object, what: str) -> None:
    """Waits until `condition()` is true, looking after every turn of the event loop."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE} s until {what}"
        await asyncio.sleep(0.002)


def hold_codec(process: ColocatedService) -> threading.Event:
    """The codec decodes nothing until the event is set."""
    codec = process.workers[1]
    go = threading.Event()
    codec._engine_thread.submit(go.wait)
    return go


def sample(process: ColocatedService, stage: int, name: str) -> float:
    worker = process.workers[stage]
    return worker.metrics.registry.get_sample_value(name, {"stage": worker.stage}) or 0.0


@pytest.fixture(scope="module")
def undisturbed() -> bytes:
    """What `LONG` sounds like from two processes."""

    async def heard() -> bytes:
        async with pipeline() as stages:
            return (await speak(stages.connector(), request("a", LONG))).pcm

    return asyncio.run(heard())


async def test_one_process_speaks_as_two_do() -> None:
    async with pipeline() as stages:
        apart = await speak(stages.connector(), request("a"))
    async with processes() as stages:
        together = await speak(stages.connector(), request("a"))
    assert together.pcm == apart.pcm
    # Between the first chunk and the last, one that would have come late is cut short, wherever it is made.
    assert (together.chunks[0], together.chunks[-1]) == (apart.chunks[0], apart.chunks[-1])
    assert (together.talkers, together.codecs) == (["talker-0"], ["codec-0"])


async def test_the_codec_of_a_process_serves_what_its_own_talker_serves() -> None:
    async with processes(3) as stages:
        requests = [request(f"n{index}", text) for index, text in enumerate(TEXTS)]
        heard = await asyncio.gather(*(speak(stages.connector(), item) for item in requests))
        served = [sample(process, 0, "syrinx_frames_total") for process in stages.processes]
    assert [each.codecs for each in heard] == [
        [name.replace("talker", "codec") for name in each.talkers] for each in heard
    ]
    assert sum(frames > 0 for frames in served) >= 2, "the requests were shared"


async def test_audio_is_never_ahead_of_the_codes_it_is_made_of() -> None:
    async with processes() as stages:
        await asyncio.gather(*(speak(stages.connector(), request(f"n{i}", text)) for i, text in enumerate(TEXTS)))
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
        stages.away = True
        await until(lambda: sample(process, 1, "syrinx_frames_total") > 0, "the codec decodes")
        assert stages.positions(StreamKind.AUDIO) == []
        stages.away = False
        assert (await listen(stages.connector(), "a")).end.reason is EndReason.STOP


async def test_redis_is_away_for_a_second_and_nothing_is_lost(undisturbed: bytes) -> None:
    async with processes() as stages:
        ticket = await submit(stages.connector(), request("a", LONG))
        await listen(stages.connector(), "a", until_frames=4)
        stages.away = True
        await asyncio.sleep(1.0)
        stages.away = False
        heard = await listen(stages.connector(), "a")
        await stages.connector().release(ticket)
    assert heard.pcm == undisturbed


async def test_a_process_dies_and_another_goes_on_at_the_next_frame(undisturbed: bytes) -> None:
    async with processes() as stages:
        await submit(stages.connector(), request("a", LONG))
        await listen(stages.connector(), "a", until_frames=8)
        await stages.kill_process(stages.processes[0])
        successor = await stages.colocated(1)
        heard = await listen(stages.connector(), "a")
        assert [sample(successor, stage, "syrinx_takeovers_total") for stage in (0, 1)] == [1, 1]
    assert heard.pcm == undisturbed
    assert (heard.talkers[-1], heard.codecs[-1]) == ("talker-1", "codec-1")


async def test_a_claim_outlives_the_talker_for_the_codec(undisturbed: bytes) -> None:
    async with processes(2) as stages:
        go = [hold_codec(process) for process in stages.processes]
        await submit(stages.connector(), request("a", LONG, live=False))
        await until(lambda: any(at.sequence == 9 for at in stages.positions(StreamKind.CODES)), "it ended")
        process = next(each for each in stages.processes if each.workers[1].ownership.claims)
        assert not process.workers[0].ownership.claims
        # Longer than a lease: nobody else takes it.
        await asyncio.sleep(0.8)
        assert [len(each.workers[1].ownership.claims) for each in stages.processes if each is not process] == [0]
        for each in go:
            each.set()
        assert (await listen(stages.connector(), "a")).pcm == undisturbed
        await until(lambda: not process.workers[1].ownership.claims, "the request is done")
        assert stages.streams.queue(Group.TALKERS).length == 0
        assert not stages.streams._queued, "it left the queue of both groups"


async def test_a_process_dies_after_the_talker_has_ended_and_another_decodes_the_rest(undisturbed: bytes) -> None:
    async with processes() as stages:
        first = stages.processes[0]
        await submit(stages.connector(), request("a", LONG, live=False))
        await listen(stages.connector(), "a", until_frames=4)
        go = hold_codec(first)
        await until(lambda: any(at.sequence == 9 for at in stages.positions(StreamKind.CODES)), "the talker has ended")
        killing = asyncio.create_task(stages.kill_process(first))
        await asyncio.sleep(0)
        go.set()
        await killing
        await stages.colocated(1)
        heard = await listen(stages.connector(), "a")
    assert heard.pcm == undisturbed


async def test_a_talker_that_is_superseded_takes_its_codec_along() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await submit(stages.connector(), request("a", LONG))
        await listen(stages.connector(), "a", until_frames=4)
        stages.away = True
        await asyncio.sleep(0.05)
        # Another process carries it on.
        [pending] = stages.streams._groups[Group.TALKERS].pending.values()
        pending.owner, pending.since = "talker-9", float("inf")
        ahead = Append("a", StreamKind.CODES, Position(500), Codes(np.zeros(16, "<i2").tobytes()))
        assert stages.streams.append(ahead) is None
        stages.away = False
        await until(lambda: sum(sample(process, n, "syrinx_lost_claims_total") for n in (0, 1)), "one has lost it")
        assert not any("a" in worker.rows for worker in process.workers)
        # What was made of codes that nobody has is not written.
        assert max(stages.positions(StreamKind.AUDIO)) <= max(stages.positions(StreamKind.CODES))


async def test_a_codec_that_is_superseded_takes_its_talker_along() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await submit(stages.connector(), request("a", "The old teacher. " * 30))
        await listen(stages.connector(), "a", until_frames=4)
        before = process.workers[0].ownership.claims["a"]
        end = Append("a", StreamKind.AUDIO, Position(5000), Codes(b""))
        assert stages.streams.append(end) is None
        await until(lambda: sample(process, 1, "syrinx_lost_claims_total") == 1, "the codec has lost it")
        assert process.workers[0].ownership.claims.get("a") is not before


async def test_a_client_that_leaves_frees_the_rows_of_both_at_once() -> None:
    async with processes() as stages:
        process, connector = stages.processes[0], stages.connector()
        ticket = await submit(connector, request("a", "The old teacher. " * 30))
        await listen(connector, "a", until_frames=4)
        released = time.monotonic()
        await connector.release(ticket)
        await until(lambda: not any(worker.ownership.claims for worker in process.workers), "rows are free")
        assert time.monotonic() - released < 0.1
        assert (await speak(connector, request("b"))).end.reason is EndReason.STOP


async def test_a_client_that_leaves_after_the_talker_has_ended_frees_the_codec() -> None:
    async with processes() as stages:
        process, connector = stages.processes[0], stages.connector()
        go = hold_codec(process)
        ticket = await submit(connector, request("a", live=False))
        await until(lambda: any(at.sequence == 9 for at in stages.positions(StreamKind.CODES)), "the talker has ended")
        await connector.release(ticket)
        await until(lambda: not process.workers[1].ownership.claims, "the codec has let go")
        go.set()
        assert (await speak(connector, request("b"))).end.reason is EndReason.STOP


async def test_a_request_waits_for_a_row_of_the_codec(undisturbed: bytes) -> None:
    stages = Watched()
    try:
        process = await stages.colocated()
        process.workers[1].ownership._capacity = 1
        heard = await asyncio.gather(
            *(speak(stages.connector(), request(name, LONG, seed=request("a").seed)) for name in ("a", "b", "c"))
        )
    finally:
        await stages.close()
    assert [each.pcm for each in heard] == [undisturbed] * 3


async def test_what_cannot_be_served_is_refused_in_words() -> None:
    async with processes() as stages:
        heard = await speak(stages.connector(), request("a", voice="nobody"))
        assert heard.end.reason is EndReason.ERROR
        assert heard.end.param == "voice"
        assert (await speak(stages.connector(), request("b"))).end.reason is EndReason.STOP


async def test_settings_are_each_stage_s_own() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        process.codec.live.apply(SettingsUpdate({"chunk_ramp": [1, 3]}))
        process.codec.settings_changed()
        heard = await speak(stages.connector(), request("a", live=False))
        assert heard.chunks[:3] == [3, 6, 9]
        assert (process.talker.live.generation, process.codec.live.generation) == (1, 2)


async def test_each_is_ready_when_both_are() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await until(lambda: process.talker.ready() is None and process.codec.ready() is None, "ready")
        process.workers[1]._unready = "warming up"
        assert (process.talker.ready(), process.codec.ready()) == ("codec: warming up", "warming up")


async def test_what_fails_one_stage_ends_the_process() -> None:
    async with processes() as stages:
        process = stages.processes[0]

        async def broken() -> None:
            raise RuntimeError("broken")

        process.workers[1]._tasks.spawn(broken())
        await asyncio.wait_for(process.failed.wait(), DEADLINE)
        assert process.workers[0].failed.is_set()


async def test_drain_finishes_what_both_own() -> None:
    async with processes() as stages:
        process = stages.processes[0]
        await submit(stages.connector(), request("a", LONG))
        await listen(stages.connector(), "a", until_frames=2)
        draining = asyncio.create_task(process.drain(DEADLINE))
        await asyncio.sleep(0)
        assert (process.talker.ready(), process.codec.ready()) == ("draining", "talker: draining")
        await submit(stages.connector(), request("b"))
        await draining
        assert (await listen(stages.connector(), "a")).end.reason is EndReason.STOP
        assert (await stages.connector().queue(Group.TALKERS)).length == 1


async def test_what_a_drain_cannot_finish_is_handed_over_at_once(undisturbed: bytes) -> None:
    stages = Watched()
    stages.streams._lease = 3600.0
    try:
        process = await stages.colocated()
        await submit(stages.connector(), request("a", LONG))
        await listen(stages.connector(), "a", until_frames=4)
        await process.drain(0.0)
        await stages.leave(process)
        successor = await stages.colocated(1)
        heard = await listen(stages.connector(), "a")
        assert [sample(successor, stage, "syrinx_takeovers_total") for stage in (0, 1)] == [1, 1]
    finally:
        await stages.close()
    assert heard.pcm == undisturbed
    assert len(heard.pcm) == heard.chunks[-1] * FAMILY.frame_bytes


async def test_a_gateway_finds_a_talker_and_a_codec() -> None:
    async with processes() as stages:
        connector = stages.connector()
        await until(lambda: all(stages.streams.has_live_consumer(group, 5.0) for group in Group), "both look for work")
        await stages.leave(stages.processes[0])
        assert [await connector.has_live_consumer(group, 5.0) for group in Group] == [False, False]


async def test_a_closed_process_leaves_no_thread_and_no_task_behind() -> None:
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    async with processes() as stages:
        await submit(stages.connector(), request("a"))
        await listen(stages.connector(), "a", until_frames=4)
    assert set(threading.enumerate()) <= threads  # those of processes that were "killed" before may end meanwhile
    assert asyncio.all_tasks() <= tasks
