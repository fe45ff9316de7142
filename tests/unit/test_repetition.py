"""What is a repetition, where its good part ends, and what is none."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.talker.repetition import LOOP_FRAMES, MAX_PERIOD, Repetition, RepetitionDetector


def speech(count: int, seed: int = 0) -> list[int]:
    """Codes 0 of healthy speech: hardly any repeats within two seconds."""
    return random.Random(seed).choices(range(2048), k=count)


def found(codes: Sequence[int], may_loop: bool = False) -> tuple[Repetition | None, int, int]:
    """What was found, the frames until then, and how many of these are good."""
    detector = RepetitionDetector(may_loop)
    for count, code in enumerate(codes, 1):
        if (what := detector.add(code)) is not None:
            return what, count, detector.good_frames
    return None, len(codes), detector.good_frames


PAUSES = speech(30) + [7] * 13 + speech(30, 1) + [7, 8] * 7 + speech(30, 2)


@pytest.mark.parametrize("codes", [speech(1000), PAUSES], ids=["speech", "pauses of a second"])
def test_healthy_speech_has_none(codes: list[int]) -> None:
    assert found(codes) == (None, len(codes), len(codes))


@pytest.mark.parametrize("period", [2, 3, 7, 12, 20, 21, 25])
def test_a_loop_is_found_within_two_seconds(period: int) -> None:
    codes = speech(30)
    codes += codes[-period:] * 40
    assert found(codes) == (Repetition.LOOP, 30 + (LOOP_FRAMES if period <= LOOP_FRAMES else MAX_PERIOD), 37)


def test_a_loop_within_two_seconds_may_repeat_values() -> None:
    pattern = [5, 5, 9, 5, 7, 5, 5, 8]
    what, frames, _ = found(speech(30) + pattern * 10)
    assert what is Repetition.LOOP
    assert frames <= 30 + len(pattern) + LOOP_FRAMES


def test_a_text_that_repeats_itself_may_be_spoken_in_a_loop() -> None:
    codes = speech(6) * 12
    assert found(codes, may_loop=True) == (None, 72, 72)
    assert found(codes)[0] is Repetition.LOOP


@pytest.mark.parametrize("silent", [[7], [7, 7, 8], [7, 8, 9]])
def test_silence_is_found_also_if_its_codes_vary(silent: list[int]) -> None:
    what, frames, good = found(speech(30) + random.Random(1).choices(silent, k=60))
    assert what in ({Repetition.SILENCE} if len(silent) == 1 else {Repetition.SILENCE, Repetition.LOOP})
    # Each value has to occur once before it repeats.
    assert frames <= 30 + MAX_PERIOD + 5
    assert good == 38 if len(silent) == 1 else good < frames


@given(st.lists(st.integers(0, 5), max_size=80))
def test_good_frames_stay_good(codes: list[int]) -> None:
    detector, good = RepetitionDetector(False), 0
    for count, code in enumerate(codes, 1):
        detector.add(code)
        assert good <= detector.good_frames <= count
        good = detector.good_frames
