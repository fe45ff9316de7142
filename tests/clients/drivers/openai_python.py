"""The official Python client: its four ways of getting speech, with OpenAI's names."""

import asyncio
import base64
import json
from collections.abc import Iterator

from openai import AsyncOpenAI, OpenAI
from report import API_URL, OUT, TEXT, Case, Report

REQUEST = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": TEXT}


def main() -> None:
    report = Report()
    client = OpenAI(base_url=API_URL, api_key="none")
    with report.case("write_to_file") as case:
        client.audio.speech.create(**REQUEST).write_to_file(OUT / "speech")
        case.save((OUT / "speech").read_bytes(), "wav")
    with (
        report.case("pcm as it arrives") as case,
        client.audio.speech.with_streaming_response.create(**REQUEST, response_format="pcm") as response,
    ):
        audio = b""
        for chunk in response.iter_bytes():
            case.hear()
            audio += chunk
        case.save(audio, "pcm", 24_000)
    with (
        report.case("server-sent events with mp3") as case,
        client.audio.speech.with_streaming_response.create(
            **REQUEST, response_format="mp3", stream_format="sse"
        ) as response,
    ):
        case.save(events(case, response.iter_lines()), "mp3")
    asyncio.run(asynchronous(report))
    assert REQUEST["model"] in [model.id for model in client.models.list()]
    report.write()


def events(case: Case, lines: Iterator[str]) -> bytes:
    """The audio of the events of a response."""
    audio = b""
    for line in lines:
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if event["type"] == "speech.audio.delta":
                case.hear()
                audio += base64.b64decode(event["audio"])
    return audio


async def asynchronous(report: Report) -> None:
    client = AsyncOpenAI(base_url=API_URL, api_key="none")
    with report.case("wav as it arrives, asynchronous") as case:
        audio = b""
        async with client.audio.speech.with_streaming_response.create(**REQUEST, response_format="wav") as response:
            async for chunk in response.iter_bytes():
                case.hear()
                audio += chunk
        case.save(audio, "wav")


main()
