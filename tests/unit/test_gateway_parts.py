"""Long texts are divided into parts of whole sentences, and nothing is lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.gateway.parts import (
    CLAUSE_SECONDS,
    MAX_SIZE,
    PARAGRAPH_SECONDS,
    SENTENCE_SECONDS,
    Part,
    divide,
)

SENTENCE = "The old teacher found two heavy bags near the river."
WORDS = st.text("abcdefgh", min_size=1, max_size=12)
ENDS = st.sampled_from(["", "", "", ",", ";", ".", "!", "?", "…", ".\n\n", '."'])
PROSE = st.lists(st.tuples(WORDS, ENDS).map("".join), min_size=1, max_size=300).map(" ".join)


@given(PROSE, st.sampled_from([0, MAX_SIZE]), st.booleans(), st.sampled_from(["en", "de", "ru"]))
def test_prose_is_divided_between_words_and_none_is_lost(text, whole_size, single_sentences, language):
    parts = list(divide(text, whole_size, single_sentences=single_sentences, language=language))
    assert " ".join(part.text for part in parts).split() == text.split()
    assert all(len(part.text) <= MAX_SIZE for part in parts)
    assert parts[-1].pause == 0


@given(st.text(max_size=2000), st.booleans())
def test_any_text_keeps_its_letters_and_digits(text, single_sentences):
    parts = list(divide(text, 0, single_sentences=single_sentences))
    spoken = "".join(filter(str.isalnum, "".join(part.text for part in parts)))
    assert spoken == "".join(filter(str.isalnum, text))


@given(st.text(max_size=MAX_SIZE // 4))
def test_what_fits_into_a_part_is_not_changed(text):
    assert list(divide(text)) == [Part(text)]


@pytest.mark.parametrize(
    ("mark", "pause"), [("", SENTENCE_SECONDS), ("\n\n", PARAGRAPH_SECONDS), ("\nThen", PARAGRAPH_SECONDS)]
)
def test_parts_end_with_sentences(mark, pause):
    text = " ".join([SENTENCE] * 5) + mark + " " + " ".join([SENTENCE] * 3)
    first, second = divide(text)
    assert first == Part(" ".join([SENTENCE] * 5), pause)
    assert second.text.endswith(SENTENCE)


def test_a_long_sentence_is_divided_at_clauses_else_between_words():
    clause = "one of these words is as good as any other"
    assert [part.pause for part in divide(", ".join([clause] * 10))] == [CLAUSE_SECONDS, 0.0]
    first, *_ = divide(" ".join([clause] * 10))
    assert first.pause == 0 and len(first.text) > MAX_SIZE - 12


def test_no_part_ends_with_an_abbreviation():
    text = ("It was late, and so " + "the doctor said to Dr. Grey and Mr. White that all " * 30).strip()
    assert not any(part.text.endswith("r.") for part in divide(text))


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
    assert [part.text for part in divide(text, 0, single_sentences=True, language=language)] == sentences


def test_an_item_of_a_list_has_its_number():
    texts = [part.text for part in divide("1. Bread.\n2. Two apples\n\nGo!", 0, single_sentences=True)]
    assert texts == ["1. Bread.", "2. Two apples", "Go!"]


def test_characters_of_chinese_and_digits_count_more():
    text = "我们明天早上一起去公园散步，然后在湖边吃早饭。" * 12
    parts = list(divide(text))
    assert "".join(part.text for part in parts) == text
    assert all(part.text.endswith("。") and len(part.text) <= MAX_SIZE // 4 for part in parts)
    assert max(len(part.text) for part in divide("9876543210" * 60)) == MAX_SIZE // 4


def test_a_long_word_is_not_divided_within_a_character():
    letter = "e\u0301"
    parts = list(divide(letter * 1000))
    assert "".join(part.text for part in parts) == letter * 1000
    assert all(part.text.startswith("e") for part in parts)
    assert [part.text for part in divide("\U0001f600" * 4096)] == ["\U0001f600" * (MAX_SIZE // 4)], "nothing to speak"


def test_parts_are_found_one_after_the_other():
    """A text of any length does not hold the event loop."""

    class Read(str):
        """Remembers the last character that was asked for."""

        last = 0

        def __getitem__(self, key):
            Read.last = max(Read.last, key.stop if isinstance(key, slice) else key)
            return super().__getitem__(key)

    text = Read(f"{SENTENCE} " * 20_000)
    assert len(list(itertools.islice(divide(text), 10))) == 10
    assert 0 < Read.last <= 11 * MAX_SIZE
