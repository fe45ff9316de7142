"""Numbers and the like become words, and other words stay."""

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.spoken_forms import SPOKEN
from syrinx_stages.normalization.languages import languages
from syrinx_stages.normalization.lexicon import Respelled, StreamedRespeller, respell
from syrinx_stages.normalization.normalize import normalize
from syrinx_stages.normalization.streamed import normalize_streamed

ALL = tuple(languages())
LATIN = ("english", "german", "french", "spanish", "italian", "portuguese")


@pytest.mark.parametrize(("language", "written", "spoken"), SPOKEN)
def test_what_is_written_is_spoken_as_a_reader_would(language, written, spoken):
    assert normalize(written, [language]) == spoken


@pytest.mark.parametrize(
    "text", ["C++ and A+", "either/or", "#hashtag", "well-known", "a@b", "call us.at once", "x = y", "e.g"]
)
def test_what_is_not_recognized_stays(text):
    assert normalize(text, ["english"]) == text


def test_quotation_marks_become_those_of_a_keyboard():
    """Programs and language models write the others, which voices may never have seen."""
    written = "“Don’t go”, she said. „Das ist ‚so‘“, sagte er. « Oui »."
    spoken = '"Don\'t go", she said. "Das ist \'so\'", sagte er. " Oui ".'
    assert normalize(written, ["english"]) == normalize_streamed(written, ["english"]) == spoken
    assert normalize(written, []) == normalize_streamed(written, []) == written


def test_the_language_is_the_one_that_the_text_is_in():
    assert normalize("Ich habe 3 Hunde und die Katze", ALL).split()[2] == "drei"
    assert normalize("I have 3 dogs and the cat", ALL).split()[2] == "three"
    assert normalize("我有3只狗", ALL) == "我有三只狗"
    assert normalize("犬が3匹", ALL) == "犬が三匹"
    assert normalize("3 dogs", []) == "3 dogs"
    assert normalize("3 koiraa", ["finnish"]) == "3 koiraa"


WORD = st.text("abcdefgäöüßñéBCDEFG", min_size=2, max_size=9).filter(
    lambda word: not any(word in (*words.short, *words.units) for words in languages().values())
)
NUMBER = st.one_of(
    st.integers(0, 10**9).map(str),
    st.floats(0, 1e6).map("{:.2f}".format),
    st.integers(0, 10**9).map("{:,}".format),
    st.sampled_from(["$3", "4 €", "10:30", "2024-03-05", "12%", "5-10", "1st", "3.", "-7", "007", "1.2.3"]),
)


@given(st.lists(st.tuples(st.booleans(), WORD, NUMBER), max_size=30), st.sampled_from(LATIN))
def test_other_words_stay_in_their_order(tokens, language):
    written = " ".join(number if is_number else word for is_number, word, number in tokens)
    words = [word for is_number, word, _ in tokens if not is_number]
    spoken = iter(re.findall(r"\w+", normalize(written, [language])))
    assert all(word in spoken for word in words)


@given(st.text(max_size=500), st.sampled_from(ALL))
def test_any_text_can_be_normalized(text, language):
    normalize(text, [language])


DIGITS = st.one_of(
    st.integers(0, 10**18).map(str),
    st.integers(0, 10**9).map("{:,}".format),
    st.decimals(0, 10**6, places=2).map(str),
    st.from_regex(r"\d{1,3}([.,:/–-]\d{1,4}){0,5}", fullmatch=True),
    st.text("٠١٢٣٤٥٦٧٨٩०१२1234567890½¾⅓", min_size=1, max_size=6),
)
AROUND = st.text("abcXYZéжщ日本三語가나 .,:;/+-–−~〜#№§$€%&@x×=<>°ºª()'’vhsmkg", max_size=4)
WRITTEN = st.lists(st.tuples(AROUND, DIGITS, AROUND).map("".join), min_size=1, max_size=6).map(" ".join)


NUMERALS = st.characters(categories=["Nd", "Nl", "No"], exclude_characters="〇")
"""Without the ideograph for zero, which is in the Chinese names of numbers."""


@given(WRITTEN | st.lists(NUMERALS | AROUND, max_size=8).map("".join), st.sampled_from(ALL))
def test_no_numeral_is_left(text, language):
    for spoken in (normalize(text, [language]), normalize_streamed(text, [language])):
        assert not any(unicodedata.category(each)[0] == "N" for each in spoken if each != "〇"), spoken


@pytest.mark.parametrize("language", ALL)
def test_each_power_is_spoken(language):
    spoken = [normalize(f"x{exponent}", [language]) for exponent in ("", "²", "³", "⁴", "⁻²")]
    assert len(set(spoken)) == len(spoken) and all(each.startswith("x") for each in spoken)


