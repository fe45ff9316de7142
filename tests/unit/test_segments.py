"""Texts are divided into segments of whole sentences, and nothing is lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.normalization.plain import has_words
from syrinx_stages.normalization.segments import CLAUSE_SECONDS, PARAGRAPH_SECONDS, SENTENCE_SECONDS, Divided, divide

MAX_SIZE = 300

SENTENCE = "The old teacher found two heavy bags near the river."
WORDS = st.text("abcdefgh", min_size=1, max_size=12)
ENDS = st.sampled_from(["", "", "", ",", ";", ".", "!", "?", "…", ".\n\n", '."'])
PROSE = st.lists(st.tuples(WORDS, ENDS).map("".join), min_size=1, max_size=300).map(" ".join)


@given(PROSE, st.booleans(), st.sampled_from(["en", "de", "ru"]))
def test_prose_is_divided_between_words_and_none_is_lost(text, single_sentences, language):
    segments = list(divide(text, MAX_SIZE, single_sentences=single_sentences, language=language))
    assert " ".join(segment.text for segment in segments).split() == text.split()
    assert all(len(segment.text) <= MAX_SIZE for segment in segments)
    assert segments[-1].pause == 0


@given(st.text(max_size=2000), st.booleans())
def test_any_text_keeps_its_letters_and_digits(text, single_sentences):
    text = text.replace("](", "")
    segments = list(divide(text, MAX_SIZE, single_sentences=single_sentences))
    spoken = "".join(filter(str.isalnum, "".join(segment.text for segment in segments)))
    assert spoken == "".join(filter(str.isalnum, text))


@given(st.text(max_size=2000), st.booleans())
def test_segments_cover_a_text_and_go_on_from_any_of_them(text, single_sentences):
    segments = list(divide(text, 60, single_sentences=single_sentences))
    places = itertools.pairwise([Divided("", 0, 0), *segments, Divided("", len(text), len(text))])
    assert not any(has_words(text[before.end : after.start]) for before, after in places)
    assert all(segment.start < segment.end <= len(text) for segment in segments)
    for number, segment in enumerate(segments):
        assert list(divide(text, 60, single_sentences=single_sentences, start=segment.start)) == segments[number:]


@pytest.mark.parametrize(
    ("mark", "pause"), [("", SENTENCE_SECONDS), ("\n\n", PARAGRAPH_SECONDS), ("\nThen", PARAGRAPH_SECONDS)]
)
def test_parts_end_with_sentences(mark, pause):
    text = " ".join([SENTENCE] * 5) + mark + " " + " ".join([SENTENCE] * 3)
    first, second = divide(text, MAX_SIZE)
    assert (first.text, first.pause) == (" ".join([SENTENCE] * 5), pause)
    assert second.text.endswith(SENTENCE)


WRAPPED = ("The farmer who lived beyond the wide river opened the", "garden gate,", "and went home.")


@pytest.mark.parametrize(
    ("text", "items"),
    [
        *((SENTENCE + gap + SENTENCE, [SENTENCE] * 2) for gap in ("\n", "\r\n", "\n\n", "\n \n\n", "\u2028", "\t\n")),
        ("\n".join((*WRAPPED, "Milk", "Bread")), [" ".join(WRAPPED), "Milk", "Bread"]),
        ("# Shopping\n\n- seven green apples\n- bread", ["Shopping", "seven green apples", "bread"]),
        ("1. Bread.\n2. Two apples\n\nGo!", ["1, Bread.", "2, Two apples", "Go!"]),
        ("1. Milk 2. Bread 3. Eggs", ["1, Milk", "2, Bread", "3, Eggs"]),
        ("Steps: 1) open it 2) walk in. Done.", ["Steps:", "1, open it", "2, walk in.", "Done."]),
        ("It cost 1. The rest was 2. Good.", ["It cost 1.", "The rest was 2.", "Good."]),
        ("1. Milk 3. Bread", ["1, Milk 3.", "Bread"]),
    ],
)
def test_lines_that_end_with_a_sentence_and_items_of_lists_are_segments(text, items):
    assert [each.text for each in divide(text, MAX_SIZE, single_sentences=True)] == items


def test_a_long_sentence_is_divided_at_clauses_else_between_words():
    clause = "one of these words is as good as any other"
    assert [part.pause for part in divide(", ".join([clause] * 10), MAX_SIZE)] == [CLAUSE_SECONDS, 0.0]
    first, *_ = divide(" ".join([clause] * 10), MAX_SIZE)
    assert first.pause == 0 and len(first.text) > MAX_SIZE - 12


def test_no_part_ends_with_an_abbreviation():
    text = ("It was late, and so " + "the doctor said to Dr. Grey and Mr. White that all " * 30).strip()
    assert not any(part.text.endswith("r.") for part in divide(text, MAX_SIZE))


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Dr. Brown met the U.S. army at 3.5 p.m. on Jan. 5.", "They spoke, e.g. of bread."]),
        ("en", ['He said "Stop! Now."', "Then he left."]),
        ("de", ["Das kostet ca. fünf Euro, d. h. viel.", "Am 3. Mai kam er.", "Gut!"]),
        ("de", ["Wir wohnen im 21. Stock.", "Es kostet 21.", "Das 3. Kapitel ist neu."]),
        ("en", ["I am 21.", "Next year I will be 22."]),
        ("fr", ["M. Dupont est là.", "Il part."]),
        ("zh", ["你好。", "今天天气很好！", "走吧"]),
    ],
)
def test_single_sentences_are_those_of_the_language(language, sentences):
    text = ("" if language == "zh" else " ").join(sentences)
    assert [part.text for part in divide(text, MAX_SIZE, single_sentences=True, language=language)] == sentences


def test_characters_of_chinese_and_digits_count_more():
    text = "我们明天早上一起去公园散步，然后在湖边吃早饭。" * 12
    parts = list(divide(text, MAX_SIZE))
    assert "".join(part.text for part in parts) == text
    assert all(part.text.endswith("。") and len(part.text) <= MAX_SIZE // 4 for part in parts)
    assert max(len(part.text) for part in divide("9876543210" * 60, MAX_SIZE)) == MAX_SIZE // 4


def test_a_long_word_is_not_divided_within_a_character():
    letter = "e\u0301"
    parts = list(divide(letter * 1000, MAX_SIZE))
    assert "".join(part.text for part in parts) == letter * 1000
    assert all(part.text.startswith("e") for part in parts)
    assert list(divide("\U0001f600" * 4096, MAX_SIZE)) == [], "nothing to speak"
