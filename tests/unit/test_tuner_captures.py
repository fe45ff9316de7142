"""Plans of captured decoder shapes: compared with brute force, within budget, and only with a gain."""

from __future__ import annotations

import random
import time
from itertools import combinations

import msgspec
import pytest

from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.tuner import capture_search
from syrinx_operator.tuner.capture_search import CallGrid, Limits, Search, SearchResult, TimeGrid
from syrinx_operator.tuner.captures import (
    CapturePlan,
    MeanTime,
    capture_cost,
    estimate_times,
    mean_times,
    padded_shape,
    plan_captures,
)
from syrinx_operator.tuner.evidence import CallStats, CaptureCost
from syrinx_operator.tuner.policy import CaptureBudget
from syrinx_stages.codec.scheduler import cheapest_shape

PLENTY = CaptureBudget(count=16, seconds=60.0, bytes=1 << 31)


# What the codec does ----------------------------------------------------------------------------------------------


def test_padding_matches_the_codec() -> None:
    rng = random.Random(1)
    for _ in range(500):
        captured = [(rng.randint(1, 6), rng.randint(1, 6)) for _ in range(rng.randint(0, 6))]
        wanted = rng.randint(1, 6), rng.randint(1, 6)
        assert padded_shape(captured, wanted) == cheapest_shape(captured, *wanted)


class Instance:
    """A small random instance: times rise with the shape and are otherwise arbitrary; limits may or may not bind."""

    def __init__(self, seed: int, rows: int = 3, frames: int = 3) -> None:
        rng = random.Random(seed)
        self.rows = sorted(rng.sample(range(1, 9), rng.randint(1, rows)))
        self.frames = sorted(rng.sample(range(1, 13), rng.randint(1, frames)))
        self.candidates = [(r, f) for r in self.rows for f in self.frames]
        self.wanted = {shape: rng.choice([0, 1, 5, 100]) for shape in self.candidates}
        self.wanted[rng.choice(self.candidates)] = 50
        self.eager, self.captured = rising(rng, self.rows, self.frames), rising(rng, self.rows, self.frames)
        self.load = CallGrid(self.rows, self.frames, self.wanted, TimeGrid(self.eager, self.captured))
        self.current = rng.sample(self.candidates, min(len(self.candidates), rng.randint(0, 4)))
        cost = {shape: rng.uniform(1, 3) for shape in self.candidates}
        self.limits = Limits(rng.choice([1, 2, 4, 9]), rng.choice([0, 1, 2, 9]), ((cost, rng.choice([4, 9, 99])),))

    def seconds(self, shapes: tuple[tuple[int, int], ...]) -> float:
        """Uses the codec's padding rule."""
        total = 0.0
        for (r, f), count in self.wanted.items():
            shape = cheapest_shape(shapes, r, f)
            table = self.captured if shape else self.eager
            at = shape or (r, f)
            total += count * table[self.frames.index(at[1])][self.rows.index(at[0])]
        return total

    def permitted(self, shapes: tuple[tuple[int, int], ...]) -> bool:
        cost, most = self.limits.costs[0]
        new = len(set(shapes) - set(self.current))
        few = len(shapes) <= self.limits.max_count and new <= self.limits.max_new
        return few and sum(cost[shape] for shape in shapes) <= most

    def best(self) -> float:
        sets = (chosen for n in range(len(self.candidates) + 1) for chosen in combinations(self.candidates, n))
        return min(self.seconds(shapes) for shapes in sets if self.permitted(shapes))

    def search(self) -> SearchResult:
        return Search(self.load, self.candidates, self.current, self.limits).run()


def rising(rng: random.Random, rows: list[int], frames: list[int]) -> list[list[float]]:
    """Returns times indexed [frames][rows] that are nondecreasing in both."""
    table: list[list[float]] = []
    for j in range(len(frames)):
        line: list[float] = []
        for i in range(len(rows)):
            least = max([1.0, *line[i - 1 : i], *(above[i] for above in table[j - 1 : j])])
            line.append(least + rng.choice([0.0, 0.1, 1.0, 5.0]))
        table.append(line)
    return table


