"""The Triton attention kernels in the interpreter, compared with plain PyTorch."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import pytest
from support.attention import AttentionCase, check_decode, check_pair, check_prefill

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

TOLERANCE = 1e-5
PAGE = 16
HEADS = [(1, 1), (2, 3), (1, 5)]
"""KV heads, and query heads per KV head."""


def attention(kv: int, group: int, pages: list[list[int]]) -> AttentionCase:
    return AttentionCase(num_kv_heads=kv, group_size=group, head_size=32, page_size=PAGE, pages=pages)


@pytest.mark.parametrize(("kv", "group"), HEADS)
def test_decode_attends_to_all_pages(kv: int, group: int) -> None:
    positions = [0, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1]
    case = attention(kv, group, [[4, 9, 2], [7, 1, 8], [3, 12, 0], [10, 5, 0], [6, 13, 11]])
    check_decode(case, positions, TOLERANCE)


def test_padded_rows_use_only_scratch_memory() -> None:
    case = attention(2, 2, [[0, 0, 0], [2, 3, 1], [0, 0, 0]])
    check_decode(case, [None, 2 * PAGE + 1, None], TOLERANCE)


@pytest.mark.parametrize(("kv", "group"), HEADS)
@pytest.mark.parametrize("position", [2, PAGE - 1])
def test_decode_with_one_page(kv: int, group: int, position: int) -> None:
    case = attention(kv, group, [[0], [1], [2]])
    check_decode(case, [position] * 3, TOLERANCE, one_page=True)


@pytest.mark.parametrize(("kv", "group"), HEADS)
def test_first_two_positions_together(kv: int, group: int) -> None:
    check_pair(attention(kv, group, [[0], [1], [2]]), 3, TOLERANCE)


@pytest.mark.parametrize(("kv", "group"), HEADS)
def test_prefill_of_several_lengths(kv: int, group: int) -> None:
    case = attention(kv, group, [[3, 0], [2, 0], [4, 0]])
    check_prefill(case, [(0, 16), (0, 1), (0, 13)], 16, TOLERANCE)


def test_prefill_attends_to_earlier_chunks() -> None:
    case = attention(1, 2, [[3, 6, 1, 5], [2, 4, 0, 0], [0, 0, 0, 0]])
    check_prefill(case, [(21, 35), (PAGE, 1), (0, 0)], 40, TOLERANCE)
