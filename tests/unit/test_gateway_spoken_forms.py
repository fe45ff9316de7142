"""What a reader says for numbers and symbols in ordinary texts, and that no digit is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.spoken_forms import SPOKEN
from syrinx_stages.normalization.languages import languages
from syrinx_stages.normalization.normalize import normalize


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [(language, *case) for language, cases in SPOKEN.items() for case in cases],
)
def test_text_is_spoken_as_a_reader_would(language, written, spoken):
    assert normalize(written, [language]) == spoken


NUMBER = st.one_of(
    st.integers(0, 10**18).map(str),
    st.integers(0, 10**9).map("{:,}".format),
    st.decimals(0, 10**6, places=2).map(str),
    st.from_regex(r"\d{1,3}([.,:/–-]\d{1,4}){0,5}", fullmatch=True),
    st.text("٠١٢٣٤٥٦٧٨٩०१२1234567890½¾⅓", min_size=1, max_size=6),
)  # fmt: skip
AROUND = st.text("abcXYZéжщ日本三語가나 .,:;/+-–−~〜#№§$€%&@x×=<>°ºª()'’vhsmkg", max_size=4)
WRITTEN = st.lists(st.tuples(AROUND, NUMBER, AROUND).map("".join), min_size=1, max_size=6).map(" ".join)


@given(WRITTEN, st.sampled_from(sorted(languages())))
def test_no_digit_is_left(text, language):
    spoken = normalize(text, [language])
    assert not any(map(str.isdecimal, spoken)), spoken
