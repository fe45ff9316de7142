"""The bundled voice through the whole running pipeline. Noise scores 0.02, espeak-ng 0.98 to 1.00."""

from collections import Counter

import httpx
import numpy as np
import pytest

from support.intelligibility import (
    SENTENCES,
    between_pauses,
    long_text,
    recognizer,
    speak_all,
    word_errors,
)
from support.local_pipeline import local_pipeline
from syrinx_operator.resource.spec import default_pipeline
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.normalization.segments import SENTENCE_SECONDS

MIN_IDENTIFIED = 0.94


@pytest.fixture(scope="module")
def voice_recognizer():
    return recognizer()


@pytest.mark.voice
@pytest.mark.parametrize(
    ("voice", "streaming_text", "concurrency"),
    [("us", False, 1), ("us", False, 8), ("us_m", True, 8), ("us_f", False, 8), ("gb", True, 8)],
)
async def test_bundled_voice_is_intelligible(voice_recognizer, voice, streaming_text, concurrency):
    async with local_pipeline(default_pipeline()) as running:
        audio = await speak_all(running.gateway_url, concurrency, voice=voice, streaming_text=streaming_text)
    identified, errors = voice_recognizer.score(audio)
    print(
        f"\n{voice}, concurrency {concurrency}: {identified:.2f} of {len(SENTENCES)} sentences identified",
        *errors,
        sep="\n  ",
    )
    assert identified >= MIN_IDENTIFIED, errors


@pytest.mark.voice
async def test_no_word_of_a_long_text_is_lost_or_doubled(voice_recognizer):
    """2,000 words in one stream are recognized as well as the same sentences one by one."""
    sentences = long_text(2_000)
    body = {"voice": "us", "response_format": "pcm", "seed": 1, "stream": False}

    async def speak(client: httpx.AsyncClient, text: str) -> bytes:
        response = await client.post("/v1/audio/speech", json={**body, "input": text})
        assert response.status_code == 200, response.text
        return response.content

    pipeline = local_pipeline(default_pipeline())
    async with pipeline as running, httpx.AsyncClient(base_url=running.gateway_url, timeout=900) as client:
        whole = await speak(client, " ".join(sentences))
        single = {sentence: await speak(client, sentence) for sentence in SENTENCES}
    pieces = list(between_pauses(whole, SENTENCE_SECONDS - 0.01))
    assert len(pieces) == len(sentences)
    alone = {sentence: voice_recognizer.recognize(pcm).split() for sentence, pcm in single.items()}
    together, apart, count = Counter(), Counter(), 0
    for sentence, piece in zip(sentences, pieces, strict=True):
        words = voice_recognizer.sentences[SENTENCES.index(sentence)].split()
        count += len(words)
        together += word_errors(words, voice_recognizer.recognize(piece).split())
        apart += word_errors(words, alone[sentence])
    seconds = len(whole) / 2 / FAMILY.sample_rate
    print(f"\n{count} words in {len(pieces)} parts, {seconds:.0f} s: {dict(together)}; alone {dict(apart)}")
    assert together.total() <= apart.total() + 0.01 * count


@pytest.mark.voice
def test_noise_is_not_identified(voice_recognizer):
    """The recognizer can fail."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(0, 3000, 2 * FAMILY.sample_rate).astype("<i2").tobytes() for _ in SENTENCES]
    assert voice_recognizer.score(noise)[0] <= 0.1
