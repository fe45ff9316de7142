"""Text in pieces is divided into sentences that do not depend on the pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.normalization.plain import has_words
from syrinx_stages.normalization.sentences import Granularity, SentenceSplitter


def split(pieces: list[str], granularity: Granularity = Granularity.SENTENCE) -> list[str]:
    splitter = SentenceSplitter(granularity)
    return [each for piece in pieces for each in splitter.feed(piece)] + splitter.flush()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello there. How are you?", ["Hello there.", "How are you?"]),
        ("It costs 3.50 dollars. Dr. Smith said so.", ["It costs 3.50 dollars.", "Dr. Smith said so."]),
        ("J. Smith came. So do I. Go!", ["J. Smith came.", "So do I.", "Go!"]),
        ('He said "Stop!" Then he left...', ['He said "Stop!"', "Then he left..."]),
        ("你好。你好吗？”好", ["你好。", "你好吗？”", "好"]),
        ("नमस्ते। कैसे हो?", ["नमस्ते।", "कैसे हो?"]),
        ("A title\nA line", ["A title", "A line"]),
        ("... and then. ! Yes", ["... and then.", "! Yes"]),
        ("  \n ", []),
        ("Great! \U0001f600", ["Great!"]),
        ("\U0001f600 Great!", ["\U0001f600 Great!"]),
        ("... !", []),
        ("![](https://a.example/b.png)\nIt is [here](https://c.example).", ["It is [here](https://c.example)."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split([text]) == sentences


def test_clauses_and_none() -> None:
    text = "Well, 1,000 came; nobody left. Ah"
    assert split([text], Granularity.CLAUSE) == ["Well,", "1,000 came;", "nobody left.", "Ah"]
    assert split(["Well, yes. ", "No."], Granularity.NONE) == ["Well, yes. No."]


def test_a_sentence_is_returned_with_the_character_after_it() -> None:
    splitter = SentenceSplitter(Granularity.SENTENCE)
    assert splitter.feed("Hello there.") == []
    assert splitter.feed(" ") == ["Hello there."]
    assert splitter.feed("你好。") == []
    assert splitter.feed("”") == [], "the mark belongs to the sentence"
    assert splitter.feed("好") == ["你好。”"]


@given(st.text('aB.!?,;:1 \n"”。，।…(Dr', max_size=60), st.sampled_from(Granularity), st.data())
def test_pieces_do_not_matter(text: str, granularity: Granularity, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces, granularity) == split([text], granularity)
    kept, whole = "".join("".join(split([text], granularity)).split()), "".join(text.split())
    assert whole.startswith(kept) and not has_words(whole.removeprefix(kept)), "no word is lost"
