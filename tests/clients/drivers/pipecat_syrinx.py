"""Pipecat with the adapter of examples/agents."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from agents import BASE_URL, FIELDS, LONG, TEXT, TOO_LONG, Cases, relay, resident, seconds_until_free, words
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner
from syrinx_pipecat import SyrinxTTSService
from syrinx_utterance import SAMPLE_RATE


class Recorder(FrameProcessor):
    """Keeps what passes in a direction."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[float, Frame]] = []
        self.added = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append((time.time(), frame))
        self.added.set()
        await self.push_frame(frame, direction)

    def of_type(self, kind: type[Frame]) -> list[Frame]:
        return [frame for _, frame in self.frames if isinstance(frame, kind)]

    @property
    def audio(self) -> bytes:
        return b"".join(frame.audio for frame in self.of_type(TTSAudioRawFrame))

    @property
    def heard(self) -> float:
        return next(when for when, frame in self.frames if isinstance(frame, TTSAudioRawFrame))

    async def until(self, kind: type[Frame], seconds: float = 0) -> None:
        """Waits for a frame of a type and for so much audio."""
        async with asyncio.timeout(60):
            while not self.of_type(kind) or len(self.audio) < 2 * SAMPLE_RATE * seconds:
                self.added.clear()
                await self.added.wait()


class Bot:
    """A pipeline with the adapter, between recorders of both directions."""

    def __init__(self, tts: SyrinxTTSService) -> None:
        self.tts, self.before, self.after = tts, Recorder(), Recorder()
        self.worker = PipelineWorker(
            Pipeline([self.before, tts, self.after]), params=PipelineParams(enable_metrics=True)
        )

    async def turn(self, text: str | None = None) -> float:
        """Sends the text of an LLM; without one its words as they are written. Returns when the last came."""
        await self.worker.queue_frame(LLMFullResponseStartFrame())
        if text is None:
            async for word in words():
                await self.worker.queue_frame(LLMTextFrame(word))
        else:
            await self.worker.queue_frame(LLMTextFrame(text))
        await self.worker.queue_frame(LLMFullResponseEndFrame())
        return time.time()


@contextlib.asynccontextmanager
async def bot(url: str = f"{BASE_URL}/v1", **fields: object) -> AsyncIterator[Bot]:
    """Runs a pipeline up to its end."""
    settings = SyrinxTTSService.Settings(**{"voice": FIELDS["voice"], "extra": {"seed": FIELDS["seed"]}} | fields)
    running = Bot(SyrinxTTSService(base_url=url, settings=settings))
    runner = WorkerRunner(handle_sigint=False)
    task = asyncio.create_task(runner.run(running.worker))
    try:
        yield running
        await running.worker.queue_frame(EndFrame())
    except BaseException:
        await running.worker.cancel()
        raise
    finally:
        await task


async def words_of_an_llm(cases: Cases) -> None:
    async with bot() as running:
        written = await running.turn()
        await running.after.until(TTSStoppedFrame)
    spoken = "".join(frame.text for frame in running.after.of_type(TTSTextFrame))
    metrics = [data for frame in running.after.of_type(MetricsFrame) for data in frame.data]
    ttfb = [data.value for data in metrics if isinstance(data, TTFBMetricsData) and data.value]
    after = running.after
    assert not running.before.of_type(ErrorFrame)
    cases.add("words of an LLM", after.audio, heard=after.heard, written=written, spoken=spoken, ttfb=ttfb)


async def complete_text(cases: Cases) -> None:
    async with bot() as running:
        await running.worker.queue_frame(TTSSpeakFrame(TEXT))
        await running.after.until(TTSStoppedFrame)
    cases.add("TTSSpeakFrame", running.after.audio)


async def barge_in(cases: Cases) -> None:
    """Interrupts after two seconds of audio; the next turn is spoken."""
    told: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    async with bot() as running:

        @running.tts.event_handler("on_interrupted")
        async def on_interrupted(_: object, context_id: str, text: str, spoken_characters: int) -> None:
            told.put_nowait({"text": text, "spoken_characters": spoken_characters})

        await running.turn(LONG)
        await running.after.until(TTSAudioRawFrame, seconds=2)
        assert resident() == 1
        began = time.time()
        await running.worker.queue_frame(InterruptionFrame())
        interrupted = await asyncio.wait_for(told.get(), 5)
        free = await seconds_until_free()
        last = max(when for when, frame in running.after.frames if isinstance(frame, TTSAudioRawFrame))
        running.after.frames.clear()
        await asyncio.sleep(0.5)
        assert not running.after.of_type(TTSAudioRawFrame), "there was audio after the interruption"
        await running.turn()
        await running.after.until(TTSStoppedFrame)
    cases.add("barge-in", running.after.audio, closed=max(0.0, last - began), free=free, **interrupted)


async def lost_connection(cases: Cases) -> None:
    async with relay() as lossy, bot(lossy.url) as running:
        await running.turn()
        await running.after.until(TTSStoppedFrame)
    assert not running.before.of_type(ErrorFrame)
    cases.add("lost connection", running.after.audio, connections=lossy.connections)


async def failure(cases: Cases, name: str, text: str, **fields: object) -> None:
    async with bot(**fields) as running:
        await running.turn(text)
        await running.before.until(ErrorFrame)
    first = running.before.of_type(ErrorFrame)[0]
    free = await seconds_until_free()
    cases.add(name, error=first.category.name, message=first.error, free=free)


async def main() -> None:
    cases = Cases()
    await words_of_an_llm(cases)
    await complete_text(cases)
    await barge_in(cases)
    await lost_connection(cases)
    await failure(cases, "wrong voice", TEXT, voice="nobody")
    await failure(cases, "too much text", TOO_LONG)
    await failure(cases, "no gateway", TEXT, url="http://127.0.0.1:9/v1")
    cases.write()


asyncio.run(main())
