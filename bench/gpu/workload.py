"""The benchmark's requests: sentences, with utterance lengths of a published mean."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY

MEAN_SECONDS = 38.0 / 9.1
"""Mean utterance of Seed-TTS EN: 38.0 audio seconds per second at 9.1 requests/s (sglang-omni #1635), 4.18 s."""
LOG_STD = 0.4
"""Standard deviation of the length's logarithm. Our assumption: only the mean is published."""
MIN_SECONDS, MAX_SECONDS = 1.0, 15.0


def length_seconds(quantile: float) -> float:
    """Returns a quantile (0 to 1, exclusive) of the utterance length: log-normal, clipped."""
    mean = math.log(MEAN_SECONDS) - LOG_STD**2 / 2
    return min(max(math.exp(mean + LOG_STD * NormalDist().inv_cdf(quantile)), MIN_SECONDS), MAX_SECONDS)


class Workload(Struct, frozen=True):
    """Request n is the same in all runs with the same seed."""

    texts: Sequence[str]
    """The shortest first: long utterances get long texts."""
    voices: Sequence[str]
    seed: int
    fixed_lengths: bool
    """Requests set the utterance length, for models that never end an utterance; otherwise the model ends it."""

    def body(self, number: int) -> dict[str, object]:
        """Returns the JSON of request `number`."""
        quantile = random.Random(f"{self.seed}:{number}").uniform(0.001, 0.999)
        body: dict[str, object] = {
            "input": self.texts[int(quantile * len(self.texts))],
            "response_format": "pcm",
            "stream": True,
            "stream_format": "audio",
            "non_streaming_mode": False,  # One text token per frame, as in the published measurements.
            "seed": self.seed + number,
        }
        if self.fixed_lengths:
            body["max_new_tokens"] = round(length_seconds(quantile) / FAMILY.frame_seconds)
        if self.voices:
            body["voice"] = self.voices[number % len(self.voices)]
        return body
