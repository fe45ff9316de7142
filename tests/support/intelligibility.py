"""Measures a running pipeline's intelligibility on fifty held-out sentences with words of the training corpus."""

from __future__ import annotations

import asyncio
import difflib
import itertools
import random
from collections import Counter
from collections.abc import Iterator

import httpx
import numpy as np

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from training.data.corpus import held_out
from training.judging.intelligibility import Recognizer

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


def between_pauses(pcm: bytes, seconds: float = 0.3) -> Iterator[bytes]:
    """Yields what lies between silence of at least so many seconds, in the middle of which it is divided."""
    audible = np.flatnonzero(np.abs(np.frombuffer(pcm, "<i2").astype(int)) >= AUDIBLE_PEAK)
    ends = np.flatnonzero(np.diff(audible) > seconds * FAMILY.sample_rate)
    cuts = [0, *((audible[ends] + audible[ends + 1]) // 2).tolist(), len(pcm) // 2]
    for start, end in itertools.pairwise(cuts):
        yield pcm[2 * start : 2 * end]


def word_errors(spoken: list[str], recognized: list[str]) -> Counter[str]:
    """Returns how many words are replaced, lost and doubled."""
    errors: Counter[str] = Counter()
    for _, start, end, first, last in difflib.SequenceMatcher(None, spoken, recognized, autojunk=False).get_opcodes():
        if spoken[start:end] != recognized[first:last]:
            both = min(end - start, last - first)
            errors += Counter(replaced=both, lost=end - start - both, doubled=last - first - both)
    return errors


def long_text(words: int, seed: int = 0) -> list[str]:
    """Returns sentences with at least so many words in all, in random order."""
    order, sentences = random.Random(seed), []
    while sum(len(sentence.split()) for sentence in sentences) < words:
        sentences += order.sample(SENTENCES, len(SENTENCES))
    return sentences
