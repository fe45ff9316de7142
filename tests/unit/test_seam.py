"""The silence between segments."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from syrinx_stages.gateway.seam import Seam

RATE = FAMILY.sample_rate


@given(st.integers(0, 3000), st.integers(-3000, 3000), st.floats(0, 1), st.integers(1, 700))
def test_a_pause_lengthens_the_silence_without_a_step(silent, last, seconds, size):
    """It does not depend on how the audio is divided."""
    samples = np.concatenate((np.full(1000, 9000), np.zeros(silent), [last])).astype("<i2")
    pieces, whole = Seam(), Seam()
    for start in range(0, len(samples), size):
        pieces.add(samples[start : start + size].tobytes())
    whole.add(samples.tobytes())
    pause = whole.pause(seconds)
    assert pieces.pause(seconds) == pause
    both = np.concatenate((samples, np.frombuffer(pause, "<i2"))).astype(int)
    assert np.abs(np.diff(both[-len(pause) // 2 - 1 :])).max() <= abs(last) / 100 + 1
    silence = len(both) - 1 - int(np.flatnonzero(np.abs(both) >= AUDIBLE_PEAK)[-1])
    assert silence >= round(seconds * RATE) - RATE // 200
    assert pause[-2:] == b"\0\0"
