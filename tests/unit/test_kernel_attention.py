"""Attention in Triton's interpreter: as plain torch; only what was written before is read, only the own is written."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import pytest
from support.attending import Attention, check_pair, check_prompt, check_step

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

CLOSE = 1e-5
PAGE = 16
HEADS = [(1, 1), (2, 3), (1, 5)]
"""Key heads, and query heads to each."""


def attention(kv: int, group: int, pages: list[list[int]]) -> Attention:
    return Attention(kv=kv, group=group, size=32, page=PAGE, pages=pages)


@pytest.mark.parametrize(("kv", "group"), HEADS)
def test_a_step_hears_all_its_pages(kv: int, group: int) -> None:
    positions = [0, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1]
    case = attention(kv, group, [[4, 9, 2], [7, 1, 8], [3, 12, 0], [10, 5, 0], [6, 13, 11]])
    check_step(case, positions, CLOSE)


def test_padded_rows_work_in_scratch() -> None:
    case = attention(2, 2, [[0, 0, 0], [2, 3, 1], [0, 0, 0]])
    check_step(case, [None, 2 * PAGE + 1, None], CLOSE)


@pytest.mark.parametrize(("kv", "group"), HEADS)
@pytest.mark.parametrize("position", [2, PAGE - 1])
def test_a_step_within_a_frame_has_one_page(kv: int, group: int, position: int) -> None:
    case = attention(kv, group, [[0], [1], [2]])
    check_step(case, [position] * 3, CLOSE, small=True)


@pytest.mark.parametrize(("kv", "group"), HEADS)
def test_a_frames_first_two_positions_go_together(kv: int, group: int) -> None:
    check_pair(attention(kv, group, [[0], [1], [2]]), 3, CLOSE)


@pytest.mark.parametrize(("kv", "group"), HEADS)
def test_prompts_of_several_lengths(kv: int, group: int) -> None:
    case = attention(kv, group, [[3, 0], [2, 0], [4, 0]])
    check_prompt(case, [(0, 16), (0, 1), (0, 13)], 16, CLOSE)


def test_the_next_part_of_a_prompt_hears_those_before() -> None:
    case = attention(1, 2, [[3, 6, 1, 5], [2, 4, 0, 0], [0, 0, 0, 0]])
    check_prompt(case, [(21, 35), (PAGE, 1), (0, 0)], 40, CLOSE)
