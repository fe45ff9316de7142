"""Tokens of text in pieces are those of the whole text, and none is given out before it is final."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.model.streamed_text import StreamedSegments, StreamedText
from syrinx_stages.model.tokenizer import Tokenizer
from syrinx_stages.normalization.languages import languages
from syrinx_stages.normalization.lexicon import respell
from syrinx_stages.normalization.normalize import normalize, with_typed_quotes
from syrinx_stages.normalization.plain import in_one_line
from syrinx_stages.normalization.segments import StreamedDivider
from syrinx_stages.normalization.streamed import normalize_streamed

TOKENIZER: Tokenizer = IMPLEMENTATION.load_tokenizer("bundled")
_CHARACTERS = [
    *"ab  \n\r\t's12.!—(\u00a0你好é",
    *("re", "LL"),
    # They compose with the characters before them.
    *"\u0301\u0300\u1100\u1161\u11a8\u0915\u093f\u200d\ufe0f😀",
]


@settings(max_examples=500)
@given(st.lists(st.lists(st.sampled_from(_CHARACTERS), max_size=4).map("".join), max_size=8))
def test_tokens_do_not_depend_on_pieces(pieces: list[str]) -> None:
    streamed, given_out = StreamedText(TOKENIZER), list[int]()
    for piece in pieces:
        streamed.feed(piece)
        ids = list(streamed.ids)
        assert ids[: len(given_out)] == given_out, "tokens are final"
        given_out = ids
    text = "".join(pieces)
    streamed.end()
    assert list(streamed.ids)[: len(given_out)] == given_out
    assert streamed.assistant == TOKENIZER.assistant(text)


@pytest.mark.parametrize(
    ("text", "known"),
    [("hello", ""), ("hello ", "hello"), ("hello wor", "hello"), ("hello  ", "hello"), ("it'", "it"), ("12", "1")],
)
def test_the_last_word_waits(text: str, known: str) -> None:
    streamed = StreamedText(TOKENIZER)
    streamed.feed(text)
    assert list(streamed.ids) == TOKENIZER.assistant(known).text


PLAIN = {
    "english": "Well, the old teacher didn't wait: in May she said \u201cyes\u201d to a well-off man. (Who saw?)",
    "german": "Am Morgen ging der alte Lehrer, seit März krank, nach Hause. Er sagte: \u201eSchön!\u201c und schlief.",
    "french": "L'ami d'hier n'a rien dit, même en mai. Le soir, il est parti\u00a0!",
    "russian": "Старый учитель, как всегда, ждал в мае. Кто пришёл?",
    "chinese": "你好，老师今天没有来。我们明天再见！",
    "korean": "선생님은 오늘 안 왔어요, 정말. 내일 봐요!",
}


@pytest.mark.parametrize("language", PLAIN)
@pytest.mark.parametrize("names", ["one", "all"])
def test_words_without_numbers_are_tokens_as_soon_as_without_normalization(language: str, names: str) -> None:
    """Only a word with a dot, a hyphen or a colon waits for the space after it, as it may be an address.

    A quotation mark or parenthesis before a word comes with the word.
    """
    plain = StreamedText(TOKENIZER)
    normalized = StreamedText(TOKENIZER, [language] if names == "one" else tuple(languages()))
    text = ""
    for character in PLAIN[language]:
        text += character
        plain.feed(with_typed_quotes(character))
        normalized.feed(character)
        word = "" if character.isspace() else text.split()[-1]
        if set(word).isdisjoint(".-:") and word[:1] not in (*"(\u201c\u201e",):
            assert list(normalized.ids) == list(plain.ids), text
    normalized.end()
    assert normalized.assistant == TOKENIZER.assistant(with_typed_quotes(text))


LEXICON = {
    "nginx": "engine x",
    "new york": "noo york",
    "york": "yoork",
    "$5": "a fiver",
    "你好": "ni hao",
    "NY": "New York",
}


def segments_of_one(languages: Sequence[str] = ()) -> StreamedSegments:
    return StreamedSegments(StreamedText(TOKENIZER, languages), StreamedDivider(10_000), LEXICON)


@given(
    st.lists(st.sampled_from(["nginx", "NGINX", "new", "York", "$5", ".50", "你好", "NY", " ", "  ", "\n", ".", "a"])),
    st.randoms(use_true_random=False),
)
def test_a_lexicon_is_applied_before_numbers_however_the_text_is_cut(words: list[str], chance: random.Random) -> None:
    text, names = "".join(words), ["english"]
    expected = TOKENIZER.assistant(normalize_streamed(in_one_line(respell(text, LEXICON).text), names))
    streamed, at, given_out = segments_of_one(names), 0, list[int]()
    while at < len(text):
        size = chance.choice((1, 2, 3, 7))
        streamed.feed(text[at : at + size])
        at += size
        ids = list(streamed.first.ids)
        assert ids[: len(given_out)] == given_out, "tokens are final"
        given_out = ids
    assert streamed.characters == len(text)
    streamed.end()
    assert streamed.first.assistant == expected


@pytest.mark.parametrize(
    ("text", "known"),
    [("The old man", "The old"), ("The new", "The"), ("The new y", "The"), ("The new m", "The new"), ("The yo", "The")],
)
def test_only_what_may_begin_an_entry_waits(text: str, known: str) -> None:
    streamed = segments_of_one()
    streamed.feed(text)
    assert list(streamed.first.ids) == TOKENIZER.assistant(known).text


def test_tokens_of_numbers_are_those_of_their_words() -> None:
    text = "It costs $5.50 in 2024. See example.com."
    for size in (1, 2, 7, 99):
        streamed = StreamedText(TOKENIZER, ["english"])
        for start in range(0, len(text), size):
            streamed.feed(text[start : start + size])
        streamed.end()
        assert streamed.spoken == normalize(text, ["english"])
        assert streamed.assistant == TOKENIZER.assistant(streamed.spoken)
