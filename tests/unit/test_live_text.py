"""Text on its way to the talker survives a Redis that loses it."""

import asyncio
from collections.abc import Sequence

from syrinx_stages.connector.base import Behind, ConnectorError, Gone, StreamEntry
from syrinx_stages.contract.keys import END_SEQUENCE, STREAM_CREATED, Position
from syrinx_stages.contract.messages import Text, TextEnd
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.gateway.speech import live_text
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.normalization.durations import Durations

TOKENIZER = IMPLEMENTATION.load_tokenizer("bundled")


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
    text, stream = LiveText(StreamedText(TOKENIZER), needs_end=False), Stream()
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
    text = LiveText(StreamedText(TOKENIZER), needs_end=False)
    waiting = asyncio.create_task(text.wait_startable())
    text.feed("The")
    await settle()
    assert not waiting.done()
    text.feed(" old")
    await settle()
    assert waiting.done() and text.frames == 0
    text.feed(" teacher")
    assert text.frames == 1
    text = LiveText(StreamedText(TOKENIZER), needs_end=True)
    waiting = asyncio.create_task(text.wait_startable())
    text.feed("The old teacher waited for two days.")
    await settle()
    assert not waiting.done()
    text.end()
    await waiting


async def test_positions_are_those_of_the_written_text() -> None:
    tokens = StreamedText(TOKENIZER, ("english",))
    text, stream = LiveText(tokens, needs_end=False), Stream()
    writing = asyncio.create_task(text.write("a", stream.append))
    text.feed("It costs $5.")
    assert (tokens.spoken, tokens.languages) == ("It costs ", ("english",))
    text.feed("50 now")
    text.end()
    await settle()
    assert stream.text == "It costs $5.50 now"
    assert stream.last == Position(len(stream.text), END_SEQUENCE)
    assert tokens.spoken == "It costs five dollars and fifty cents now"
    assert tokens.written_end(len("It costs five")) == len("It costs $5.50")
    assert tokens.written_end(len("It costs five")) == len("It costs $5.50")
    assert text.spoken_characters(1000, Durations(), None) == tokens.end_of(1000) == len(stream.text)
    writing.cancel()
