"""The detector of runaways: what is one, where its good part ends, and what is none."""

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.frames import MarkedFrame, decode_mark, encode_mark, marks_of, split_frames
from syrinx_stages.contract.messages import RunawayGuard
from syrinx_stages.talker.runaway import LOOP_FRAMES, MAX_PERIOD, RunawayDetector, Signal
from syrinx_stages.talker.text import StreamedTextDetector

GUARD = RunawayGuard(expected_frames=40, late_frames=50, max_frames=70)
ENDLESS = RunawayGuard()
FRAME_BYTES = 2 * FAMILY.code_groups


def frame(code: int, hazard: float = 0.0, implausible: bool = False, entropy: float = 1.0) -> bytes:
    return MarkedFrame(code.to_bytes(2, "little") * FAMILY.code_groups, encode_mark(hazard, implausible, entropy))


def speech(count: int, seed: int = 0) -> list[int]:
    """Codes 0 of healthy speech: hardly any repeats within two seconds."""
    return random.Random(seed).choices(range(2048), k=count)


def feed(detector: RunawayDetector, frames: Iterable[bytes]) -> Signal | None:
    """Feeds frames up to the first signal."""
    return next((signal for each in frames if (signal := detector.add(each)) is not None), None)


def found(codes: Sequence[int], guard: RunawayGuard = ENDLESS) -> tuple[Signal | None, int, int]:
    """The signal, the frames until then, and how many of these are good."""
    detector = RunawayDetector(guard)
    signal = feed(detector, map(frame, codes))
    return signal, detector.frames, detector.good_frames


def test_healthy_speech_is_no_runaway() -> None:
    assert found(speech(1000)) == (None, 1000, 1000)


@pytest.mark.parametrize("period", [2, 3, 7, 12, 20, 21, 25])
def test_a_loop_is_found_within_two_seconds(period: int) -> None:
    codes = speech(30)
    codes += codes[-period:] * 40
    assert found(codes) == (Signal.LOOP, 30 + (LOOP_FRAMES if period <= LOOP_FRAMES else MAX_PERIOD), 37)


def test_a_loop_within_two_seconds_may_repeat_values() -> None:
    pattern = [5, 5, 9, 5, 7, 5, 5, 8]
    signal, frames, _ = found(speech(30) + pattern * 10)
    assert signal is Signal.LOOP
    assert frames <= 30 + len(pattern) + LOOP_FRAMES


def test_a_text_that_repeats_itself_may_be_spoken_in_a_loop() -> None:
    codes = speech(6) * 12
    assert found(codes, RunawayGuard(repeats=True)) == (None, 72, 72)
    assert found(codes)[0] is Signal.LOOP


def test_a_pause_of_a_second_is_no_runaway() -> None:
    codes = speech(30) + [7] * 13 + speech(30, 1) + [7, 8] * 7 + speech(30, 2)
    assert found(codes) == (None, len(codes), len(codes))


@pytest.mark.parametrize("silent", [[7], [7, 7, 8], [7, 8, 9]])
def test_silence_is_found_also_if_its_codes_vary(silent: list[int]) -> None:
    signal, frames, good = found(speech(30) + random.Random(1).choices(silent, k=60))
    assert signal in ({Signal.SILENCE} if len(silent) == 1 else {Signal.SILENCE, Signal.LOOP})
    # Each value has to occur once before it repeats.
    assert frames <= 30 + MAX_PERIOD + 5
    assert good == 38 if len(silent) == 1 else good < frames


def test_a_clip_that_survives_its_end_ends_there() -> None:
    frames = [frame(code) for code in speech(30)]
    after = [frame(code, hazard) for code, hazard in zip(speech(20, 1), [5.0, 4.0, 0.0, 6.0], strict=False)]
    detector = RunawayDetector(ENDLESS)
    assert feed(detector, frames + after) is Signal.END
    assert (detector.frames, detector.good_frames) == (34, 30)


