"""What is removed from a text because nobody says it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.normalization.plain import has_words, in_one_line, with_usual_spaces, without_marks


@given(st.text(max_size=300))
def test_usual_spaces_keep_the_length_and_every_visible_character(text: str) -> None:
    changed = with_usual_spaces(text)
    assert len(changed) == len(text)
    assert not any(unicodedata.category(each) == "Cc" and each != "\n" for each in changed)
    assert all(a == b for a, b in zip(text, changed, strict=True) if a.isprintable() and not a.isspace())
    assert "\n" not in in_one_line(text)


@given(st.text(max_size=300))
def test_no_letter_or_digit_is_lost(text: str) -> None:
    plain = without_marks(with_usual_spaces(text))
    links_aside = text if "](" not in text else plain
    assert "".join(filter(str.isalnum, plain)) == "".join(filter(str.isalnum, links_aside))
    assert plain == " ".join(plain.split())


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("The old teacher.", "The old teacher."),
        ("# Heading", "Heading"),
        ("- one\n* two\n• three", "one two three"),
        ("- [x] done", "done"),
        ("1. Bread", "1, Bread"),
        ("2) Milk", "2, Milk"),
        ("> quoted", "quoted"),
        ("**bold**, *this* and _that_, ~~not~~, `code`", "bold, this and that, not, code"),
        ("***both***", "both"),
        ("see [the docs](https://example.com/a_b) now", "see the docs now"),
        ("![a picture](x.png)", "a picture"),
        ("| name | size |", "name, size"),
        ("---", ""),
        ("2 * 3 * 4, snake_case_name, 5-3, a|b", "2 * 3 * 4, snake_case_name, 5-3, a|b"),
        ("sil\u00adla\u200bble \ufeffx", "sillable x"),
        ("a\u00a0b\u3000c", "a b c"),
        ("-5 degrees", "-5 degrees"),
    ],
)
def test_marks_of_layout_are_not_spoken(written: str, spoken: str) -> None:
    assert without_marks(with_usual_spaces(written)) == spoken


@pytest.mark.parametrize("text", ["", "...", "—", "***", "\U0001f600", "\u200b", "?!"])
def test_a_text_without_letters_and_digits_has_no_words(text: str) -> None:
    assert not has_words(text)
    assert has_words(f"{text}a") and has_words(f"{text}1")
