"""What is written is read out as people read it."""

import pytest

from training.spoken import spoken, words


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("It costs $4.50.", "It costs four dollars and fifty cents."),
        ("We paid £12.99 and €1.", "We paid twelve pounds and ninety nine pence and one euro."),
        ("It made $3.5 million.", "It made three point five million dollars."),
        ("Dr. Smith met Mrs. Jones.", "Doctor Smith met Missis Jones."),
        ("Oak St. or St. Paul?", "Oak Street or Saint Paul?"),
        ("She lives on Oak St.", "She lives on Oak Street."),
        ("Born on 3 May 1998.", "Born on the third of May nineteen ninety eight."),
        ("On May 21, 2003, it rained.", "On May twenty first, two thousand three, it rained."),
        ("In 1905 and until 2000.", "In nineteen oh five and until two thousand."),
        ("Between 1939 and 1945.", "Between nineteen thirty nine and nineteen forty five."),
        ("At 10:30 a.m. or 7:05.", "At ten thirty A M or seven oh five."),
        ("At 6:00 p.m.", "At six P M."),
        ("At 9:00 sharp.", "At nine o'clock sharp."),
        ("Call 555-0142.", "Call five five five, zero one four two."),
        ("1,250,301 people", "one million two hundred fifty thousand three hundred one people"),
        ("3.14 is 50% more.", "three point one four is fifty percent more."),
        ("The 21st, 12th and 30th.", "The twenty first, twelfth and thirtieth."),
        ("23 kg, 1 km, 6 ft", "twenty three kilograms, one kilometer, six feet"),
        ("No. 7 etc.", "number seven et cetera."),
    ],
)
def test_reading(written: str, said: str) -> None:
    assert spoken(written) == said


def test_plain_text_is_read_as_it_is() -> None:
    text = 'He didn\'t say "no", she thought; or did he?'
    assert spoken(text) == text


def test_words_are_what_is_heard() -> None:
    assert words("It's 10:30, Dr. No!") == ("it's", "ten", "thirty", "doctor", "no")
