"""Can a recogniser tell which sentence was said? Fifty whose words the bundled voice knows and which it never saw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import soxr
from pocketsphinx import Decoder

from syrinx_stages.contract.audio import SAMPLE_RATE

SENTENCES = Path(__file__).with_name("held50.txt").read_text().splitlines()
_RECOGNISER_RATE = 16_000
_SILENCE = bytes(2 * SAMPLE_RATE // 10)
"""Around each sentence: a grammar's utterances start and end in silence, and without it some are given up unheard."""


def recogniser(directory: Path) -> Decoder:
    """Hears one of the sentences in whatever it is given; its grammar is written to `directory`."""
    grammar = directory / "sentences.gram"
    grammar.write_text(f"#JSGF V1.0; grammar sentences; public <sentence> = {' | '.join(SENTENCES)};")
    return Decoder(samprate=_RECOGNISER_RATE, lm=None, jsgf=str(grammar), loglevel="FATAL")


async def speak_all(url: str, at_once: int) -> list[bytes]:
    """Every sentence's PCM, with official sampling."""
    turns = asyncio.Semaphore(at_once)

    async def speak(client: httpx.AsyncClient, number: int, sentence: str) -> bytes:
        text = f"{sentence[0].upper()}{sentence[1:]}."
        body = {"input": text, "voice": "us", "response_format": "pcm", "seed": number}
        async with turns:
            response = await client.post(f"{url}/v1/audio/speech", json=body)
        assert response.status_code == 200, response.text
        return response.content

    async with httpx.AsyncClient(timeout=120) as client:
        return await asyncio.gather(*(speak(client, *each) for each in enumerate(SENTENCES)))


def score(decoder: Decoder, audio: Sequence[bytes]) -> tuple[float, list[str]]:
    """The share of sentences that are identified, and those that are not."""
    heard = [_recognised(decoder, pcm) for pcm in audio]
    missed = [f"{said!r} heard as {got!r}" for said, got in zip(SENTENCES, heard, strict=True) if said != got]
    return 1 - len(missed) / len(SENTENCES), missed


def _recognised(decoder: Decoder, pcm: bytes) -> str:
    samples = soxr.resample(np.frombuffer(_SILENCE + pcm + _SILENCE, dtype="<i2"), SAMPLE_RATE, _RECOGNISER_RATE)
    decoder.start_utt()
    decoder.process_raw(samples.astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    heard = decoder.hyp()
    return str(heard.hypstr) if heard else ""
