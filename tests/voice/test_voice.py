"""The bundled voice through the whole running pipeline: can a recogniser tell which sentence was said?

Fifty sentences whose words the voice knows and which it never saw. Noise scores 0.02, espeak-ng 0.98 to 1.00.
"""

import asyncio
from pathlib import Path

import httpx
import numpy as np
import pytest
import soxr
from pocketsphinx import Decoder

from syrinx_operator.local import LocalPipeline
from syrinx_operator.spec import default_pipeline
from syrinx_stages.contract.audio import SAMPLE_RATE

SENTENCES = Path(__file__).with_name("held50.txt").read_text().splitlines()
ENOUGH = 0.90
RECOGNISER_RATE = 16_000
SILENCE = bytes(2 * SAMPLE_RATE // 10)
"""Around each sentence: a grammar's utterances start and end in silence, and without it some are given up unheard."""


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory):
    """Hears one of the sentences in whatever it is given."""
    grammar = tmp_path_factory.mktemp("grammar") / "sentences.gram"
    grammar.write_text(f"#JSGF V1.0; grammar sentences; public <sentence> = {' | '.join(SENTENCES)};")
    return Decoder(samprate=RECOGNISER_RATE, lm=None, jsgf=str(grammar), loglevel="FATAL")


def recognise(recogniser, pcm):
    samples = soxr.resample(np.frombuffer(SILENCE + pcm + SILENCE, dtype="<i2"), SAMPLE_RATE, RECOGNISER_RATE)
    recogniser.start_utt()
    recogniser.process_raw(samples.astype("<i2").tobytes(), full_utt=True)
    recogniser.end_utt()
    heard = recogniser.hyp()
    return heard.hypstr if heard else ""


async def speak_all(url, at_once):
    """Every sentence's PCM, with official sampling."""
    turns = asyncio.Semaphore(at_once)

    async def speak(client, number, sentence):
        text = f"{sentence[0].upper()}{sentence[1:]}."
        body = {"input": text, "voice": "us", "response_format": "pcm", "seed": number}
        async with turns:
            response = await client.post(f"{url}/v1/audio/speech", json=body)
        assert response.status_code == 200, response.text
        return response.content

    async with httpx.AsyncClient(timeout=120) as client:
        return await asyncio.gather(*(speak(client, *each) for each in enumerate(SENTENCES)))


def score(recogniser, audio):
    heard = [recognise(recogniser, pcm) for pcm in audio]
    missed = [f"{said!r} heard as {got!r}" for said, got in zip(SENTENCES, heard, strict=True) if said != got]
    return 1 - len(missed) / len(SENTENCES), missed


@pytest.mark.voice
@pytest.mark.parametrize("at_once", [1, 8])
async def test_the_bundled_voice_is_understood(recogniser, at_once):
    async with LocalPipeline(default_pipeline(), port=0) as running:
        audio = await speak_all(running.gateway_url, at_once)
    right, missed = score(recogniser, audio)
    print(f"\n{at_once} at once: {right:.2f} of {len(SENTENCES)} sentences identified", *missed, sep="\n  ")
    assert right >= ENOUGH, missed


@pytest.mark.voice
def test_noise_is_not_understood(recogniser):
    """The measure can fail."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(0, 3000, 2 * SAMPLE_RATE).astype("<i2").tobytes() for _ in SENTENCES]
    assert score(recogniser, noise)[0] <= 0.1
