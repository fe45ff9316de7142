"""What a gateway learns about the duration of speech."""

import random

import pytest

from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.gateway.durations import Durations, repeats_itself, text_counts

PRESET = TaskType.CUSTOM_VOICE
WORDS = ("the", "old", "teacher", "carried", "seven", "apples", "before", "breakfast", "and", "nobody", "noticed")


def request(text: str, voice: str | None = "us", task: TaskType = PRESET, **fields: str) -> SpeechRequest:
    return SpeechRequest(id="a", accepted_at=0.0, text=text, task_type=task, voice=voice, language="english", **fields)


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 12))).capitalize() + "."


def spoken(text: str, rng: random.Random, pace: float = 1.0) -> int:
    """Frames of a voice: 0.7 for a letter, 0.5 for a word, and some chance."""
    letters, words = sum(map(str.isalpha, text)), len(text.split())
    return round(pace * (5 + 0.7 * letters + 0.5 * words) * rng.gauss(1, 0.05))


def learned(count: int, voice: str | None = "us", task: TaskType = PRESET) -> Durations:
    rng, durations = random.Random(1), Durations()
    for _ in range(count):
        text = sentence(rng)
        durations.learn(request(text, voice, task), spoken(text, rng))
    return durations


def test_nothing_is_a_runaway_only_because_the_voice_is_new() -> None:
    rng = random.Random(2)
    texts = [sentence(rng) for _ in range(200)]
    for text in texts:
        limit = Durations().guard(request(text)).max_frames
        assert all(spoken(text, rng, pace) < limit for pace in (0.6, 1.0, 1.5))


def test_what_was_spoken_narrows_the_range() -> None:
    rng, durations = random.Random(2), learned(1000)
    for _ in range(500):
        text = sentence(rng)
        guard, frames = durations.guard(request(text)), spoken(text, rng)
        assert guard.expected_frames == pytest.approx(frames, rel=0.25)
        assert guard.expected_frames < guard.late_frames < guard.max_frames
        assert frames < guard.max_frames <= max(1.5 * guard.expected_frames, guard.expected_frames + 14)


def test_a_voice_says_nothing_about_another_one_or_another_language() -> None:
    new, durations = Durations(), learned(1000)
    text = "The old teacher carried seven apples."
    assert durations.guard(request(text, "gb")) == new.guard(request(text, "gb"))
    assert durations.guard(request(text)) != new.guard(request(text))


def test_texts_unlike_those_before_keep_a_wide_range() -> None:
    """Only prose was spoken so far: a number takes up to eight words."""
    guard = learned(2000).guard(request("It costs €5,797.22."))
    assert guard.max_frames > 12.5 * 6


def test_how_well_numbers_are_predicted_is_learned_from_numbers() -> None:
    """The digits of these are spoken one by one; as much of the range as they explain becomes narrow."""
    rng, durations, text = random.Random(5), Durations(), "Call 304-1640 before noon."
    before = durations.guard(request(text))
    for _ in range(100):
        number = f"Call {rng.randrange(1000)}-{rng.randrange(10_000)} before noon."
        durations.learn(request(number), round(20 + 6 * sum(map(str.isdecimal, number)) + rng.gauss(0, 1)))
    guard = durations.guard(request(text))
    assert guard.expected_frames == pytest.approx(62, abs=2)
    assert guard.max_frames - guard.expected_frames < (before.max_frames - before.expected_frames) / 2


@pytest.mark.parametrize(
    ("voice", "task", "fields"),
    [
        (None, TaskType.BASE, {}),
        (None, TaskType.VOICE_DESIGN, {}),
        ("us", PRESET, {"instructions": "Slow."}),
    ],
)
def test_a_voice_that_a_request_describes_may_be_half_as_fast_as_all_before(
    voice: str | None, task: TaskType, fields: dict[str, str]
) -> None:
    rng, durations = random.Random(3), learned(1000, voice, task)
    for _ in range(200):
        text = sentence(rng)
        assert spoken(text, rng, 2.0) < durations.guard(request(text, voice, task, **fields)).max_frames


def test_a_few_odd_durations_do_not_mislead() -> None:
    durations, rng = learned(300), random.Random(4)
    for _ in range(3):
        durations.learn(request("The old teacher."), 2000)
    text = sentence(rng)
    assert durations.guard(request(text)).expected_frames == pytest.approx(spoken(text, rng), rel=0.3)


def test_the_longest_text_has_a_limit_too() -> None:
    guard = Durations().guard(request("word " * 819))
    assert 0 < guard.expected_frames < guard.max_frames


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two words.", [1, 8, 2, 0, 0, 0, 0]),
        ("Well, yes; no?", [1, 9, 3, 2, 0, 0, 0]),
        ("In 1906.", [1, 2, 1, 0, 4, 0, 0]),
        ("NASA at www.nasa.gov", [1, 2, 1, 0, 0, 16, 0]),
        ("€5,797", [1, 0, 0, 0, 4, 2, 0]),
        ("你好，世界。", [1, 0, 0, 1, 0, 0, 5]),
        ("It's a well-known fact", [1, 19, 4, 0, 0, 0, 0]),
    ],
)
def test_what_a_text_consists_of(text: str, expected: list[int]) -> None:
    """1, letters, words, pauses, digits, symbols, ideographs."""
    assert text_counts(text).tolist() == expected


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("No, no, no!", True),
        ("The cat sat. The cat sat.", True),
        ("Hahahaha", True),
        ("Aaaaah!", True),
        ("10,000,000,000", True),
        ("The banana is ripe.", False),
        ("The cat saw the dog, and the dog saw the cat.", False),
    ],
)
def test_a_text_that_repeats_itself(text: str, repeats: bool) -> None:
    assert repeats_itself(text) is repeats


def test_spoken_characters_are_those_of_the_words_that_fit_into_the_frames() -> None:
    rng, durations = random.Random(3), learned(1000)
    for _ in range(50):
        text = sentence(rng)
        words = text.split()
        assert durations.spoken_characters(request(text), 0) == 0
        for count in range(1, len(words)):
            beginning = " ".join(words[:count])
            found = text[: durations.spoken_characters(request(text), spoken(beginning, rng))]
            assert not found or text[len(found) : len(found) + 1] in ("", " ")
            assert abs(len(found.split()) - count) <= 2


def test_spoken_characters_of_a_text_without_spaces() -> None:
    text = "今天天气很好，我们去公园散步。"
    durations = Durations()
    found = [durations.spoken_characters(request(text), frames) for frames in range(80)]
    assert found == sorted(found) and found[0] == 0 and found[-1] == len(text)
    assert len(set(found)) > 10
    assert durations.spoken_characters(request(""), 10) == 0
