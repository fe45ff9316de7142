"""What a step's sampled codes mean for each request."""

import numpy as np

from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.talker.engine import frame_results

EOS = 2150


def frame(*codes: int) -> list[int]:
    return [*codes, *[7] * (16 - len(codes))]


def test_frames_and_ends_of_a_step() -> None:
    frames = np.array([frame(5), frame(EOS), frame(-1), frame(3, 4, -1)], np.int16)
    whole, eos, code0, residual = frame_results(frames, EOS)
    assert whole == np.array(frame(5), "<i2").tobytes()
    assert eos == End(EndReason.STOP)
    assert isinstance(code0, End)
    assert code0.reason is EndReason.ERROR
    assert "not finite" in code0.message
    assert residual == code0


def test_last_code_may_be_the_invalid_one() -> None:
    codes = frame(0)
    codes[15] = -1
    [result] = frame_results(np.array([codes], np.int16), EOS)
    assert isinstance(result, End)


def test_codes_after_the_end_do_not_matter() -> None:
    """They are sampled from the embedding of EOS and discarded."""
    assert frame_results(np.array([frame(EOS, -1)], np.int16), EOS) == [End(EndReason.STOP)]


def test_step_without_rows_has_no_results() -> None:
    assert frame_results(np.empty((0, 16), np.int16), EOS) == []
