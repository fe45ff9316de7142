"""Text on its way to the talker survives a Redis that loses it."""

import asyncio
import itertools
import math
from collections.abc import Sequence

from syrinx_stages.connector.base import Behind, ConnectorError, Gone, StreamEntry
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, Position
from syrinx_stages.contract.messages import Segment, SpeechRequest, TaskType, Text, TextEnd
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.gateway.speech import live_text
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.normalization.reading import Reading

TOKENIZER = IMPLEMENTATION.load_tokenizer("bundled")


def live(**fields: object) -> LiveText:
    request = SpeechRequest(**{"id": "a", "accepted_at": 0.0, "text": "", "task_type": TaskType.BASE, **fields})
    return LiveText(request, Reading(single_sentences=True), TOKENIZER)


class Stream:
    """A text stream that can lose its entries."""

    def __init__(self) -> None:
        self.entries: list[StreamEntry] = []
        self.exists = True
        self.failures = 0

    @property
    def last(self) -> Position:
        return self.entries[-1].position if self.entries else STREAM_CREATED

    async def append(self, _: str, after: Position, entries: Sequence[StreamEntry]) -> Gone | Behind | None:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise ConnectorError("unreachable")
        if not self.exists:
            return Gone("gone")
        if after != self.last:
            return Behind("behind", self.last)
        self.entries += entries
        return None

    @property
    def text(self) -> str:
        return "".join(each.entry.text for each in self.entries if isinstance(each.entry, Text))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_is_lost_is_written_again(monkeypatch) -> None:
    monkeypatch.setattr(live_text, "RETRY_SECONDS", 0.0)
    text, stream = live(), Stream()
    text.feed("The old ")
    text.restart(len("The old "))
    writing = asyncio.create_task(text.write("a", stream.append))
    text.feed("teacher ")
    await settle()
    text.feed("waited")
    await settle()
    assert [each.position for each in stream.entries] == [Position(16), Position(22)]
    stream.failures = 2
    text.feed(".")
    await settle()
    assert stream.text == "teacher waited."
    del stream.entries[1:]
    text.check()
    await settle()
    assert stream.text == "teacher waited."
    text.end()
    await settle()
    assert stream.entries[-1].position == Position(23, END_SEQUENCE)
    assert stream.entries[-1].entry == TextEnd()
    del stream.entries[1:]
    text.check()
    await settle()
    assert stream.text == "teacher waited." and isinstance(stream.entries[-1].entry, TextEnd)
    # The request is lost, and submitted again with its whole text.
    stream.entries.clear()
    stream.exists = False
    text.check()
    await settle()
    assert not stream.entries
    stream.exists = True
    text.restart(len(text.text))
    await settle()
    assert stream.text == "" and stream.entries[0].position == Position(23, END_SEQUENCE)
    writing.cancel()


async def test_a_request_starts_with_a_token_or_the_end() -> None:
    text = live()
    waiting = asyncio.create_task(text.wait_startable())
    text.feed("The")
    await settle()
    assert not waiting.done()
    text.feed(" old")
    await settle()
    assert waiting.done() and text.frames(None) == 0
    text.feed(" teacher")
    assert text.frames(None) == 1
    text = live(has_reference=True)
    waiting = asyncio.create_task(text.wait_startable())
    text.feed("The old teacher waited for two days. And")
    await settle()
    assert not waiting.done()
    text.feed(" then")
    await settle()
    assert waiting.done(), "the first segment is complete"


async def test_positions_are_those_of_the_written_text() -> None:
    text, stream = live(languages=("english",), lexicon={"now": "at present"}), Stream()
    writing = asyncio.create_task(text.write("a", stream.append))
    text.feed("It costs $5.")
    text.feed("50 now, or less")
    assert text.place(0) is None
    text.feed(".  And now or never")
    text.end()
    await settle()
    assert stream.text == "It costs $5.50 now, or less.  And now or never"
    assert stream.last == Position(len(stream.text), END_SEQUENCE)
    assert [stream.text[slice(*text.place(number))] for number in range(2)] == [
        "It costs $5.50 now, or less.", "And now or never"
    ]  # fmt: skip
    spoken = {stream.text[: text.spoken_characters(frames, None)] for frames in range(200)}
    words = "It", " costs", " $5.50", " now,", " or", " less."
    assert spoken == {"", "It costs $5.50 now", *itertools.accumulate(words)}, "a number and a respelling are one word"
    second = Segment(1, 0, 0, frames=50)
    spoken = {stream.text[: text.spoken_characters(frames, second)].partition(".  ")[2] for frames in range(200)}
    assert spoken == {"", "And", "And now", "And now or", "And now or never"}
    writing.cancel()


async def test_text_allows_frames_up_to_the_end_of_the_last_segment_that_it_has() -> None:
    text, second = live(), Segment(1, 0, 0, frames=50)
    text.feed("The old teacher waited for a day or two. Then he")
    assert 0 < text.frames(None) < 40, "the least that the first segment has, as the second one is not complete"
    text.feed(" went home. Nobody knew")
    assert text.frames(None) == math.inf
    assert 50 < text.frames(second) < 70
    text.end()
    assert text.frames(second) == math.inf
