"""The plan of a burst's prefills: the fewest positions, every prompt complete and in order."""

import random

import pytest

from syrinx_stages.talker.cuda.prefill import (
    MAX_BURST_POSITIONS,
    MAX_PREFILL_POSITIONS,
    PREFILL_LENGTHS,
    PREFILL_OVERHEAD,
    PREFILL_ROWS,
    burst_size,
    mixed_shape,
    plan_prefills,
    prefill_shapes,
)

LONGEST = PREFILL_LENGTHS[-1]


def shapes(positions: list[int]) -> list[tuple[int, int]]:
    return sorted((prefill.rows, prefill.length) for prefill in plan_prefills(positions))


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([], []),
        ([1], [(1, 16)]),
        ([16], [(1, 16)]),
        ([17], [(1, 32)]),
        ([LONGEST], [(1, 512)]),
        ([LONGEST + 1], [(1, 16), (1, 512)]),
        ([40] * 8, [(8, 64)]),
        ([40] * 7 + [300], [(1, 512), (8, 64)]),
        ([300] + [40] * 7, [(1, 512), (8, 64)]),
        # The long prompt's remainder of 4 positions shares the graph of the short ones.
        ([40] * 7 + [5 * LONGEST + 4], [*[(1, 512)] * 5, (8, 64)]),
        ([600, 600], [(1, 512), (1, 512), (2, 128)]),
        ([100, 100, 100, 200, 200], [(2, 256), (4, 128)]),
        # One graph of 512 positions takes less time than two of 272, but not than two of 320 that hold four prompts.
        ([16, 129], [(2, 256)]),
        ([16, 16, 16, 129], [(1, 256), (4, 16)]),
        ([12, 20], [(2, 32)]),
    ],
)
def test_shapes_follow_from_the_prompts_that_share_a_graph(positions: list[int], expected: list[object]) -> None:
    assert shapes(positions) == expected


@pytest.mark.parametrize("seed", range(200))
def test_every_prompt_is_prefilled_completely_and_in_order(seed: int) -> None:
    generator = random.Random(seed)
    longest = generator.choice([20, 100, 600, 4096])
    positions = [generator.randint(1, longest) for _ in range(generator.randint(1, 20))]
    done = [0] * len(positions)
    captured = set(prefill_shapes())
    for prefill in plan_prefills(positions):
        assert (prefill.rows, prefill.length) in captured
        assert prefill.rows * prefill.length <= MAX_PREFILL_POSITIONS
        assert 1 <= len(prefill.chunks) <= prefill.rows
        # A graph computes a prompt's rows at the same time, so it holds at most one chunk of each.
        assert len({chunk.prompt for chunk in prefill.chunks}) == len(prefill.chunks)
        for chunk in prefill.chunks:
            assert chunk.start == done[chunk.prompt] < chunk.end <= chunk.start + prefill.length
            done[chunk.prompt] = chunk.end
    assert done == positions


@pytest.mark.parametrize("seed", range(50))
def test_a_burst_takes_no_more_positions_than_its_prompts_one_by_one(seed: int) -> None:
    generator = random.Random(seed)
    positions = [generator.randint(1, 700) for _ in range(PREFILL_ROWS[-1])]
    alone = [prefill for each in positions for prefill in plan_prefills([each])]
    plan = plan_prefills(positions)
    assert len(plan) <= len(alone)
    overhead = PREFILL_OVERHEAD * (len(alone) - len(plan))
    assert sum(p.rows * p.length for p in plan) <= sum(p.rows * p.length for p in alone) + overhead


def test_plan_does_not_depend_on_the_order_of_the_prompts() -> None:
    generator = random.Random(0)
    positions = [5, 40, 41, 64, 65, 130, 300, 513]
    expected = shapes(positions)
    for _ in range(20):
        generator.shuffle(positions)
        assert shapes(positions) == expected


@pytest.mark.parametrize(
    ("positions", "count"),
    [
        ([], 1),
        ([4096] * 8, 1),
        ([40] * 8, 8),
        ([300] * 8, 6),
        ([MAX_BURST_POSITIONS, 1], 1),
        # The oldest are first: a short prompt does not overtake a long one.
        ([1500, 600, 40], 1),
    ],
)
def test_a_burst_is_bounded(positions: list[int], count: int) -> None:
    assert burst_size(positions) == count
    assert count <= 1 or sum(positions[:count]) <= MAX_BURST_POSITIONS


@pytest.mark.parametrize(
    ("positions", "shape"),
    [
        ([20], (2, 32)),
        ([33], (1, 64)),
        ([32, 20], (2, 32)),
        ([33, 20], (2, 64)),
        ([30] * 5, (8, 32)),
        ([100], (1, 128)),
        ([100, 101, 102], None),
        ([129], None),
        ([20] * 9, None),
    ],
)
def test_smallest_prefill_beside_a_frame(positions: list[int], shape: tuple[int, int] | None) -> None:
    assert mixed_shape(positions) == shape
    assert shape is None or shape in prefill_shapes()
