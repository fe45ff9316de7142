"""LiveKit Agents: `synthesize` of the OpenAI plugin, decoded by LiveKit itself."""

import asyncio

from livekit.plugins import openai
from report import API_URL, TEXT, Report


async def main() -> None:
    report = Report()
    await synthesize(report, "synthesize", openai.TTS(base_url=API_URL, api_key="none"))
    await synthesize(report, "with model tts-1", openai.TTS(base_url=API_URL, api_key="none", model="tts-1"))
    await synthesize(report, "with speed 1.25", openai.TTS(base_url=API_URL, api_key="none", speed=1.25))
    report.write()


async def synthesize(report: Report, name: str, tts: openai.TTS) -> None:
    with report.case(name) as case:
        audio = b""
        async with tts.synthesize(TEXT) as stream:
            async for event in stream:
                case.hear()
                audio += bytes(event.frame.data)
        case.save(audio, "pcm", tts.sample_rate)
    await tts.aclose()


asyncio.run(main())
