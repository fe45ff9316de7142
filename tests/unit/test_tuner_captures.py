"""Captured shapes: what is proposed, within the budget, and only with a gain."""

import pytest
from msgspec.structs import replace

from syrinx_operator.observed.evidence import CaptureCost
from syrinx_operator.resource.fields.tuning import CaptureBounds
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.state.tuning_status import CallPoint
from syrinx_operator.tuner.model.captures import MAX_NEW, MIN_SAVED, call_times, plan_captures
from syrinx_stages.scheduling.codec import cheapest_shape

PLENTY = CaptureBounds(max=16, seconds=60, memory_mi_b=2048)
WARM_UP = (CaptureCost(1, 4, 0.5, 4 << 20),)
"""The cost of a shape: 0.125 s and 1 MiB for each row and frame."""
EAGER, CAPTURED = 0.020, 0.004
"""Seconds of a call, before 0.2 ms for each row and frame."""


def shapes(*pairs):
    return tuple(CaptureShape(rows=rows, frames=frames) for rows, frames in pairs)


def measured(counts, current=(), captured=CAPTURED):
    """Returns what is known of a codec's calls, numbers by requested shape: eager ones from before, and recent ones."""
    calls = []
    for (rows, frames), count in counts.items():
        shape = cheapest_shape(current, rows, frames)
        calls.append(CallPoint(rows, frames, False, count, count * (EAGER + 0.0002 * rows * frames)))
        if shape == (rows, frames):
            calls.append(CallPoint(rows, frames, True, count, count * (captured + 0.0002 * shape[0] * shape[1])))
    return calls


def planned(counts, current=(), budget=PLENTY, costs=WARM_UP, max_rows=64, **fields):
    found = plan_captures(measured(counts, current, **fields), counts, costs, shapes(*current), budget, max_rows)
    return None if found is None else [(each.rows, each.frames) for each in found.shapes]


def test_padding_costs_nothing():
    calls = measured({(1, 2): 100, (4, 8): 100, (2, 4): 100, (8, 8): 100}, [(1, 2), (4, 8)])
    times = call_times(tuple(calls), tuple(shapes((1, 2), (4, 8))))
    assert times.at(1, 2) == pytest.approx(CAPTURED + 0.0004, rel=0.2)
    assert times.at(1, 2) < times.at(2, 4) < times.at(4, 8)
    assert times.at(8, 8) > times.at(4, 8) + 0.010


def test_starts_with_the_shapes_of_most_decoder_time():
    assert planned({(1, 2): 1000, (4, 8): 5000, (2, 2): 100, (3, 7): 2000}) == [(3, 7), (4, 8)]


def test_adds_a_few_shapes_at_a_time_that_save_time():
    counts = {(1, 2): 3000, (4, 8): 5000, (2, 12): 2000, (1, 1): 1}
    assert planned(counts, [(1, 2)]) == [(1, 2), (2, 12), (4, 8)]
    found = plan_captures(measured(counts, [(1, 2)]), counts, WARM_UP, shapes((1, 2)), PLENTY, 64)
    assert MIN_SAVED < found.saved < 0.8
    assert len(planned({**counts, (8, 8): 4000, (16, 2): 4000}, [(1, 2)])) == 1 + MAX_NEW


def test_shapes_that_cost_time_are_dropped():
    """Captured calls are slower here, and one shape is never used."""
    counts = {(1, 2): 1000, (2, 4): 1000, (4, 8): 1000}
    assert planned(counts, [(1, 2), (2, 4)], captured=0.1) == []


def test_a_small_gain_is_no_reason_to_change():
    few = int(100_000 * MIN_SAVED / 4)
    assert planned({(4, 8): 100_000, (8, 8): few}, [(4, 8)]) is None
    assert planned({(4, 8): 100_000, (8, 8): 20 * few}, [(4, 8)]) == [(4, 8), (8, 8)]


def test_the_budget_holds():
    counts = {(1, 2): 3000, (2, 4): 3000, (4, 8): 3000, (8, 8): 3000}
    area = {"count": replace(PLENTY, max=1)}
    area["seconds"] = replace(PLENTY, seconds=2)
    area["bytes"] = replace(PLENTY, memory_mi_b=10)
    assert len(planned(counts, budget=area["count"])) == 1
    # 2 + 8 rows times frames.
    for name in ("seconds", "bytes"):
        assert planned(counts, [(1, 2)], budget=area[name]) == [(1, 2), (2, 4)]
        assert planned({(1, 4): 5000, (2, 8): 4000}, budget=area[name]) == [(1, 4)]


def test_calls_above_the_limit_of_rows_are_not_expected_again():
    assert planned({(16, 8): 10_000, (1, 2): 1000}, max_rows=8) == [(1, 2)]


@pytest.mark.parametrize("calls", [[], [CallPoint(1, 2, True, 10, 0.1)]])
def test_without_eager_calls_there_is_no_plan(calls):
    assert plan_captures(calls, {(1, 2): 1000}, WARM_UP, shapes((1, 2)), PLENTY, 64) is None