@pytest.mark.parametrize("block", range(8))
def test_no_set_is_better_than_the_result(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        instance = Instance(seed)
        found, best = instance.search(), instance.best()
        assert instance.permitted(found.shapes), seed
        assert found.seconds == pytest.approx(instance.seconds(found.shapes)), seed
        assert found.seconds == pytest.approx(best), seed
        assert found.bound == pytest.approx(best), seed
        assert found.seconds <= instance.seconds(()) * (1 + 1e-9), seed


def test_branch_and_bound_does_not_need_a_good_incumbent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "_improve", lambda search, shapes: 0.0)
    for seed in range(300):
        instance = Instance(seed)
        assert instance.search().seconds == pytest.approx(instance.best()), seed


@pytest.mark.parametrize("work", [0, 300, 1000])
def test_an_interrupted_search_bounds_its_gap(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_search, "WORK_BUDGET", work)
    early = 0
    for seed in range(150):
        instance = Instance(seed)
        found, best = instance.search(), instance.best()
        assert instance.permitted(found.shapes), seed
        assert found.bound <= best * (1 + 1e-9) <= found.seconds * (1 + 1e-8), seed
        early += found.bound < found.seconds * (1 - 1e-6)
    assert early or work


def test_the_bound_holds_for_large_instances() -> None:
    """No pair of new shapes beside the current ones is below the bound."""
    for seed in range(6):
        instance = Instance(seed, rows=8, frames=8)
        instance.limits = Limits(9, 2, (({shape: 1.0 for shape in instance.candidates}, 99),))
        found = instance.search()
        new = [shape for shape in instance.candidates if shape not in instance.current]
        for n in range(3):
            for added in combinations(new, n):
                assert instance.seconds((*instance.current, *added)) >= found.bound * (1 - 1e-9)


def test_shapes_larger_than_all_calls_bring_no_gain() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        rows, frames = [1, 2, 3, 4], [1, 2, 3]
        every = [(r, f) for r in rows for f in frames]
        wanted = {shape: rng.randint(1, 100) for shape in rng.sample(every, 4)}
        rank = {area: 1.0 + 0.3 * at for at, area in enumerate(sorted({r * f for r, f in every}))}
        table = TimeGrid(rising(rng, rows, frames), [[rank[r * f] for r in rows] for f in frames])
        load = CallGrid(rows, frames, wanted, table)
        grid = [(r, f) for r in {r for r, _ in wanted} for f in {f for _, f in wanted}]
        found = Search(load, grid, [], Limits(2, 2, ())).run()
        best = min(load.seconds(shapes) for n in range(3) for shapes in combinations(every, n))
        assert found.seconds == pytest.approx(best), seed


# What calls take --------------------------------------------------------------------------------------------------


def test_times_are_grouped_by_the_computed_shape() -> None:
    calls = [
        CallStats(1, 2, "hit", 10, 0.1),
        CallStats(1, 1, "padded", 10, 0.3),
        CallStats(1, 1, "eager", 5, 0.5),
        CallStats(9, 9, "padded", 7, 7.0),
        CallStats(1, 4, "eager", 0, 0.0),
    ]
    eager, captured = mean_times(calls, [(1, 2), (4, 4)])
    assert eager == {(1, 1): MeanTime(5, 0.1)}
    assert captured == {(1, 2): MeanTime(20, pytest.approx(0.02))}


