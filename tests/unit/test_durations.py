"""How long the speech of a text is, by what it consists of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.normalization.durations import (
    Counts,
    Durations,
    bounds,
    counts_of,
    repeats_itself,
    spoken_characters,
)

DURATIONS = Durations(voices={"slow": 2.0}, shortest=0.5, longest=1.5, early=1, late=2)
SENTENCE = "The old teacher found two heavy bags near the river."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Counts()),
        ("Two heavy bags.", Counts(letter=12, word=3)),
        ("Well, I don't know; go!", Counts(letter=16, word=5, pause=2)),
        ("On 21 May", Counts(letter=5, word=2, digit=2)),
        ("NATO x=y", Counts(symbol=7)),
        ("schöne Grüße", Counts(letter=11, word=2)),
        ("scho\u0308ne Gru\u0308ße", Counts(letter=11, word=2)),
        ("H" + 9 * "\u0301" + "i", Counts(letter=2, word=1)),
        ("今天很好", Counts(ideograph=4)),
    ],
)
def test_a_text_consists_of_words_pauses_digits_symbols_and_ideographs(text: str, expected: Counts) -> None:
    assert counts_of(text) == expected


def test_bounds_are_around_what_is_expected() -> None:
    found = bounds(SENTENCE, DURATIONS)
    assert found.expected == round(6 + 0.75 * 42 + 0.6 * 10)
    assert (found.least, found.most) == (15, 79)


def test_a_voice_has_a_rate() -> None:
    assert bounds(SENTENCE, DURATIONS, "slow").expected == 87
    assert bounds(SENTENCE, DURATIONS, "other") == bounds(SENTENCE, DURATIONS)


@given(st.text(max_size=200), st.text(max_size=50))
def test_more_text_takes_no_less_time(text: str, more: str) -> None:
    before, after = bounds(text, DURATIONS), bounds(f"{text} a{more}", DURATIONS)
    assert 1 <= before.least <= before.expected <= before.most
    assert before.expected <= after.expected + 4, "a mark within a text may be a pause, or not"


def test_a_long_word_is_bounded_by_its_characters() -> None:
    assert bounds("a" * 300, DURATIONS).most < 300 * 1.7


@pytest.mark.parametrize("text", ["no, no, no", "Row, row, row your boat", "bye bye", "hahahaha", "到了到了到了到了"])
def test_a_text_may_repeat_itself(text: str) -> None:
    assert repeats_itself(text)


@pytest.mark.parametrize("text", [SENTENCE, "He had it, and so had she.", "banana", ""])
def test_most_texts_do_not_repeat_themselves(text: str) -> None:
    assert not repeats_itself(text)


@pytest.mark.parametrize("text", [SENTENCE, "我们明天早上一起去公园散步"])
def test_spoken_characters_end_with_words(text: str) -> None:
    ends = [spoken_characters(text, DURATIONS, None, frames) for frames in range(120)]
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (0, len(text))
    assert all(end in (0, len(text)) or text[end - 1 : end + 1].strip() != text[end : end + 1] for end in ends)
