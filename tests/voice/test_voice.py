"""The bundled voice through the whole running pipeline. Noise scores 0.02, espeak-ng 0.98 to 1.00."""

import numpy as np
import pytest

from support.intelligibility import SENTENCES, recognizer, speak_all
from support.local_pipeline import local_pipeline
from syrinx_operator.resource.spec import default_pipeline
from syrinx_stages.contract.family import FAMILY

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
def test_noise_is_not_identified(voice_recognizer):
    """The recognizer can fail."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(0, 3000, 2 * FAMILY.sample_rate).astype("<i2").tobytes() for _ in SENTENCES]
    assert voice_recognizer.score(noise)[0] <= 0.1
