"""Places in the talker's device memory: what is given out, to whom, and when a request wants more."""

import random

import pytest

from syrinx_stages.talker.allocation import PAGE_SIZE, Allocation, IndexPool, bucket_for, num_pages


def test_a_pool_gives_out_each_number_once_and_never_scratch() -> None:
    pool = IndexPool(5)
    assert len(pool) == pool.count == 5
    assert sorted(pool.allocate(2) + pool.allocate(0) + pool.allocate(3)) == [1, 2, 3, 4, 5]
    assert len(pool) == 0


def test_what_a_pool_does_not_have_is_not_taken_in_part() -> None:
    pool = IndexPool(3)
    pool.allocate(2)
    with pytest.raises(ValueError, match="2 are wanted, 1 of 3 are free"):
        pool.allocate(2)
    assert len(pool) == 1


def test_whatever_comes_and_goes_nobody_shares() -> None:
    pool, held = IndexPool(40), []
    order = random.Random(0)
    for _ in range(300):
        if held and order.random() < 0.5:
            pool.free(held.pop(order.randrange(len(held))))
        elif len(pool) >= 6:
            held.append(pool.allocate(order.randint(0, 6)))
        given = [number for numbers in held for number in numbers]
        assert len(set(given)) == len(given) == 40 - len(pool)
        assert set(given) <= set(range(1, 41))


def place(**given: int) -> Allocation:
    return Allocation(slot=1, text_pages=[7, 3], texts=PAGE_SIZE + 2, **given)


def test_a_frame_goes_with_its_row_of_text_and_later_ones_with_the_padding() -> None:
    frames = [0, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, PAGE_SIZE + 2, 10 * PAGE_SIZE]
    rows = [place(frames=frame).text_row() for frame in frames]
    assert rows == [7 * PAGE_SIZE, 8 * PAGE_SIZE - 1, 3 * PAGE_SIZE, 3 * PAGE_SIZE + 1, 0, 0]


def test_a_request_without_text_rows_has_padding_from_the_first_frame_on() -> None:
    assert Allocation(slot=1, text_pages=[], texts=0).text_row() == 0


def test_a_page_is_wanted_when_a_position_begins_one() -> None:
    row = place(position=PAGE_SIZE - 1)
    row.pages = [4]
    assert (row.missing_pages(0), row.missing_pages(1), row.missing_pages(2), row.missing_pages(PAGE_SIZE + 2)) == (
        0, 0, 1, 2,
    )  # fmt: skip
    row.position += 1
    assert row.missing_pages(1) == 1


def test_pages_hold_whole_positions() -> None:
    assert [num_pages(count) for count in (0, 1, PAGE_SIZE, PAGE_SIZE + 1)] == [0, 1, 1, 2]


def test_the_smallest_bucket_that_holds_them() -> None:
    assert [bucket_for((1, 2, 8), count) for count in (1, 2, 3, 8)] == [1, 2, 8, 8]
    with pytest.raises(ValueError, match="9 is more than 8"):
        bucket_for((1, 2, 8), 9)
