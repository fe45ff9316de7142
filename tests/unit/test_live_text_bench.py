"""What `python -m live_text` draws, and its page."""

import random

import pytest

from live_text.draws import TOKEN_SECONDS, Piece, cut, first_word, texts, written
from live_text.report import Report, page
from syrinx_operator.commands.bench.stats import spread
from syrinx_operator.local.machine import Machine

TEXT = "Twelve of them, on Monday."


@pytest.mark.parametrize("write", [cut, written])
@pytest.mark.parametrize("text", texts(1, 5))
def test_pieces_are_the_text(write, text):
    pieces = write(text, random.Random(1))
    assert "".join(piece.text for piece in pieces) == text
    assert len(pieces) > 10 and all(piece.text and piece.delay >= 0 for piece in pieces)
    assert pieces == write(text, random.Random(1)) != write(text, random.Random(2))


def test_an_llm_writes_tokens_at_its_pace():
    pieces = written(TEXT * 40, random.Random(1))
    assert [each.text for each in pieces[:6]] == ["Twelve", " of", " them", ",", " on", " Monday"]
    delays = sorted(each.delay for each in pieces)
    assert delays[len(delays) // 2] == pytest.approx(TOKEN_SECONDS, rel=0.15)
    assert 0.2 < delays[-1] < 1.0, "it stalls sometimes"
    slow = written(TEXT * 40, random.Random(1), pace=4)
    assert [each.delay for each in slow] == pytest.approx([4 * each.delay for each in pieces])


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [(["The", " old", " man"], 1), (["Th", "e", " o", "ld", " m"], 2), (["The old man"], 0), (["The"], 0)],
)
def test_a_word_ends_with_the_character_after_it(pieces, ends):
    assert first_word([Piece(0.0, each) for each in pieces]) == ends


def test_texts_have_numbers():
    assert all(any(each.isdigit() for each in text) for text in texts(1, 10))
    assert len(set(texts(1, 10))) == 10 and texts(1, 3) == texts(1, 10)[:3] != texts(2, 3)


def test_the_page_has_the_figures():
    report = Report(
        created="now", revision=None, command="live_text", machine=Machine("CPU", 2, 4.0, "Linux", "3.11", {}), seed=7,
        cuts=240, cuts_equal=239, ttfa_over_whole=1.149,
        ttfa={"first word": spread([0.08])}, cancel_ms_p95=3.9, cancel=spread([0.002, 0.004]), kills=6, kills_exact=5,
        kills_exact_by_stage={"talker": 2, "codec": 3},
    )  # fmt: skip
    text = page(report)
    assert "Of 240 ways" in text and "239 gave" in text and "1.15 times" in text and "seed 7" in text
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert ["first audio from the first word", "80.0", "80.0", "80.0"] in cells
    assert ["cancel", "3.0", "3.9", "4.0"] in cells
    assert ["talker", "3", "2"] in cells and ["codec", "3", "3"] in cells