@pytest.mark.parametrize(
    ("lexicon", "text", "spoken"),
    [
        ({"sql": "sequel"}, "SQL, sql and PostgreSQL.", "sequel, sequel and PostgreSQL."),
        ({"US": "United States"}, "US and us", "United States and us"),
        ({"us": "everybody", "US": "United States"}, "US, us and Us", "United States, everybody and everybody"),
        ({"new york": "noo york", "york": "yoork"}, "New  York and York", "noo york and yoork"),
        ({"c++": "see plus plus", "c": "see"}, "C++, C.", "see plus plus, see."),
        ({"北京": "beijing"}, "我在北京。", "我在beijing。"),
        ({"nginx": "engine x"}, "我用nginx服务器, nginx는 xnginx服", "我用engine x服务器, engine x는 xnginx服"),
        ({"a": "b", "b": "a"}, "a b", "b a"),
        ({}, "a b", "a b"),
    ],
)
def test_whole_words_are_respelled_once(lexicon, text, spoken):
    assert respell(text, lexicon).text == spoken


_PARTS = ["a", "b", "A", "\u017f", "s", "k", "\u212a", "\u0130", "i", "_", "+", " ", "\n", "日", "本", "\u0301"]
_WORD = st.lists(st.sampled_from(_PARTS), min_size=1, max_size=4).map("".join).map(str.strip).filter(bool)


@settings(max_examples=500)
@given(st.dictionaries(_WORD, _WORD, max_size=6), st.lists(st.lists(st.sampled_from(_PARTS)).map("".join)))
def test_words_are_respelled_however_the_text_is_cut(lexicon, pieces):
    respeller = StreamedRespeller(lexicon)
    text = "".join([respeller.feed(piece) for piece in pieces] + [respeller.end()])
    whole = StreamedRespeller(lexicon)
    assert text == whole.feed("".join(pieces)) + whole.end() == searched("".join(pieces), lexicon)
    assert respeller.changes == whole.changes
    (end,) = Respelled(text, respeller.changes).places([(len(text), len(text))])
    assert respeller.characters == len("".join(pieces)) == end[1]


def searched(text: str, lexicon: dict[str, str]) -> str:
    """Returns a text that is respelled in one search, character by character."""
    entries = {" ".join(word.split()): new for word, new in lexicon.items()}
    in_order = sorted(entries, key=lambda word: (is_free(word[0]), -len(word), word.lower() == word))
    result, at = "", 0
    while at < len(text):
        for word in in_order:
            pattern = r"\s+".join(map(re.escape, word.split(" ")))
            flags = re.IGNORECASE if word == word.lower() else re.NOFLAG
            found = re.compile(pattern, flags).match(text, at)
            begins = is_free(word[0]) or not at or is_free(text[at - 1])
            if found and begins and (is_free(word[-1]) or is_free(text[found.end() :][:1] or " ")):
                words = " ".join(found[0].split())
                result, at = result + (entries.get(words) or entries.get(words.lower()) or found[0]), found.end()
                break
        else:
            result, at = result + text[at], at + 1
    return result


def is_free(character: str) -> bool:
    return character >= "\u2e80" or not re.match(r"\w", character)


def test_places_in_a_respelled_text_are_those_of_its_words():
    """A range that begins or ends within a respelling has all of the word."""
    text = "nginx runs. Use SQL or nginx now."
    respelled = respell(text, {"nginx": "engine x", "sql": "sequel"})
    assert respelled.text == "engine x runs. Use sequel or engine x now."
    sentences = [(0, 14), (15, 42)]
    assert [respelled.text[start:end] for start, end in sentences] == ["engine x runs.", "Use sequel or engine x now."]
    assert [text[start:end] for start, end in respelled.places(sentences)] == ["nginx runs.", "Use SQL or nginx now."]
    (place,) = respelled.places([(respelled.text.index("or"), respelled.text.rindex("gine"))])
    assert text[slice(*place)] == "or nginx"
    text = "word " * 2_000 + "nginx."
    (place,) = respell(text, {"word": "w", "nginx": "engine x"}).places([(4_000, 4_008)])
    assert text[slice(*place)] == "nginx"


def test_words_of_a_long_text_are_respelled_wherever_they_are():
    for shift in range(0, 80, 7):
        text = "x" * shift + " the sql server and sqlite. " * 1000
        assert respell(text, {"sql": "sequel", "sql server": "server"}).text == text.replace("sql server", "server")


@given(st.dictionaries(st.text(min_size=1).map(str.strip).filter(bool), st.text(min_size=1), max_size=20), st.text())
def test_any_lexicon_can_be_applied(lexicon, text):
    respell(text, lexicon)
