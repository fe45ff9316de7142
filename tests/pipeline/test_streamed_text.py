"""Requests whose text arrives while it is spoken, through talkers and codecs with the bundled voice."""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from support.stages import Pipeline, ReceivedAudio, pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from support.writing_text import Writer, cuts
from syrinx_stages.contract.messages import EndReason, SpeechRequest
from syrinx_stages.scheduling import codec_rows
from syrinx_stages.scheduling import talker as scheduler

TEXT = "The old teacher found two heavy bags. Who carried them after the storm?"
BEGINNING = "The old teacher "


def streamed(name: str, **fields: object) -> SpeechRequest:
    defaults = {"text": BEGINNING, "streams_text": True, "non_streaming_text": False}
    return request(name, **{**defaults, **fields})


def whole(name: str, text: str = TEXT) -> SpeechRequest:
    return request(name, text, non_streaming_text=False)


async def speak(
    stages: Pipeline, name: str, pieces: Sequence[str], chance: random.Random, **fields: object
) -> ReceivedAudio:
    """Submits a request and writes its text piece by piece."""
    gateway, item = stages.connector(), streamed(name, **fields)
    ticket = await submit(gateway, item)
    receiving = asyncio.create_task(receive(stages.connector(), name))
    writer = Writer(gateway, item)
    for piece in pieces:
        assert await writer.write(piece) is None
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.01, 0.1)))
    assert await writer.end() is None
    received = await receiving
    await gateway.release(ticket)
    return received


@pytest.mark.parametrize("seed", range(3))
async def test_audio_does_not_depend_on_cuts_and_delays(seed: int) -> None:
    chance = random.Random(seed)
    async with pipeline() as stages:
        expected = await synthesize(stages.connector(), whole("a"))
        received = await speak(stages, "a", cuts(TEXT[len(BEGINNING) :], chance), chance)
        assert received.pcm == expected.pcm
        assert received.end == expected.end
        assert received.end is not None and received.end.reason is EndReason.STOP
        await until(lambda: not stages.workers[0].ownership.claims, "the request was released")
        assert len(stages.streams) == 0


NUMBERS, WORDS = "It costs $5.50 in 2024.", "It costs five dollars and fifty cents in twenty twenty-four."
ENGLISH = {"languages": ("english",)}


async def test_numbers_are_normalized_however_they_are_cut() -> None:
    chance = random.Random(3)
    async with pipeline() as stages:
        expected = await synthesize(stages.connector(), whole("a", WORDS))
        assert (await synthesize(stages.connector(), whole("a", NUMBERS))).pcm != expected.pcm
        item = request("a", NUMBERS, non_streaming_text=False, **ENGLISH)
        assert (await synthesize(stages.connector(), item)).pcm == expected.pcm, "a text that has ended"
        for pieces in ([NUMBERS[9:]], list(NUMBERS[9:]), cuts(NUMBERS[9:], chance)):
            received = await speak(stages, "a", pieces, chance, text=NUMBERS[:9], **ENGLISH)
            assert (received.pcm, received.end) == (expected.pcm, expected.end)


async def test_a_lexicon_respells_words_however_they_are_cut() -> None:
    chance, lexicon = random.Random(5), {"teacher found": "teacher lost", "bags": "boxes"}
    respelled = whole("a", TEXT.replace("found", "lost").replace("bags", "boxes"))
    async with pipeline() as stages:
        expected = await synthesize(stages.connector(), respelled)
        for pieces in (list(TEXT[len(BEGINNING) :]), cuts(TEXT[len(BEGINNING) :], chance)):
            received = await speak(stages, "a", pieces, chance, lexicon=lexicon)
            assert (received.pcm, received.end) == (expected.pcm, expected.end)


async def test_the_first_audio_needs_one_token_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec waits for no frame whose text is not written: the first frame is heard alone."""
    monkeypatch.setattr(codec_rows, "STALLED_SECONDS", 2 * DEADLINE)
    async with pipeline() as stages:
        gateway, item = stages.connector(), streamed("a", text="The ")
        await submit(gateway, item)
        received = await receive(stages.connector(), "a", until_frames=1)
        assert (received.chunks, stages.workers[0].rows["a"].produced) == ([1], 1)


async def test_a_row_without_text_is_held_and_another_talker_continues_it() -> None:
    async with pipeline() as stages:
        expected = await synthesize(stages.connector(), whole("a"))
        gateway, item = stages.connector(), streamed("a")
        await submit(gateway, item)
        receiving = asyncio.create_task(receive(stages.connector(), "a"))
        first, writer = stages.workers[0], Writer(gateway, item)
        await writer.write("found two heavy ")
        read = first.engine.open_text(item)
        read.feed(BEGINNING + "found two heavy ")
        before = len(read.ids)
        await until(lambda: "a" in first.rows and first.rows["a"].text_frames == before, "the text is read")
        row = first.rows["a"]
        await until(lambda: row.produced == before, "the row waits for text")
        await asyncio.sleep(0.3)
        assert row.produced == before, "nothing is generated without text"
        assert "a" not in first._schedule(time.monotonic(), 0).late
        second = await stages.talker("talker-1")
        await stages.kill(first)
        await writer.write("bags. Who carried")
        await until(lambda: "a" in second.rows and second.rows["a"].produced > before, "another talker continues")
        await stages.kill(stages.workers[0])  # The codec.
        await stages.codec("codec-1")
        await writer.write(" them after the storm?")
        await writer.end()
        received = await receiving
        assert received.pcm == expected.pcm
        assert list(dict.fromkeys(received.talkers)) == ["talker-0", "talker-1"]


async def test_a_row_without_text_is_freed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "TEXT_TIMEOUT", 0.5)
    async with pipeline() as stages:
        gateway, item = stages.connector(), streamed("a")
        await submit(gateway, item)
        received = await receive(stages.connector(), "a")
        assert received.end is not None and received.end.reason is EndReason.CANCELLED
        assert "no text has arrived" in received.end.message
        await until(lambda: not stages.workers[0].rows, "the row is freed")
        assert "a" not in stages.workers[0].ownership.claims
