"""Measures a running pipeline's intelligibility on fifty held-out sentences with words of the training corpus."""

from __future__ import annotations

import asyncio

import httpx

from training.corpus import held_out
from training.intelligibility import Recognizer

SENTENCES = [sentence.text for sentence in held_out("templates")]


def recognizer() -> Recognizer:
    """Returns a recognizer of the sentences."""
    return Recognizer(SENTENCES)


async def speak_all(url: str, concurrency: int, *, voice: str = "us", streaming_text: bool = False) -> list[bytes]:
    """Returns the PCM of every sentence, with the official sampling parameters."""
    semaphore = asyncio.Semaphore(concurrency)

    async def speak(client: httpx.AsyncClient, number: int, sentence: str) -> bytes:
        body = {"input": sentence, "voice": voice, "response_format": "pcm", "seed": number}
        body["non_streaming_mode"] = not streaming_text
        async with semaphore:
            response = await client.post(f"{url}/v1/audio/speech", json=body)
        assert response.status_code == 200, response.text
        return response.content

    async with httpx.AsyncClient(timeout=120) as client:
        return await asyncio.gather(*(speak(client, *each) for each in enumerate(SENTENCES)))
