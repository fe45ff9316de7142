"""LiveKit Agents with the adapter of examples/agents."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
from agents import BASE_URL, FIELDS, LONG, TEXT, TOO_LONG, Cases, relay, resident, seconds_until_free, words
from livekit import rtc
from livekit.agents import Agent, AgentSession, APIConnectOptions, APIError
from livekit.agents.voice import io
from livekit.plugins import openai
from syrinx_livekit import TTS, Interrupted, SynthesizeStream

ONCE = APIConnectOptions(max_retry=0)


async def write(stream: SynthesizeStream) -> float:
    """Pushes words as an LLM writes them. Returns when the last came."""
    async for word in words():
        stream.push_text(word)
    stream.end_input()
    return time.time()


async def speak(tts: TTS) -> tuple[bytes, float, float]:
    """Returns the audio, when the first came, and when the last word was pushed."""
    audio, heard = b"", 0.0
    async with tts.stream() as stream:
        writing = asyncio.create_task(write(stream))
        async for event in stream:
            heard = heard or time.time()
            audio += bytes(event.frame.data)
        return audio, heard, await writing


async def complete_text(cases: Cases, tts: TTS) -> None:
    audio = b""
    async with tts.synthesize(TEXT) as stream:
        async for event in stream:
            audio += bytes(event.frame.data)
    cases.add("synthesize", audio)


async def barge_in(cases: Cases, tts: TTS) -> None:
    """Closes the stream after two seconds of audio, as a session does when the user speaks."""
    told: list[Interrupted] = []
    tts.on("interrupted", told.append)
    stream = tts.stream()
    stream.push_text(LONG)
    stream.end_input()
    seconds = 0.0
    async for event in stream:
        seconds += event.frame.duration
        if seconds > 2:
            break
    assert resident() == 1
    began = time.monotonic()
    await stream.aclose()
    closed = time.monotonic() - began
    [interrupted] = told
    cases.add("barge-in", closed=closed, free=await seconds_until_free(), **interrupted._asdict())


class Speaker(io.AudioOutput):
    """Keeps the audio of a session, and reports it as played when it is interrupted or complete."""

    def __init__(self) -> None:
        super().__init__(label="speaker", capabilities=io.AudioOutputCapabilities(pause=False))
        self.audio = b""
        self.seconds = 0.0
        self._plays = False

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self._plays = True
        self.audio += bytes(frame.data)
        self.seconds += frame.duration

    def flush(self) -> None:
        super().flush()
        self._finish(interrupted=False)

    def clear_buffer(self) -> None:
        self._finish(interrupted=True)

    def _finish(self, interrupted: bool) -> None:
        if self._plays:
            self._plays = False
            self.on_playback_finished(playback_position=self.seconds, interrupted=interrupted)


class Writer(Agent):
    """An agent whose LLM writes the text."""

    async def llm_node(self, *_: object) -> AsyncIterator[str]:
        async for word in words():
            yield word


async def session(cases: Cases, tts: TTS) -> None:
    """A session speaks an answer, and then another one that is interrupted."""
    told: list[Interrupted] = []
    tts.on("interrupted", told.append)
    speaker = Speaker()
    async with AgentSession(tts=tts, llm=openai.LLM(model="none", api_key="none")) as running:
        running.output.audio = speaker
        await running.start(Writer(instructions=""))
        await running.generate_reply(user_input="What happened?")
        cases.add("an answer in AgentSession", speaker.audio)
        speaker.seconds = 0.0
        speech = running.say(LONG)
        while speaker.seconds < 2:
            await asyncio.sleep(0.01)
        assert resident() == 1
        began = time.monotonic()
        speech.interrupt()
        while not told:
            await asyncio.sleep(0.002)
        closed = time.monotonic() - began
        free = await seconds_until_free()
    cases.add("barge-in in AgentSession", closed=closed, free=free, **told[-1]._asdict())


async def failure(cases: Cases, name: str, tts: TTS, text: str) -> None:
    try:
        async with tts.stream(conn_options=ONCE) as stream:
            stream.push_text(text)
            stream.end_input()
            async for _ in stream:
                pass
    except APIError as error:
        cases.add(name, error=type(error).__name__, message=error.message, free=await seconds_until_free())


async def main() -> None:
    cases = Cases()
    async with aiohttp.ClientSession() as http:

        def tts(url: str = f"{BASE_URL}/v1", **fields: object) -> TTS:
            return TTS(base_url=url, http_session=http, **(FIELDS | fields))

        audio, heard, written = await speak(tts())
        cases.add("words of an LLM", audio, heard=heard, written=written)
        await complete_text(cases, tts())
        await barge_in(cases, tts())
        await session(cases, tts())
        async with relay() as lossy:
            audio, _, _ = await speak(tts(lossy.url))
            cases.add("lost connection", audio, connections=lossy.connections)
        await failure(cases, "wrong voice", tts(voice="nobody"), TEXT)
        await failure(cases, "too much text", tts(), TOO_LONG)
        await failure(cases, "no gateway", tts("http://127.0.0.1:9/v1"), TEXT)
    cases.write()


asyncio.run(main())
