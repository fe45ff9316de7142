"""Talker and codec with the bundled voice: the received audio, also after crashes and settings changes."""

import asyncio
import math
import threading
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from support.stages import Pipeline, pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from support.writing import Owner, codes_entry, stop_after
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.base import Capacity, Claim, Fence, Gone, StreamEntry
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.frames import unpack_checksums
from syrinx_stages.contract.keys import END_SEQUENCE, REFERENCE_POSITION, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, EndReason, Reference
from syrinx_stages.contract.settings import DEFAULT_RAMP
from syrinx_stages.contract.silence import AUDIBLE_PEAK, LeadingSilenceTrimmer
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.requests.worker import Worker
from syrinx_stages.runtime.settings import SettingsUpdate
from syrinx_stages.scheduling.admission import MAX_UNSTARTED
from syrinx_stages.talker import holding
from syrinx_stages.talker.speech import BEGINNING

NEIGHBOURS = (
    "Her brother opened a window.",
    "A young doctor painted the garden gate.",
    "Our captain described a watch.",
    "The farmer repaired two apples.",
    "My neighbour watched.",
    "The quiet student carried the paper.",
    "A young doctor bought an empty box.",
)

PUBLISHED = 28
"""Frames of audio before a crash: more than the decoder's convolutions reach back."""


def change(worker: Worker, **settings: object) -> None:
    worker.live.apply(SettingsUpdate(settings))
    worker.settings_changed()


async def test_audio_arrives_in_chunks_of_the_ramp() -> None:
    async with pipeline() as stages:
        received = await synthesize(stages.connector(), request("a"))
    samples = np.frombuffer(received.pcm, "<i2")
    assert received.end.reason is EndReason.STOP
    assert len(received.pcm) == received.chunks[-1] * FAMILY.frame_bytes
    assert 1.0 < received.chunks[-1] * FAMILY.frame_seconds < 5.0
    assert np.abs(samples).max() > 20 * AUDIBLE_PEAK
    ends = list(accumulate(DEFAULT_RAMP))
    assert received.chunks[0] in ends, "whole chunks, several if codes are slow"
    # The gateway withholds leading silence, so an idle codec decodes what is available before playback underruns.
    assert len(set(ends) & set(received.chunks)) >= 2, "chunks of the ramp"
    assert (received.talkers, received.codecs) == (["talker-0"], ["codec-0"])


async def test_the_codec_knows_how_much_leading_silence_the_gateway_withholds() -> None:
    async with pipeline() as stages:
        connector, codec = stages.connector(), stages.workers[1]
        await submit(connector, request("a", " ".join(NEIGHBOURS)))
        received = await receive(connector, "a", until_frames=8)
        withheld = codec.rows["a"].withheld_seconds
    leading = LeadingSilenceTrimmer()
    assert leading.feed(received.pcm)
    assert withheld == leading.withheld / FAMILY.sample_rate > 0.03, (
        "the bundled voice begins with half a frame of silence"
    )


async def test_a_talker_claims_nothing_while_the_codec_is_late() -> None:
    async with pipeline() as stages:
        talker, codec = stages.workers
        connector, consumer = stages.connector(), talker.ownership._consumer
        # Assumed to be as fast as real time: another stream shared its calls otherwise.
        codec.speed.add_step = lambda *step: None
        launch, proceed, reports = codec.engine.launch, threading.Event(), 0

        def slow(*call: Any) -> Any:
            proceed.wait(DEADLINE)
            return launch(*call)

        async def report(capacity: Capacity) -> float | None:
            nonlocal reports
            reports += 1
            return await type(consumer).report(consumer, capacity)

        def is_known() -> bool:
            """The talker knows that the codec is late, and neither waits for a request any more."""
            waiting = any(worker.ownership._consumer._blocking.outstanding for worker in stages.workers)
            return talker.ownership.codecs_free < 1 and not waiting

        await submit(connector, request("a"))
        await receive(connector, "a", until_frames=2)
        codec.engine.launch = slow
        await until(is_known, "the codec is late")
        await submit(connector, request("b"))
        consumer.report = report
        await until(lambda: reports == 3, "the talker has heard of the codec three times")
        claimed = [worker.stage for worker in stages.workers if "b" in worker.ownership.claims]
        proceed.set()
        assert (await receive(connector, "b")).end.reason is EndReason.STOP
    assert not claimed