def test_measured_times_are_kept_and_the_rest_is_fitted() -> None:
    eager = {(r, f): MeanTime(100, 0.010 + 0.001 * r * f) for r in (1, 2) for f in (1, 2)}
    captured = {(1, 1): MeanTime(100, 0.003), (2, 2): MeanTime(100, 0.0065)}
    known = estimate_times(eager, captured, [1, 2, 4], [1, 2])
    assert known is not None
    assert known.captured[0][0] == pytest.approx(0.003)
    assert known.captured[1][1] == pytest.approx(0.0065)
    assert known.eager[1][2] == pytest.approx(0.018, rel=0.02)
    assert known.captured[0][1] == pytest.approx(0.003 + 0.0035 / 3)
    assert known.captured[1][2] == pytest.approx(0.003 + 0.0035 / 3 * 7)


def test_a_fit_does_not_override_measurements() -> None:
    captured = {(1, 1): MeanTime(100, 0.003), (1, 2): MeanTime(100, 0.009), (2, 2): MeanTime(100, 0.010)}
    known = estimate_times({}, captured, [1, 2], [1, 2])
    assert known is not None
    assert [known.captured[0][0], *known.captured[1]] == [0.003, 0.009, 0.010]


@pytest.mark.parametrize("seed", range(100))
def test_times_are_nondecreasing_in_the_shape(seed: int) -> None:
    rng = random.Random(seed)
    rows, frames = [1, 2, 3, 8], [1, 4, 5, 12]
    kinds = [
        {
            (r, f): MeanTime(rng.choice([1, 100]), rng.uniform(0.001, 0.1))
            for r in rows
            for f in frames
            if rng.random() < 0.5
        }
        for _ in range(2)
    ]
    known = estimate_times(*kinds, rows, frames)
    for table in (known.eager, known.captured) if known else ():
        assert all(line == sorted(line) for line in table)
        assert all(list(line) == sorted(line) for line in zip(*table, strict=True))


def test_the_frames_term_needs_support_by_the_data() -> None:
    shapes = [(r, f) for r in (1, 2, 4, 8) for f in (1, 2, 4, 8)]
    captured = {(8, 8): MeanTime(100, 0.064 + 0.040)}
    plain = estimate_times(
        {each: MeanTime(100, 0.05 + 0.001 * each[0] * each[1]) for each in shapes}, captured, [8, 16], [8, 16]
    )
    steps = {each: MeanTime(100, 0.05 + 0.001 * each[0] * each[1] + 0.005 * each[1]) for each in shapes}
    framed = estimate_times(steps, {(8, 8): MeanTime(100, 0.104 + 0.040)}, [8, 16], [8, 16])
    assert plain is not None and framed is not None
    assert plain.captured[1][0] == pytest.approx(0.104 + 0.064)
    assert framed.captured[1][0] == pytest.approx(0.144 + 0.064 + 0.040)


def test_capture_costs_are_bounded_by_known_costs() -> None:
    known = {(1, 4): 2.0, (4, 4): 3.0}
    assert capture_cost((4, 4), known) == 3.0
    assert capture_cost((1, 2), known) == 2.0
    assert capture_cost((2, 4), known) == 3.0
    assert capture_cost((8, 4), known) == 6.0


# What is proposed -------------------------------------------------------------------------------------------------


def eager_time(r: int, f: int) -> float:
    return 0.020 + 0.0002 * r * f


def captured_time(r: int, f: int) -> float:
    return 0.004 + 0.0002 * r * f


def measured(wanted, current=(), eager=eager_time, captured=captured_time) -> list[CallStats]:
    """Returns a codec's call counters for a number of calls by requested shape."""
    calls = []
    for (r, f), count in wanted.items():
        shape = cheapest_shape(current, r, f)
        result = "eager" if shape is None else "hit" if shape == (r, f) else "padded"
        seconds = captured(*shape) if shape else eager(r, f)
        calls.append(CallStats(r, f, result, count, count * seconds))
    return calls


