"""Text in pieces is normalized like the whole text, however it is cut, and no later than a rule needs."""

import random
from collections.abc import Iterator, Sequence

import pytest

from support.spoken_forms import SPOKEN
from syrinx_stages.normalization.boundaries import MAX_PIECE
from syrinx_stages.normalization.languages import languages
from syrinx_stages.normalization.normalize import normalize
from syrinx_stages.normalization.streamed import StreamedNormalizer, normalize_streamed

ALL = tuple(languages())
WORDS = {
    "english": ("we said", "then we left"), "german": ("wir sagten", "dann ging er"),
    "french": ("nous disons", "puis il part"), "spanish": ("ella dijo", "luego salimos"),
    "italian": ("lei disse", "poi andiamo"), "portuguese": ("ela disse", "depois saiu"),
    "russian": ("мы сказали", "потом ушли"), "chinese": ("你好，我们说", "，然后走了"),
    "japanese": ("こんにちは、", "、それから"), "korean": ("우리는", "그리고 갔다"),
}  # fmt: skip
CASES = [(language, written) for language, written, _ in SPOKEN]


def cuts(text: str, chance: random.Random) -> Iterator[str]:
    while text:
        size = chance.choice((1, 2, 5, 12))
        yield text[:size]
        text = text[size:]


def spoken(pieces: Sequence[str], names: Sequence[str]) -> str:
    normalizer = StreamedNormalizer(names)
    found = "".join([*map(normalizer.feed, pieces), normalizer.end()])
    assert found == normalizer.spoken
    assert normalizer.written_end(len(found)) == normalizer.characters == len("".join(pieces))
    return found


@pytest.mark.parametrize(("language", "written"), CASES)
def test_numbers_between_words_are_spoken_as_in_the_whole_text(language: str, written: str) -> None:
    before, after = WORDS[language]
    for text in (written, f"{before} {written}", f"{before} {written} {after} {written}\n{after}"):
        assert normalize_streamed(text, [language]) == normalize(text, [language])


_WRITTEN = """
5 12, 1990 2024 $5 $ € km km/h million 5k 10:30 pm a.m. May March 3 4. 2/3 ½ - – + = x × % 50% No. # § v2 A4 555 (555)
123-4567 Dr. e.g. etc. AT&T & the of in since 1st 90s '90s early hello world, well-known see example.com a@b.com it's I
"quoted" (1990) -3 °C USD h 24/7 1,234.50 Mio. Mrd. z. B. d. h. Uhr am dem der Januar mai n. M. Mme № Nr. руб. мая года
5-й x² (a)² ① Ⅷ H₂O Std. 你好 ，3个 2024年 第 万
"""
WRITTEN = _WRITTEN.split()


def random_text(chance: random.Random, words: Sequence[str] = WRITTEN) -> str:
    return " ".join(chance.choices(words, k=chance.randint(2, 20))) + chance.choice(("", ".", " ", "\n"))


@pytest.mark.parametrize("language", [*ALL, "auto"])
def test_the_spoken_text_does_not_depend_on_the_cuts(language: str) -> None:
    names, chance = ALL if language == "auto" else [language], random.Random(language)
    for _ in range(150):
        text = random_text(chance)
        expected = normalize_streamed(text, names)
        assert spoken(list(cuts(text, chance)), names) == spoken(list(text), names) == expected, text


@pytest.mark.parametrize("language", ALL)
def test_random_texts_are_spoken_as_a_whole(language: str) -> None:
    """But for symbols between spaces and a second "&": the rules replace the spaces around them, one by one."""
    chance = random.Random(language)
    words = [word for word in WRITTEN if word not in ("&", "=", "+", "×", "$", "€")]
    for _ in range(200):
        text = random_text(chance, words)
        assert normalize_streamed(text, [language]) == normalize(text, [language])


@pytest.mark.parametrize(
    ("written", "pieces"),
    [
        ("costs $5.50 in 2024. Yes", ["costs ", "five dollars and fifty cents ", "in ", "twenty twenty-four. "]),
        ("On May 5, 2024 we", ["On ", "May ", "fifth, ", "twenty twenty-four "]),
        ("about $5 million he", ["about ", "five million dollars "]),
        ("call (030) 1234-567 now", ["call ", "zero three zero, one two three four, five six seven "]),
        ("the mid 90s were", ["the ", "mid ", "nineties "]),
        ("I said no. No. 5 or", ["I ", "said ", "no. ", "number five "]),
        ("see example.com/a?b now", ["see ", "example dot com slash a b "]),
        ("3 x 4 is", ["three by four "]),
        ("3 x4 is", ["three by four "]),
        ("go.\n5 or", ["go.\n", "five "]),
        ("Well, it's", ["Well,", " ", "it'"]),
    ],
)  # fmt: skip
def test_a_piece_ends_when_no_rule_reads_on(written: str, pieces: list[str]) -> None:
    normalizer = StreamedNormalizer(["english"])
    assert [found for each in written if (found := normalizer.feed(each))] == pieces


def test_a_number_without_end_waits_for_a_bounded_text() -> None:
    normalizer = StreamedNormalizer(["english"])
    digits = "1 2 3 4 5 6 7 8 9 " * 40
    waiting = []
    for each in digits:
        normalizer.feed(each)
        waiting.append(normalizer.characters - normalizer.written_end(len(normalizer.spoken)))
    assert 0 < max(waiting) <= MAX_PIECE
    assert normalizer.spoken.startswith("one two three four")


def test_the_language_is_that_of_the_text_so_far() -> None:
    text = "Das ist die Zahl 5. And this is the number 5."
    assert spoken(list(text), ("english", "german")) == "Das ist die Zahl fünf. And this is the number five."


def test_characters_of_the_spoken_text_are_those_of_the_written_one() -> None:
    normalizer = StreamedNormalizer(["english"])
    normalizer.feed("It costs $5.50 in 2024. Yes")
    normalizer.end()
    said = normalizer.spoken
    ends = [normalizer.written_end(position) for position in range(len(said) + 1)]
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (0, 27)
    assert normalizer.written_end(said.index("five")) == len("It costs ")
    for word in ("fifty", " in"):
        assert normalizer.written_end(said.index(word)) == len("It costs $5.50")
    assert normalizer.written_end(said.index("Yes") + 1) == len("It costs $5.50 in 2024. Y")
