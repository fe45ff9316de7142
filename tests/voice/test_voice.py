"""The bundled voice through the whole running pipeline. Noise scores 0.02, espeak-ng 0.98 to 1.00."""

import numpy as np
import pytest

from support.intelligibility import SENTENCES, recogniser, speak_all
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.spec import default_pipeline
from syrinx_stages.contract.family import FAMILY

ENOUGH = 0.94


@pytest.fixture(scope="module")
def hearing():
    return recogniser()


@pytest.mark.voice
@pytest.mark.parametrize(
    ("voice", "streaming_text", "at_once"),
    [("us", False, 1), ("us", False, 8), ("us_m", True, 8), ("us_f", False, 8), ("gb", True, 8)],
)
async def test_the_bundled_voice_is_understood(hearing, voice, streaming_text, at_once):
    async with LocalPipeline(default_pipeline(), port=0) as running:
        audio = await speak_all(running.gateway_url, at_once, voice=voice, streaming_text=streaming_text)
    right, missed = hearing.score(audio)
    print(f"\n{voice}, {at_once} at once: {right:.2f} of {len(SENTENCES)} sentences identified", *missed, sep="\n  ")
    assert right >= ENOUGH, missed


@pytest.mark.voice
def test_noise_is_not_understood(hearing):
    """The measure can fail."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(0, 3000, 2 * FAMILY.sample_rate).astype("<i2").tobytes() for _ in SENTENCES]
    assert hearing.score(noise)[0] <= 0.1