def plan(wanted, current, budget=PLENTY, most_rows=64, captures=None, **kinds) -> CapturePlan | None:
    max_new = kinds.pop("max_new", 2)
    captures = [CaptureCost(r, f, 0.5, 1 << 20) for r, f in current] if captures is None else captures
    shapes = tuple(CaptureShape(rows=r, frames=f) for r, f in current)
    return plan_captures(measured(wanted, current, **kinds), captures, shapes, budget, most_rows, max_new)


def shapes_of(planned: CapturePlan | None) -> list[tuple[int, int]]:
    assert planned is not None
    return [(each.rows, each.frames) for each in planned.shapes]


def saved_ratio(planned: CapturePlan) -> float:
    return 1 - planned.seconds_after / planned.seconds_before


def test_captures_the_most_requested_shapes() -> None:
    planned = plan({(1, 2): 1000, (2, 2): 5000, (4, 8): 3000, (3, 7): 2}, [(1, 2)])
    assert shapes_of(planned) == [(1, 2), (2, 2), (4, 8)]
    assert planned.seconds_before > planned.seconds_after
    assert planned.optimality_gap == pytest.approx(0, abs=1e-6)
    assert "new: 2x2" in planned.rationale and "4x8" in planned.rationale and len(planned.rationale) <= 256


def test_starts_with_the_shapes_of_most_decoder_time() -> None:
    """A codec exports a capture cost after its warm-up."""
    wanted = {(1, 2): 1000, (2, 2): 5000, (4, 2): 4000, (8, 8): 1}
    first = plan(wanted, [], captures=[CaptureCost(1, 1, 0.5, 1 << 20)])
    assert first is not None
    assert first.shapes == (CaptureShape(rows=2, frames=2), CaptureShape(rows=4, frames=2))
    assert saved_ratio(first) == 0
    assert (
        "no captured call was measured yet" in first.rationale
        and "2x2 (" in first.rationale
        and len(first.rationale) <= 256
    )
    tight = msgspec.structs.replace(PLENTY, bytes=5 << 20)
    assert plan(wanted, [], tight, captures=[CaptureCost(1, 1, 0.5, 1 << 20)]).shapes == (
        CaptureShape(rows=2, frames=2),
    )


def test_no_plan_without_costs_or_measurements() -> None:
    """A codec on a CPU exports no capture cost."""
    assert plan({(1, 2): 1000, (2, 2): 5000}, []) is None
    assert plan_captures([], [], (), PLENTY, 8) is None
    assert plan_captures([], [CaptureCost(1, 1, 0.5, 1 << 20)], (), PLENTY, 8) is None


def test_a_shape_without_a_known_cost_is_not_captured() -> None:
    assert plan({(1, 2): 1000, (2, 2): 5000}, [(1, 2)], captures=()) is None


def test_no_plan_without_a_gain() -> None:
    """On a CPU a captured shape is not faster and only adds padding."""
    assert plan({(1, 2): 1000, (1, 1): 3000, (2, 2): 5000}, [(1, 2)], captured=eager_time) is None


def test_drops_a_harmful_shape() -> None:
    """The codec pads to a captured shape even if eager is faster."""
    wanted = {(1, 1): 9000, (1, 2): 1000, (8, 12): 50, (9, 12): 40, (16, 12): 40}
    planned = plan(wanted, [(8, 12)], max_new=0, eager=captured_time)
    assert shapes_of(planned) == []
    assert "dropped: 8x12" in planned.rationale


def test_keeps_a_bad_shape_without_other_measurements() -> None:
    assert plan({(1, 1): 9000, (8, 12): 50}, [(8, 12)], eager=captured_time) is None


def test_ignores_a_small_gain() -> None:
    assert plan({(1, 2): 100_000, (2, 2): 100}, [(1, 2)]) is None


def test_drops_a_rare_shape_with_the_next_change() -> None:
    wanted = {(1, 2): 50_000, (2, 2): 50_000, (4, 8): 20, (6, 9): 20}
    planned = plan(wanted, [(1, 2), (4, 8)])
    assert shapes_of(planned) == [(1, 2), (2, 2)]
    assert "dropped: 4x8" in planned.rationale


