"""How well a running pipeline is understood: fifty sentences whose words the bundled voice knows, none it ever saw."""

from __future__ import annotations

import asyncio

import httpx

from training.corpus import held_out
from training.hearing import Recogniser

SENTENCES = [sentence.text for sentence in held_out("templates")]


def recogniser() -> Recogniser:
    """Hears one of the sentences in whatever it is given."""
    return Recogniser(SENTENCES)


async def speak_all(url: str, at_once: int, *, voice: str = "us", streaming_text: bool = False) -> list[bytes]:
    """Every sentence's PCM, with official sampling."""
    turns = asyncio.Semaphore(at_once)

    async def speak(client: httpx.AsyncClient, number: int, sentence: str) -> bytes:
        body = {"input": sentence, "voice": voice, "response_format": "pcm", "seed": number}
        body["non_streaming_mode"] = not streaming_text
        async with turns:
            response = await client.post(f"{url}/v1/audio/speech", json=body)
        assert response.status_code == 200, response.text
        return response.content

    async with httpx.AsyncClient(timeout=120) as client:
        return await asyncio.gather(*(speak(client, *each) for each in enumerate(SENTENCES)))
