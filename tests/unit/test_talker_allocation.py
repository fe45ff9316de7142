"""Allocation of the talker's device memory."""

import random

import pytest

from syrinx_stages.talker.cuda.allocation import PAGE_SIZE, Allocator, IndexPool, bucket_for


def test_pool_allocates_each_index_once_and_never_scratch() -> None:
    pool = IndexPool(5)
    assert pool.num_free == pool.capacity == 5
    assert sorted(pool.allocate(2) + pool.allocate(0) + pool.allocate(3)) == [1, 2, 3, 4, 5]
    assert pool.num_free == 0
    pool.free([3])
    with pytest.raises(ValueError, match="cannot allocate 2: 1 of 5 are free"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_allocations_never_overlap() -> None:
    pool, held = IndexPool(40), []
    order = random.Random(0)
    for _ in range(300):
        if held and order.random() < 0.5:
            pool.free(held.pop(order.randrange(len(held))))
        elif pool.num_free >= 6:
            held.append(pool.allocate(order.randint(0, 6)))
        allocated = [index for indices in held for index in indices]
        assert len(set(allocated)) == len(allocated) == 40 - pool.num_free
        assert set(allocated) <= set(range(1, 41))


def test_allocator_returns_none_without_memory_and_frees_all_of_a_request() -> None:
    allocator = Allocator(slots=2, pages=3, max_pages=2)
    first = allocator.allocate(PAGE_SIZE)
    assert first is not None and len(first.pages) == 2
    assert allocator.allocate(PAGE_SIZE) is None, "one page is free"
    second = allocator.allocate(0)
    assert second is not None and allocator.allocate(0) is None, "no slot is free"
    allocator.free(first)
    assert allocator.allocate(2 * PAGE_SIZE) is None, "more pages than a request may have"
    allocator.free(second)
    assert (allocator.slots.num_free, allocator.pages.num_free) == (2, 3)


def test_allocator_adds_a_page_when_a_position_needs_one() -> None:
    allocator = Allocator(slots=1, pages=2, max_pages=9)
    row = allocator.allocate(PAGE_SIZE - 1)
    assert row is not None and len(row.pages) == 1
    grown = []
    for positions in (PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE + 1):
        grown.append((allocator.grow(row, positions), len(row.pages)))
    assert grown == [(True, 1), (True, 2), (False, 2)]


def test_bucket_for() -> None:
    assert [bucket_for((1, 2, 8), count) for count in (1, 2, 3, 8)] == [1, 2, 8, 8]
    with pytest.raises(ValueError, match="9 is more than 8"):
        bucket_for((1, 2, 8), 9)