async def test_settings_changes_do_not_change_the_audio_of_live_streams() -> None:
    requests = [request(f"n{index}", text) for index, text in enumerate(NEIGHBOURS)]
    async with pipeline() as stages:
        expected = await asyncio.gather(*(synthesize(stages.connector(), item) for item in requests))
    async with pipeline() as stages:
        talker, codec = stages.workers
        tasks = [asyncio.create_task(synthesize(stages.connector(), item)) for item in requests]
        for turn in range(8):
            progress = talker.metrics.registry.get_sample_value
            target = 12.0 * turn
            await until(lambda: (progress("syrinx_frames_total", {"stage": "talker"}) or 0) >= target, "frames")  # noqa: B023
            change(talker, max_num_seqs=(1, 3, 8, 2)[turn % 4], lead_limit_seconds=(8.0, 20.0)[turn % 2])
            change(codec, max_num_seqs=(8, 2, 5)[turn % 3], chunk_ramp=[(1, 3), (4,), (2, 2, 4, 8, 12)][turn % 3])
            change(codec, capture_pairs=[[(1, 4), (2, 4), (4, 16)], [], [(16, 16)]][turn % 3])
        changed = await asyncio.gather(*tasks)
        calls = codec.metrics.registry.get_sample_value
        padded = codec.metrics.registry.collect()
        assert any(sample.labels.get("result") == "padded" for family in padded for sample in family.samples)
        assert calls("syrinx_settings_generation", {"stage": "codec"}) == 17
    assert [received.pcm for received in changed] == [received.pcm for received in expected]


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_another_replica_continues_at_the_next_frame_after_a_crash(stage: str) -> None:
    text = "The old teacher carried seven green apples before breakfast."
    async with pipeline() as stages:
        undisturbed = await synthesize(stages.connector(), request("a", text))
    async with pipeline() as stages:
        if stage == "talker":
            # Nobody reports playback: it pauses before the end.
            change(stages.worker(stage), lead_limit_seconds=1.2 * PUBLISHED * FAMILY.frame_seconds)
        ticket = await submit(stages.connector(), request("a", text))
        await receive(stages.connector(), "a", until_frames=PUBLISHED)
        await stages.kill(stages.worker(stage))
        successor = await stages.start(stage, f"{stage}-1")
        received = await receive(stages.connector(), "a")
        await stages.connector().release(ticket)
        if isinstance(successor, CodecService):
            assert successor.engine.prefill is not None
            decoded = successor.metrics.registry.get_sample_value("syrinx_frames_total", {"stage": "codec"})
            assert decoded <= received.chunks[-1] - PUBLISHED + successor.engine.prefill.context_frames
    assert received.end.reason is EndReason.STOP
    assert received.pcm == undisturbed.pcm
    assert (received.talkers if stage == "talker" else received.codecs)[-1] == f"{stage}-1"


async def test_a_request_whose_owners_die_three_times_fails_with_a_reason() -> None:
    async with pipeline(0, 0, lease_seconds=0.05) as stages:
        connector = stages.connector()
        await submit(connector, request("a"))
        for attempt in range(3):
            # This replica claims the request and then does nothing.
            consumer = stages.connector().consumer(Stage.TALKER, f"dead-{attempt}")
            claims: list[Claim] = []
            while not claims:
                claims = [*await consumer.take_over(1)] or [*await consumer.claim(1)]
        await stages.talker()
        await stages.codec()
        received = await receive(connector, "a")
    assert received.end.reason is EndReason.ERROR
    assert "gave up" in received.end.message
    assert received.end.retry_after > 0


