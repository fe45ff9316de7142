"""What a step's sampled codes mean for each request."""

import numpy as np

from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.talker.engine import frame_results

EOS = 2150


def frame(*codes: int) -> list[int]:
    return [*codes, *[7] * (16 - len(codes))]


def test_frames_and_ends_of_a_step() -> None:
    """Codes after EOS are sampled from its embedding and discarded."""
    frames = [frame(5), frame(EOS), frame(EOS, -1), frame(-1), frame(3, 4, -1), [*frame(0)[:15], -1]]
    whole, eos, discarded, code0, *residual = frame_results(np.array(frames, np.int16), EOS)
    assert whole == np.array(frame(5), "<i2").tobytes()
    assert eos == discarded == End(EndReason.STOP)
    assert isinstance(code0, End) and code0.reason is EndReason.ERROR and "not finite" in code0.message
    assert residual == [code0] * 2
    assert frame_results(np.empty((0, 16), np.int16), EOS) == []