def test_a_clip_whose_end_becomes_improbable_again_has_missed_it() -> None:
    detector = RunawayDetector(GUARD)
    hazards = [0.0] * 30 + [3.5] + [0.0] * 30
    signal = feed(detector, (frame(code, hazard) for code, hazard in zip(speech(61), hazards, strict=True)))
    assert (signal, detector.frames, detector.good_frames) == (Signal.END, 43, 30)


@pytest.mark.parametrize("at", [10, 30])
@pytest.mark.parametrize("hazard", [0.5, 2.5])
def test_a_probable_end_that_was_not_drawn_is_no_runaway(at: int, hazard: float) -> None:
    """The end of a sentence within a text looks like the text's, and one in twelve survives 2.5."""
    detector = RunawayDetector(GUARD)
    hazards = [0.0] * at + [hazard] + [0.0] * (45 - at)
    assert feed(detector, (frame(code, each) for code, each in zip(speech(46), hazards, strict=True))) is None
    assert not detector.is_suspicious


def test_the_end_of_an_early_sentence_is_not_the_text_s() -> None:
    detector = RunawayDetector(GUARD)
    hazards = [0.0] * 10 + [3.5] + [0.0] * 30
    assert feed(detector, (frame(code, each) for code, each in zip(speech(41), hazards, strict=True))) is None


def test_codes_that_the_model_does_not_predict_are_babble() -> None:
    detector = RunawayDetector(ENDLESS)
    codes = speech(60)
    assert feed(detector, (frame(code, implausible=index >= 30) for index, code in enumerate(codes))) is Signal.BABBLE
    assert (detector.frames, detector.good_frames) == (38, 32)


def test_an_implausible_code_now_and_then_is_none() -> None:
    detector = RunawayDetector(ENDLESS)
    assert feed(detector, (frame(code, implausible=index % 4 == 0) for index, code in enumerate(speech(400)))) is None


def uncertain(ranges: Iterable[tuple[int, float]], guard: RunawayGuard = GUARD) -> tuple[Signal | None, int, int]:
    """The signal, the frames until then, and the good ones. ranges: numbers of frames, and their entropy in nats."""
    detector = RunawayDetector(guard)
    entropies = [entropy for count, entropy in ranges for _ in range(count)]
    signal = feed(detector, (frame(code, entropy=each) for code, each in zip(speech(2000), entropies, strict=False)))
    return signal, detector.frames, detector.good_frames


def test_a_clip_of_which_the_model_is_unsure_from_its_end_on_is_babble() -> None:
    assert uncertain([(40, 1.0), (30, 4.0)]) == (Signal.BABBLE, 48, 41)


def test_what_is_unsure_depends_on_the_model() -> None:
    assert uncertain([(40, 4.0), (30, 4.0)]) == (None, 70, 50)
    assert uncertain([(40, 0.1), (30, 0.5)]) == (None, 70, 50)