UNDECODABLE = {
    "out of range": (Position(1), codes_entry(np.full(16, 999, "<i2").tobytes())),
    "negative": (Position(1), codes_entry(np.full(16, -1, "<i2").tobytes())),
    "torn": (Position(1), codes_entry(np.ones(7, "<i2").tobytes())),
    "gap": (Position(3), codes_entry(np.ones(32, "<i2").tobytes())),
    "without a segment": (Position(1), Codes(np.ones(16, "<i2").tobytes())),
    "of a reference": (REFERENCE_POSITION, Reference(np.full(16, 999, "<i2").tobytes())),
    "wrong checksum": (Position(1), Codes(np.ones(16, "<i2").tobytes(), segment=BEGINNING, checksum=1)),
}


async def test_a_late_refusal_concerns_only_the_claim_that_wrote_the_entry() -> None:
    """The request may have been claimed again meanwhile."""
    async with pipeline() as stages:
        await submit(stages.connector(), request("a", " ".join(NEIGHBOURS)))
        talker = stages.worker("talker")
        await until(lambda: "a" in talker.rows, "the request has a row")
        claim = talker.ownership.claims["a"]
        entry = talker.output(claim, Position(1), Codes(b""))
        talker._refused(msgspec.structs.replace(entry, fence=Fence(Stage.TALKER, "0:earlier")), Gone())
        assert talker.ownership.claims["a"] is claim
        talker._refused(entry, Gone())
        assert "a" not in talker.ownership.claims


async def test_undecodable_codes_end_only_their_stream() -> None:
    async with pipeline(0, 1) as stages:
        connector = stages.connector()
        for name, (position, entry) in UNDECODABLE.items():
            await submit(connector, request(name))
            assert await Owner(connector).append([StreamEntry(name, StreamKind.CODES, position, entry)]) == [None]
            received = await receive(connector, name)
            assert received.end.reason is EndReason.ERROR
            mismatch = "the talker's checksums do not match its codes"
            assert (mismatch if name == "wrong checksum" else "codes the codec cannot decode") in received.end.message
        await stages.talker()
        assert (await synthesize(connector, request("good"))).end.reason is EndReason.STOP


async def test_frames_of_a_stream_that_is_ahead_share_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "HELD_FRAMES", 5)
    monkeypatch.setattr(holding, "HELD_LEAD_SECONDS", -math.inf)
    async with pipeline() as stages:
        connector = stages.connector()
        await submit(connector, request("a"))
        received = await receive(connector, "a")
        entries = await connector.history("a", StreamKind.CODES)
    frames = [item.position.frames for item in entries if isinstance(item.entry, Codes)]
    assert frames == [*range(5, frames[-1], 5), frames[-1]]
    assert len(frames) > 2 and frames[-1] == received.chunks[-1], "the end publishes what is held"


async def test_frames_that_another_talkers_entry_repeats_are_decoded_once() -> None:
    """A fail-over may lose entries that the codec has read. The next talker's entries may begin before them."""
    codes = np.random.default_rng(3).integers(0, 64, (9, FAMILY.code_groups)).astype("<i2")

    async def audio(*entries: slice) -> bytes:
        async with pipeline(0, 0) as stages:
            await stages.codec(chunk_ramp=(2,))
            connector = stages.connector()
            await submit(connector, request("a"))
            for part in entries:
                written = codes_entry(codes[part].tobytes(), codes[: part.start].tobytes())
                entry = StreamEntry("a", StreamKind.CODES, Position(part.stop), written)
                assert await Owner(connector).append([entry]) == [None]
            end = StreamEntry("a", StreamKind.CODES, Position(9, END_SEQUENCE), stop_after(codes.tobytes()))
            assert await Owner(connector).append([end]) == [None]
            return (await receive(connector, "a")).pcm

    assert await audio(slice(0, 4), slice(2, 7), slice(7, 9)) == await audio(slice(0, 9))


CODES = np.random.default_rng(3).integers(0, 64, (9, FAMILY.code_groups)).astype("<i2").tobytes()
FRAME_BYTES = 2 * FAMILY.code_groups


def codes_of(frames: bytes, first: int, last: int) -> StreamEntry:
    """The frames `first` to `last` of a stream of code frames, counted from 1."""
    before, here = frames[: (first - 1) * FRAME_BYTES], frames[(first - 1) * FRAME_BYTES : last * FRAME_BYTES]
    return StreamEntry("a", StreamKind.CODES, Position(last), codes_entry(here, before))


