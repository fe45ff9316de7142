"""What is asked for: sentences, and utterance lengths of a published mean."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY

MEAN_SECONDS = 38.0 / 9.1
"""Of an utterance of Seed-TTS EN: 38.0 audio-seconds a second at 9.1 requests a second (sglang-omni #1635), 4.18 s."""
SPREAD = 0.4
"""Standard deviation of the length's logarithm. Ours: only the mean is published."""
SHORTEST, LONGEST = 1.0, 15.0


def seconds(quantile: float) -> float:
    """The length (seconds) below which this share (0 to 1, both excluded) of the utterances lie: log-normal, cut."""
    middle = math.log(MEAN_SECONDS) - SPREAD**2 / 2
    return min(max(math.exp(middle + SPREAD * NormalDist().inv_cdf(quantile)), SHORTEST), LONGEST)


class Requests(Struct, frozen=True):
    """Request n is the same in every run with the same seed."""

    texts: Sequence[str]
    """Shortest first: a long utterance has a long text."""
    voices: Sequence[str]
    seed: int
    measured: bool
    """Utterances have the lengths above, for the model would never end one; else the model ends them."""

    def body(self, number: int) -> dict[str, object]:
        """The request's JSON."""
        quantile = random.Random(f"{self.seed}:{number}").uniform(0.001, 0.999)
        body: dict[str, object] = {
            "input": self.texts[int(quantile * len(self.texts))],
            "response_format": "pcm",
            "stream": True,
            "stream_format": "audio",
            "non_streaming_mode": False,  # One text token a frame, as in the published measurements.
            "seed": self.seed + number,
        }
        if self.measured:
            body["max_new_tokens"] = round(seconds(quantile) / FAMILY.frame_seconds)
        if self.voices:
            body["voice"] = self.voices[number % len(self.voices)]
        return body
