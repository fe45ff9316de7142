"""wyoming_openai, as Home Assistant uses it: the server as a process, asked over the Wyoming protocol."""

import asyncio
import socket
import sys

from report import API_URL, OUT, TEXT, Report
from wyoming.audio import AudioChunk
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "wyoming_openai", "--uri", f"tcp://127.0.0.1:{port}", "--tts-openai-url", API_URL]
    command += ["--tts-models", "tts-1", "--tts-streaming-models", "gpt-4o-mini-tts"]
    with (OUT / "server.log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        await converse(server, port)
    finally:
        server.terminate()
        await server.wait()


async def converse(server: asyncio.subprocess.Process, port: int) -> None:
    report = Report()
    programs = await describe(server, port)
    streaming = {program.supports_synthesize_streaming: program for program in programs}
    await synthesize(report, port, "Synthesize", [Synthesize(TEXT, SynthesizeVoice(streaming[False].voices[0].name))])
    pieces = [SynthesizeChunk(word + " ") for word in TEXT.split()]
    start = SynthesizeStart(SynthesizeVoice(streaming[True].voices[0].name))
    await synthesize(report, port, "text in pieces", [start, *pieces, SynthesizeStop()], last=SynthesizeStopped)
    report.write()


async def describe(server: asyncio.subprocess.Process, port: int) -> list:
    """What Home Assistant asks for first."""
    async with asyncio.timeout(60):
        while server.returncode is None:
            try:
                async with AsyncTcpClient("127.0.0.1", port) as client:
                    await client.write_event(Describe().event())
                    while event := await client.read_event():
                        if Info.is_type(event.type):
                            return Info.from_event(event).tts
            except ConnectionRefusedError:
                await asyncio.sleep(0.1)
    raise SystemExit((OUT / "server.log").read_text())


async def synthesize(report: Report, port: int, name: str, events: list, last: type | None = None) -> None:
    with report.case(name) as case:
        audio, rate = b"", 0
        async with asyncio.timeout(60), AsyncTcpClient("127.0.0.1", port) as client:
            for each in events:
                await client.write_event(each.event())
            while event := await client.read_event():
                if AudioChunk.is_type(event.type):
                    case.hear()
                    chunk = AudioChunk.from_event(event)
                    audio, rate = audio + chunk.audio, chunk.rate
                elif event.type == "error":
                    raise SystemExit(f"{name}: {event.data}")
                elif event.type == ("synthesize-stopped" if last else "audio-stop"):
                    break
        case.save(audio, "pcm", rate)


asyncio.run(main())
