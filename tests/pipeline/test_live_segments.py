"""Text of several sentences that arrives while it is spoken: the audio is that of the whole text, whatever happens."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from support.speech_socket import connected, serving
from support.stages import Pipeline, ReceivedAudio, pipeline, receive, request, submit, synthesize
from support.waiting import until
from support.writing_text import Writer, cuts
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.model.describe import describe
from syrinx_stages.scheduling import talker as scheduler
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.service import TalkerService

pytestmark = pytest.mark.virtual

READING = describe("bundled").reading
SENTENCES = ["The dog ran home.", "Who saw it, and when?", "Mr. Grey paid $5.50 for 2 lb.", "Nobody came!"]
TEXT = " ".join(SENTENCES)
ENGLISH = {"languages": ("english",), "non_streaming_text": False}


def streamed(characters: int, text: str = TEXT, **fields: object) -> SpeechRequest:
    return request("a", text[:characters], streams_text=True, **ENGLISH, **fields)


async def write(writer: Writer, text: str, chance: random.Random) -> None:
    """Writes the rest of a text, with pauses that are shorter or longer than the speech of what is written."""
    for piece in cuts(text[writer.at :], chance):
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.0, 0.3, 3.0)))
        assert await writer.write(piece) is None
    assert await writer.end() is None


async def speak(
    stages: Pipeline, chance: random.Random, kills: int = 0, text: str = TEXT, **fields: object
) -> ReceivedAudio:
    """Speaks a text that arrives in random pieces. Kills a talker at random moments."""
    gateway, item = stages.connector(), streamed(chance.choice((8, 13, 30)), text, **fields)
    ticket = await submit(gateway, item)
    receiving = asyncio.create_task(receive(stages.connector(), "a"))
    writing = asyncio.create_task(write(Writer(gateway, item), text, chance))
    for number in range(kills):
        await asyncio.sleep(chance.uniform(0.5, 8.0))
        [talker] = [worker for worker in stages.workers if isinstance(worker, TalkerService)]
        await stages.talker(f"successor-{number}")
        await stages.kill(talker)
    received = await receiving
    await writing
    await gateway.release(ticket)
    return received


async def whole(stages: Pipeline, text: str = TEXT, **fields: object) -> ReceivedAudio:
    """Speaks a whole text, whose segments are those of the text that streams in."""
    return await synthesize(stages.connector(), request("a", text, **ENGLISH, **fields))


async def test_the_audio_is_that_of_the_whole_text_however_it_arrives() -> None:
    async with pipeline(reading=READING) as stages:
        expected = await whole(stages)
        assert expected.end is not None and expected.end.reason is EndReason.STOP
        for seed in range(4):
            received = await speak(stages, random.Random(seed))
            assert (received.pcm, received.end) == (expected.pcm, expected.end), f"seed {seed}"
        await until(lambda: not stages.worker("talker").ownership.claims, "the request is released")
        assert len(stages.streams) == 0


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.night) for seed in range(2, 6))])
async def test_a_takeover_at_any_moment_changes_nothing(seed: int) -> None:
    """Also if the frames of all segments are sent as they come."""
    async with pipeline(reading=READING) as stages:
        fields = {} if seed % 2 == 0 else {"checks": False, "max_frames": 40}
        expected = await whole(stages, **fields)
        received = await speak(stages, random.Random(seed), kills=2, **fields)
        assert (received.pcm, received.end) == (expected.pcm, expected.end)


async def between(stages: Pipeline, text: str = TEXT[:25]) -> tuple[Writer, asyncio.Task[ReceivedAudio]]:
    """Begins to speak a text of which the first sentence is complete, and waits until it is spoken."""
    gateway, item = stages.connector(), streamed(8, text)
    await submit(gateway, item)
    receiving, writer = asyncio.create_task(receive(stages.connector(), "a")), Writer(gateway, item)
    await writer.write(text[8:])
    talker = stages.worker("talker")
    await until(lambda: "a" in talker.rows and talker.rows["a"].speech.number == 1, "the first sentence is spoken")
    return writer, receiving


async def test_a_row_between_segments_waits_for_text_and_another_talker_goes_on() -> None:
    async with pipeline(reading=READING) as stages:
        expected = await whole(stages)
        writer, receiving = await between(stages)
        for name in ("second", "third"):
            talker = stages.worker("talker")
            row = talker.rows["a"]
            assert row.waits_for_text and not row.resident
            await asyncio.sleep(10)
            found = talker._schedule(asyncio.get_running_loop().time(), 16)
            assert (found.ids, found.late, found.abandoned) == ([], [], [])
            successor = await stages.talker(name)
            await stages.kill(talker)
            await until(lambda successor=successor: "a" in successor.rows, "another talker has it")
        await write(writer, TEXT, random.Random(1))
        received = await receiving
        assert (received.pcm, received.end) == (expected.pcm, expected.end)


async def test_the_end_of_the_text_ends_a_row_that_waits() -> None:
    async with pipeline(reading=READING) as stages:
        expected = await whole(stages, SENTENCES[0])
        writer, receiving = await between(stages, SENTENCES[0] + " … 😀 ")
        await writer.end()
        received = await receiving
        assert (received.pcm, received.end) == (expected.pcm, expected.end), "what has no words is not spoken"


async def test_a_row_between_segments_is_freed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "TEXT_TIMEOUT", 20.0)
    async with pipeline(reading=READING) as stages:
        writer, receiving = await between(stages)
        await asyncio.sleep(15)
        await writer.write(TEXT[25:30])
        await asyncio.sleep(15)
        assert not receiving.done(), "text has come"
        received = await receiving
        assert received.end is not None and received.end.reason is EndReason.CANCELLED
        assert "no text has arrived" in received.end.message


class EndsEarly(EagerTalkerEngine):
    """The bundled voice, which ends the first segment after a few frames."""

    def launch(self, ids: Sequence[str]) -> dict[str, bytes | End]:
        early = {each: End(EndReason.STOP) for each in ids if "/" not in each and self._rows[each].frames >= 2}
        others = [each for each in ids if each not in early]
        return {**early, **(super().launch(others) if others else {})}


async def test_a_first_segment_that_ends_before_its_text_is_judged_with_its_text() -> None:
    async with pipeline(reading=READING, talker_engine=EndsEarly) as stages:
        expected = await whole(stages)
        assert expected.end is not None and expected.end.reason is EndReason.INCOMPLETE
        for seed in range(2):
            received = await speak(stages, random.Random(seed))
            assert received.pcm == expected.pcm
            assert received.end == expected.end


async def test_all_sentences_are_spoken_whatever_the_seed() -> None:
    """At once, this voice would often end after one of them."""
    text = " ".join(["The dog ran home.", "It was late.", "Who saw it?", "Nobody came."] * 2)
    async with pipeline(reading=READING) as stages:
        for seed in range(3):
            received = await speak(stages, random.Random(seed), text=text, seed=seed)
            assert received.end is not None and received.end.reason is EndReason.STOP
            assert received.pcm == (await whole(stages, text, seed=seed)).pcm


async def test_a_pause_between_segments_is_no_underrun_and_outlives_the_stall_timeout() -> None:
    async with pipeline(reading=READING) as stages, serving(stages.streams) as (url, _, registry):
        async with connected(url) as client:
            await client.send("session.config", text_mode="tokens", seed=3)
            await client.send("input.text", text=TEXT[:25])
            await client.until("audio.start")
            talker = stages.worker("talker")
            await until(lambda: any(row.speech.number for row in talker.rows.values()), "the first sentence is spoken")
            for piece in (TEXT[25:30], TEXT[30:]):
                await asyncio.sleep(25)
                await client.send("input.text", text=piece)
            await client.send("input.done")
            done = await client.until("audio.done")
        assert (done["finish_reason"], done["spoken_characters"]) == ("stop", len(TEXT))
        labels = {"task_type": "CustomVoice"}
        assert registry.get_sample_value("syrinx_underruns_total", labels) == 0
        outcome = {**labels, "outcome": "well", "arm": ""}
        assert registry.get_sample_value("syrinx_stream_outcomes_total", outcome) == 1