def end_of(frames: bytes) -> StreamEntry:
    position = Position(len(frames) // FRAME_BYTES, END_SEQUENCE)
    return StreamEntry("a", StreamKind.CODES, position, stop_after(frames))


def lose_codes(stages: Pipeline, after: int) -> None:
    """Loses the codes after a frame, as a fail-over does."""
    stream, redis = stages.streams.keys.stream("a", StreamKind.CODES), stages.streams.raw
    redis.xdel(stream, *(entry for entry, _ in redis.xrange(stream, f"({after}-0", "+")))
    redis.execute_command("XSETID", stream, f"{after}-0")


@pytest.mark.parametrize("published", [2, 4], ids=["without", "with"])
async def test_codes_that_were_generated_again_differently_are_decoded_from_the_first_one(published: int) -> None:
    """Redis has lost frames after the second one, and another talker has sampled other ones: with or without audio."""
    other = CODES[: 2 * FRAME_BYTES] + CODES[4 * FRAME_BYTES :]
    async with pipeline(0, 0) as stages:
        codec = await stages.codec(chunk_ramp=(2,))
        connector = stages.connector()
        await submit(connector, request("a"))
        former = codes_of(CODES, 1, 2), codes_of(CODES, 3, published + 1)
        assert await Owner(connector).append(former) == [None, None]
        await receive(connector, "a", until_frames=published)
        await until(lambda: codec.rows["a"].received == published + 1, "the codec has read what is lost")
        lose_codes(stages, after=2)
        successor = Owner(stages.connector())
        assert await successor.append([codes_of(other, 3, 6), codes_of(other, 7, 7), end_of(other)]) == [None] * 3
        received = await receive(connector, "a")
        history = await connector.history("a", StreamKind.AUDIO)
    assert received.end.reason is EndReason.STOP
    checksums = [unpack_checksums(item.entry.checksums) for item in history if isinstance(item.entry, Audio)]
    continues = [before[-1] == after[0] for before, after in pairwise(checksums)]
    assert continues.count(False) == (published > 2), "audio of lost codes is not continued without notice"
    async with pipeline(0, 0) as stages:
        await stages.codec(chunk_ramp=(2,))
        connector = stages.connector()
        await submit(connector, request("a"))
        assert await Owner(connector).append([codes_of(other, 1, 7), end_of(other)]) == [None, None]
        expected = (await receive(connector, "a")).pcm
    assert received.pcm[published * FAMILY.frame_bytes :] == expected[published * FAMILY.frame_bytes :]


async def test_requests_left_after_the_drain_timeout_are_released_at_once() -> None:
    async with pipeline() as stages:
        undisturbed = await synthesize(stages.connector(), request("a"))
        await submit(stages.connector(), request("b", seed=request("a").seed))
        await receive(stages.connector(), "b", until_frames=4)
        talker = stages.workers.pop(0)
        await talker.drain(0.0)
        await talker.close()
        successor = await stages.talker("talker-1")
        received = await receive(stages.connector(), "b")
        claims = successor.metrics.registry.get_sample_value("syrinx_takeovers_total", {"stage": "talker"})
    assert received.pcm == undisturbed.pcm
    assert claims == 1


async def test_a_burst_waits_in_the_queue_and_not_in_a_replica() -> None:
    async with pipeline() as stages:
        talker = stages.workers[0]
        tasks = [
            asyncio.create_task(synthesize(stages.connector(), request(f"r{index}", NEIGHBOURS[4])))
            for index in range(12)
        ]
        unstarted = []

        def all_done() -> bool:
            started = sum(row.first_frame_at is not None for row in talker.rows.values())
            unstarted.append(len(talker.ownership.claims) - started)
            return all(task.done() for task in tasks)

        await until(all_done, "all have generated")
        assert all(task.result().end.reason is EndReason.STOP for task in tasks)
    assert 1 <= max(unstarted) <= MAX_UNSTARTED + 1, "one more while an end is written"
