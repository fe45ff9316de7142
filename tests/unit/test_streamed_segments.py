"""Text in pieces is divided where the whole text is, and no sooner known than the text decides it."""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.model.streamed_text import StreamedSegments, StreamedText
from syrinx_stages.model.tokenizer import Tokenizer
from syrinx_stages.normalization.lexicon import respell
from syrinx_stages.normalization.plain import has_words, with_usual_spaces
from syrinx_stages.normalization.segments import (
    CLAUSE_SECONDS,
    PARAGRAPH_SECONDS,
    SENTENCE_SECONDS,
    Divided,
    StreamedDivider,
    divide,
)

TOKENIZER: Tokenizer = IMPLEMENTATION.load_tokenizer("bundled")
SENTENCE = "The old teacher found two heavy bags near the river."
WORDS = [
    *("dog", "Well", "Dr.", "e.g.", "No.", "z.B.", "3.5", "5", "1.", "2.", "U.S.", "p.m.", "the", "Then"),
    *('"Stop!', "(now)", "你好。", "天气", "！", "- ", "# ", "---", "…", "😀", "e\u0301", "x" * 40, "\u201d"),
]
MARKS = ["", "", "", "", ".", "!", "?", ",", ";", ":", "...", '."']
SPACES = [" ", " ", " ", " ", "  ", "\n", "\n\n", " \n", "\t", "\r\n", ""]
TEXTS = st.lists(st.tuples(*map(st.sampled_from, (WORDS, MARKS, SPACES))).map("".join), max_size=60).map("".join)
DIVIDERS = st.builds(
    lambda size, single, languages: lambda: StreamedDivider(size, single_sentences=single, languages=languages),
    st.sampled_from([20, 60, 300]),
    st.booleans(),
    st.sampled_from([["english"], ["german"], ["chinese"], ["english", "german", "chinese"]]),
)
CHANCES = st.randoms(use_true_random=False)


def pieces(text: str, chance: random.Random) -> list[str]:
    cuts = sorted(chance.choices(range(len(text) + 1), k=chance.choice((0, 3, len(text)))))
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


def segments(text: str, size: int = 300, *, single_sentences: bool = False) -> Sequence[Divided]:
    divider = StreamedDivider(size, single_sentences=single_sentences)
    divider.feed(text)
    divider.end()
    return divider.segments


@settings(max_examples=300)
@given(TEXTS, DIVIDERS, CHANCES)
def test_segments_do_not_depend_on_the_cuts(text, divider, chance):
    whole, growing, first = divider(), divider(), ""
    expected_first = whole.feed(text) + whole.end()
    for piece in pieces(text, chance):
        first += growing.feed(piece)
        assert list(growing.segments) == list(whole.segments[: len(growing.segments)]), "segments are final"
        assert expected_first.startswith(first)
    assert first + growing.end() == expected_first
    assert growing.segments == whole.segments


@given(TEXTS, DIVIDERS)
def test_nothing_is_lost(text, divider):
    growing = divider()
    first = growing.feed(text) + growing.end()
    found = growing.segments
    places = itertools.pairwise([Divided("", 0, 0), *found, Divided("", len(text), len(text))])
    assert not any(has_words(text[before.end : after.start]) for before, after in places)
    assert all(has_words(each.text) for each in found)
    assert first == with_usual_spaces(text)[: found[0].end if found else len(text)]


@given(TEXTS, DIVIDERS)
def test_a_segment_is_known_with_a_few_words_after_it(text, divider):
    whole = divider()
    whole.feed(text)
    whole.end()
    for each in whole.segments[:-1]:
        growing = divider()
        growing.feed(text[: each.end + 40])
        if len(text) < each.end + 40:
            growing.end()
        assert each in growing.segments


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Brown met the U.S. army at 3.5 p.m. on Jan. 5. They spoke, e.g. of bread.",
        "# Shopping\n\n- seven green apples\n- bread",
        "1. Bread.\n2. Two apples\n\nGo!",
        "1. Milk 2. Bread 3. Eggs",
        "Steps: 1) open it 2) walk in. Done.",
        "It cost 1. The rest was 2. Good.",
        f"{SENTENCE}\n \n\n{SENTENCE}\r\n{SENTENCE} \n{SENTENCE}",
        "The farmer who lived beyond the wide river opened the\ngarden gate,\nand went home.\nMilk\nBread",
        "I am 21. Next year I will be 22. No. 5 is mine. I saw No. 5. Then I left.",
        "No mark at all",
    ],
)
def test_single_sentences_are_those_of_a_whole_text(text):
    expected = list(divide(text, 300, single_sentences=True))
    found = segments(text, single_sentences=True)
    assert [(each.text, each.pause) for each in found] == [(each.text, each.pause) for each in expected]


def test_a_segment_of_several_sentences_ends_with_the_first_one_beyond_a_third_of_its_size():
    found = segments(" ".join([SENTENCE] * 5) + "\n\n" + SENTENCE)
    assert [(each.text.count("."), each.pause) for each in found] == [(2, SENTENCE_SECONDS)] * 2 + [(2, 0.0)]
    assert segments(" ".join([SENTENCE] * 2) + "\n\n" + SENTENCE)[0].pause == PARAGRAPH_SECONDS


def test_a_long_sentence_ends_with_a_clause_else_between_words_else_anywhere():
    clause = "one of these words is as good as any other"
    found = segments(", ".join([clause] * 12))
    assert {each.pause for each in found[:-1]} == {CLAUSE_SECONDS}
    assert all(200 <= len(each.text) <= 260 for each in found[:-1])
    found = segments(" ".join([clause] * 12))
    assert all(each.pause == 0.0 and 240 <= len(each.text) <= 300 for each in found[:-1])
    assert [len(each.text) for each in segments("x" * 1000)] == [300, 300, 300, 100]
    assert all(each.text.startswith("e") for each in segments("e\u0301" * 1001))
    assert max(len(each.text) for each in segments("我们明天早上" * 100)) == 75


@pytest.mark.parametrize(
    ("pieces", "known"),
    [
        (("Well", ",", " then Dr.", " Gr"), ("Well", ",", " then Dr.", " Gr")),
        (("Go", ".", " And", " t"), ("Go", ".", "", "")),
        (("Version 3", ".", "5", " is", " out"), ("Version ", "", "", "3.5 is", " out")),
    ],
)
def test_the_first_segment_waits_only_where_it_may_end(pieces, known):
    """At a mark, or before a number, which may begin an item of a list, until the next word has ended."""
    divider = StreamedDivider(300, single_sentences=True)
    assert tuple(divider.feed(piece) for piece in pieces) == known


LEXICON = {"stop. then": "pause, and", "nginx": "engine x. Or so", "3.5": "three and a half"}


@given(
    st.lists(st.sampled_from(["Stop.", " ", " ", "Then", " dog", " 3.5", "\n", "nginx", ".", "!", " St"])),
    st.booleans(),
    CHANCES,
)
def test_words_are_respelled_before_the_text_is_divided(words, single, chance):
    text = "".join(words)
    divided = StreamedDivider(60, single_sentences=single)
    first = divided.feed(respell(text, LEXICON).text) + divided.end()
    growing = StreamedSegments(StreamedText(TOKENIZER), StreamedDivider(60, single_sentences=single), LEXICON)
    for piece in pieces(text, chance):
        growing.feed(piece)
    growing.end()
    assert growing.complete == divided.segments
    assert growing.first.assistant == TOKENIZER.assistant(first.replace("\n", " "))
    assert growing.respelled == respell(with_usual_spaces(text), LEXICON)