def test_the_later_a_clip_the_less_it_takes() -> None:
    found = [uncertain([(40 + late, 1.0), (30 - late, 3.0)])[1] - 40 - late for late in (0, 5, 10, 15)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_uncertainty_in_time_is_none() -> None:
    assert uncertain([(20, 0.5), (18, 4.0)])[0] is None
    assert uncertain([(20, 0.5), (6, 4.0), (20, 0.5)]) == (None, 46, 46)


def test_frames_without_marks_say_nothing_about_the_usual_uncertainty() -> None:
    unmarked = [bytes(frame(code)) for code in speech(25)]
    marked = [frame(code, entropy=3.0) for code in speech(45, 1)]
    assert feed(RunawayDetector(GUARD), unmarked + marked) is None


def test_one_uncertain_frame_is_none() -> None:
    assert uncertain([(40, 0.5), (1, 15.0), (9, 0.5)])[0] is None


def test_a_short_text_has_few_frames_to_compare_with() -> None:
    short = RunawayGuard(expected_frames=3, late_frames=5, max_frames=60)
    assert uncertain([(12, 1.0), (20, 4.0)], short) == (Signal.BABBLE, 17, 5)


def test_a_clip_longer_than_any_of_its_text_is_a_runaway() -> None:
    assert found(speech(100), GUARD) == (Signal.DURATION, 71, 50)


def test_without_marks_codes_and_durations_decide() -> None:
    detector = RunawayDetector(GUARD)
    assert feed(detector, (bytes(frame(code)) for code in speech(100))) is Signal.DURATION


def test_a_clip_keeps_one_frame_at_least() -> None:
    detector = RunawayDetector(ENDLESS)
    assert detector.add(frame(1, hazard=15.0)) is Signal.END
    assert detector.good_frames == 1


def test_a_place_that_was_good_stays_so() -> None:
    """It may be published, so that the end must not depend on when that was."""
    detector = RunawayDetector(ENDLESS)
    places = [detector.good_frames for each in map(frame, speech(30) + [7] * 12) if detector.add(each) is None]
    assert places == sorted(places)
    assert places[-1] == 38


def test_suspected_frames_are_good_again_once_the_suspicion_is_refuted() -> None:
    detector = RunawayDetector(ENDLESS)
    feed(detector, map(frame, speech(30) + [7] * 12))
    assert detector.is_suspicious
    detector.add(frame(2000))
    assert not detector.is_suspicious


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.0, 2.0]), st.booleans()), max_size=90), st.data())
def test_another_owner_comes_to_the_same_verdict(facts: list[tuple[int, float, bool]], data: st.DataObject) -> None:
    frames = [frame(*fact) for fact in facts]
    one, other = RunawayDetector(GUARD), RunawayDetector(GUARD)
    expected = [(one.add(each), one.good_frames) for each in frames]
    cut = data.draw(st.integers(0, len(frames)))
    entries = [part for part in (frames[:cut], frames[cut:]) if part]
    read = [each for part in entries for each in split_frames(b"".join(part), marks_of(part), FRAME_BYTES)]
    assert [(other.add(each), other.good_frames) for each in read] == expected


def test_marks_are_rounded_down_and_bounded() -> None:
    mark = decode_mark(encode_mark(1.99, True, 0.99))
    assert (mark.end_hazard, mark.is_implausible, mark.entropy) == (1.875, True, 0.9375)
    mark = decode_mark(encode_mark(1e9, False, 1e9))
    assert (mark.end_hazard, mark.is_implausible, mark.entropy) == (15.875, False, 15.9375)


def test_frames_without_marks_have_none_in_the_stream() -> None:
    frames = [bytes(frame(code)) for code in (1, 2)]
    assert marks_of(frames) == b""
    assert split_frames(b"".join(frames), b"", FRAME_BYTES) == frames


def test_text_that_streams_in_is_judged_by_its_whole_duration_once_it_is_read() -> None:
    """The verdict is that of a detector that has known the duration from the first frame, whenever the end arrived."""
    codes = speech(100)
    expected = found(codes, GUARD)
    for known_at in (0, 3, 19):
        detector = StreamedTextDetector()
        for index, code in enumerate(codes):
            if index == known_at:
                detector.set_end(20, GUARD)
            if (signal := detector.add(frame(code))) is not None:
                break
        assert (signal, index + 1, detector.good_frames) == expected


def test_text_that_streams_in_may_repeat_itself_until_its_end_is_known() -> None:
    codes = speech(30) + speech(10, seed=1) * 5
    detector = StreamedTextDetector()
    assert feed(detector, map(frame, codes)) is None
    detector = StreamedTextDetector()
    detector.set_end(70, ENDLESS)
    assert feed(detector, map(frame, codes)) is Signal.LOOP, "the text does not repeat itself"


def test_silence_is_found_while_text_streams_in() -> None:
    assert feed(StreamedTextDetector(), map(frame, speech(10) + [7] * 60)) is Signal.SILENCE