def test_keeps_the_only_measured_option() -> None:
    """If all calls were captured, the time of eager calls is unknown."""
    wanted = {(1, 2): 50_000, (4, 8): 40, (2, 4): 30_000}
    assert (4, 8) in shapes_of(plan(wanted, [(1, 2), (4, 8)]))


def test_no_plan_relies_on_unmeasured_eager_times() -> None:
    """The calls were captured with shapes that were removed since."""
    calls = [CallStats(1, 2, "hit", 1000, 5.0), CallStats(2, 4, "hit", 1000, 8.0)]
    assert plan_captures(calls, [CaptureCost(1, 2, 0.5, 1 << 20)], (CaptureShape(rows=1, frames=2),), PLENTY, 8) is None


def test_calls_of_zero_time_are_ignored() -> None:
    calls = [CallStats(1, 2, "hit", 1000, 0.0), CallStats(2, 4, "eager", 1000, 0.0)]
    assert plan_captures(calls, [CaptureCost(1, 2, 0.5, 1 << 20)], (CaptureShape(rows=1, frames=2),), PLENTY, 8) is None


def test_two_new_shapes_at_a_time_reach_the_same_set() -> None:
    wanted = {(r, f): 10_000 // (r * f) for r in range(1, 9) for f in (1, 2, 3, 4, 8, 12)}
    budget = CaptureBudget(count=6, seconds=60.0, bytes=1 << 31)
    current = [(1, 2)]
    for _ in range(10):
        planned = plan(wanted, current, budget)
        current = current if planned is None else shapes_of(planned)
    assert planned is None
    at_once = plan(wanted, [(1, 2)], budget, max_new=6)
    assert at_once is not None
    table = measured(wanted, current)
    assert sum(call.seconds for call in table) <= at_once.seconds_after * 1.05


def test_calls_above_the_row_limit_are_not_expected() -> None:
    wanted = {(1, 2): 1000, (2, 2): 900, (16, 8): 50_000}
    planned = plan(wanted, [(1, 2), (16, 4)], most_rows=2)
    assert shapes_of(planned) == [(1, 2), (2, 2)]


@pytest.mark.parametrize("max_new", [1, 2, 4])
def test_the_number_of_new_shapes_is_limited(max_new: int) -> None:
    wanted = {(r, f): 1000 for r in (1, 2, 4, 8) for f in (2, 4, 8)}
    assert len(set(shapes_of(plan(wanted, [(1, 2)], max_new=max_new))) - {(1, 2)}) == max_new


@pytest.mark.parametrize("seed", range(24))
def test_the_budget_is_never_exceeded(seed: int) -> None:
    rng = random.Random(seed)
    wanted = {(rng.randint(1, 8), rng.randint(1, 12)): rng.randint(30, 5000) for _ in range(20)}
    current = rng.sample(sorted(wanted), 4)
    captures = [CaptureCost(r, f, 0.2 + 0.01 * r * f, 1_000_000 + 10_000 * r * f) for r, f in current]
    budget = CaptureBudget(count=rng.randint(1, 8), seconds=rng.uniform(0.5, 5), bytes=rng.randint(1, 12) * 1_000_000)
    planned = plan(wanted, current, budget=budget, captures=captures, max_new=rng.choice([1, 2, 4]))
    if planned is None:
        return
    shapes = shapes_of(planned)
    assert shapes == sorted(set(shapes))
    assert len(shapes) <= budget.count
    assert sum(0.2 + 0.01 * r * f for r, f in shapes) <= budget.seconds + 1e-9
    assert sum(1_000_000 + 10_000 * r * f for r, f in shapes) <= budget.bytes
    assert saved_ratio(planned) >= 0.02 and planned.optimality_gap >= -1e-9
    assert planned.seconds_after <= sum(count * eager_time(r, f) for (r, f), count in wanted.items())


def test_the_plan_does_not_depend_on_the_order() -> None:
    rng = random.Random(5)
    wanted = {(r, f): rng.randint(30, 5000) for r in range(1, 9) for f in range(1, 13)}
    calls = measured(wanted, [(1, 2), (8, 12)])
    captures = [CaptureCost(1, 2, 0.5, 1 << 20)]
    current = (CaptureShape(rows=1, frames=2), CaptureShape(rows=8, frames=12))
    plans = []
    for _ in range(3):
        rng.shuffle(calls)
        plans.append(plan_captures(calls, captures, current, PLENTY, 8))
    assert plans[0] is not None
    assert {each.shapes for each in plans} == {plans[0].shapes}


# Published cases --------------------------------------------------------------------------------------------------


def test_reproduces_the_published_loss_from_padding() -> None:
    """vllm-omni#3322, decoder microbench on H100, 800 frames: graphs of 325 frames, three of them for 800, take
    118, 228, 448 and 884 ms for 1, 2, 4 and 8 rows; eager (and one row's own graph) 110, 203, 395 and 775 ms."""
    eager = {1: 0.110, 2: 0.203, 4: 0.395, 8: 0.775}
    padded = {1: 0.118, 2: 0.228, 4: 0.448, 8: 0.884}
    calls = [CallStats(rows, 800, "eager", 100, 100 * seconds) for rows, seconds in eager.items()]
    calls += [CallStats(rows, 800, "padded", 100, 100 * seconds) for rows, seconds in padded.items()]
    current = tuple(CaptureShape(rows=rows, frames=3 * 325) for rows in padded)
    captures = [CaptureCost(rows, 3 * 325, 1.0, 1 << 20) for rows in padded]
    planned = plan_captures(calls, captures, current, PLENTY, 8, max_new=0)
    assert shapes_of(planned) == []
    assert saved_ratio(planned) == pytest.approx(1 - sum(eager.values()) / sum(padded.values()), abs=0.01)


def test_reproduces_the_published_gain_from_pairs() -> None:
    """sglang-omni's vocoder study (H100, stateful decoder, 8 frames): graphs of 1, 2, 4 and 8 rows take 3.4, 4.0, 6.6
    and 8.6 ms. With only the first and the last, calls of 2 and 4 rows pay for 8."""
    graph = {1: 0.0034, 2: 0.0040, 4: 0.0066, 8: 0.0086}
    wanted = {(1, 8): 1000, (2, 8): 3000, (4, 8): 3000, (8, 8): 1000}
    planned = plan(wanted, [(1, 8), (8, 8)], captured=lambda r, f: graph[r])
    assert shapes_of(planned) == [(1, 8), (2, 8), (4, 8), (8, 8)]
    saved = 3000 * (2 * graph[8] - graph[2] - graph[4]) / planned.seconds_before
    assert saved_ratio(planned) == pytest.approx(saved, rel=0.15)


# Size -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("captured", [[(1, 2), (64, 64)], [(r, f) for r in (1, 8, 32, 64) for f in (2, 8, 24, 64)]])
def test_64_rows_by_64_frames_are_planned_in_two_seconds(captured: list[tuple[int, int]]) -> None:
    rng = random.Random(3)
    wanted = {(r, f): int(30 * rng.paretovariate(0.6)) for r in range(1, 65) for f in range(1, 65)}
    calls = [*measured(wanted, captured), CallStats(2, 3, "eager", 50, 50 * eager_time(2, 3))]
    current = tuple(CaptureShape(rows=r, frames=f) for r, f in captured)
    captures = [CaptureCost(r, f, 0.5, 1 << 20) for r, f in captured]
    began = time.process_time()
    planned = plan_captures(calls, captures, current, PLENTY, 64)
    assert time.process_time() - began < 2.0
    assert planned is not None
    assert saved_ratio(planned) > 0.02
    assert 0 <= planned.optimality_gap < 0.2
