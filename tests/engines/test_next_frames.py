"""The rows that are gathered for a step are those that each request's allocation describes."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import random

import numpy as np
import pytest

from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.talker.cuda.allocation import PAGE_SIZE, Allocator, num_pages
from syrinx_stages.talker.cuda.next_frames import NextFrames

MAX_PAGES, SLOTS, PAD = 8, 3, 99


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_requests_that_come_grow_and_go(seed: int) -> None:
    order = random.Random(seed)
    allocator = Allocator(SLOTS, pages=SLOTS * MAX_PAGES, max_pages=MAX_PAGES)
    next_frames = NextFrames(SLOTS + 1, MAX_PAGES)
    held: dict[int, list[int]] = {}
    """Positions, frames and maximum of frames of each slot."""
    allocations = {}
    texts: dict[int, list[int]] = {}
    renewed = steps = 0
    for _ in range(1500):
        if len(held) < SLOTS and order.random() < 0.05:
            prompt, count, frames = order.randint(1, PAGE_SIZE), order.randint(0, 2 * PAGE_SIZE), order.randint(0, 9)
            allocation = allocator.allocate(prompt)
            assert allocation is not None
            slot = allocation.slot
            texts[slot] = [order.randint(0, 9) for _ in range(count)]
            next_frames.open(allocation, frames, texts[slot], PAD)
            next_frames.fill(slot, prompt)
            allocations[slot], held[slot] = allocation, [prompt, frames, frames + order.randint(1, 3 * PAGE_SIZE)]
        chosen = [slot for slot in sorted(held) if order.random() < 0.9]
        slots = np.array(chosen, np.intp)
        for index in next_frames.due(slots):
            allocation, (positions, frames, max_frames) = allocations[chosen[index]], held[chosen[index]]
            assert (next_frames.position(allocation.slot), next_frames.frame(allocation.slot)) == (positions, frames)
            if frames == max_frames:
                allocator.free(allocation)
                del held[allocation.slot]
                continue
            assert allocator.grow(allocation, positions + 1)
            next_frames.write(allocation, max_frames)
            renewed += 1
        chosen = [slot for slot in chosen if slot in held]
        slots = np.array(chosen, np.intp)
        expected = np.zeros((len(chosen), NUM_COLUMNS + MAX_PAGES), np.int32)
        for row, slot in enumerate(chosen):
            allocation, (positions, frames, _) = allocations[slot], held[slot]
            assert num_pages(positions + 1) <= len(allocation.pages)
            text = texts[slot][frames] if frames < len(texts[slot]) else PAD
            numbers = [slot, positions, frames, text, 0, *allocation.pages]
            expected[row, : len(numbers)] = numbers
        np.testing.assert_array_equal(next_frames.rows(slots), expected)
        next_frames.advance(slots)
        for slot in chosen:
            held[slot][0] += 1
            held[slot][1] += 1
        steps += len(chosen)
        if held and order.random() < 0.01:
            # Its text goes on.
            slot = order.choice(sorted(held))
            more = [order.randint(0, 9) for _ in range(order.randint(1, 9))]
            texts[slot] += more
            next_frames.add_texts(slot, more)
    assert steps > 1000
    assert renewed < steps / 10
