"""Plans the decoder shapes that a codec captures, from the measured times of its calls. Pure.

`capture_times` models the times and `capture_search` finds the best set. This module decides whether it is worth it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.tuner.capture_search import CallGrid, Limits, Search
from syrinx_operator.tuner.capture_times import Shape, capture_cost, estimate_times, mean_times
from syrinx_operator.tuner.evidence import CallStats, CaptureCost
from syrinx_operator.tuner.policy import CaptureBudget

MIN_SAVED = 0.02
"""Fraction of the decoder time that a change must save. A trial could not detect less."""

RARE = 0.001
"""Fraction of the calls below which a shape is dropped, unless that costs as large a fraction of the time. A new shape
must save at least this fraction."""

MAX_NEW = 2
"""New shapes per plan. Predicted times of new shapes may be wrong; with few of them the trial tests exactly those."""


class CapturePlan(Struct, frozen=True, kw_only=True):
    """A set of shapes that is predicted to be better than the current one."""

    shapes: tuple[CaptureShape, ...]
    """Sorted by rows, then frames."""
    reasons: tuple[str, ...]
    """Benefit of each shape, as text."""
    seconds_before: float
    """Predicted decoder seconds of the measured calls with the current shapes."""
    seconds_after: float
    """Predicted decoder seconds with the planned shapes."""
    saved_ratio: float
    """Fraction of `seconds_before`."""
    optimality_gap: float
    """Upper bound of what the optimal set would save in addition, as a fraction of `seconds_before`; 0 if optimal."""
    rationale: str
    """At most 256 characters."""


def plan_captures(
    calls: Iterable[CallStats],
    captures: Iterable[CaptureCost],
    current: tuple[CaptureShape, ...],
    budget: CaptureBudget,
    max_rows: int,
    max_new: int = MAX_NEW,
) -> CapturePlan | None:
    """Returns the shapes to capture, at most `max_new` of them new; None with too little data or gain.

    `calls` were computed with the `current` shapes by codecs of equal speed. Calls of more than `max_rows` rows (the
    current limit of a call) contribute to the times but are not expected again. Before a captured call was measured,
    the gain is unknown; then the shapes with the most decoder time are planned first. Before a capture cost was
    measured, no new shape fits the budget. A current set that exceeds the budget is not changed for that reason alone.
    """
    calls = tuple(calls)
    current_shapes = [(each.rows, each.frames) for each in current]
    requested = _requested(calls, max_rows)
    grid = _call_grid(calls, current_shapes, requested)
    if budget.count == 0:
        return None
    if grid is None:
        return _first(calls, captures, current_shapes, requested, budget, max_new)
    candidates = sorted(
        {(r, f) for r in {r for r, _ in requested} for f in {f for _, f in requested}} | set(current_shapes)
    )
    before = grid.seconds(current_shapes)
    usable = [shape for shape in candidates if shape[0] <= max_rows]
    limits = _limits(captures, usable, budget, max_new)
    kept = [shape for shape in current_shapes if shape[0] <= max_rows]
    found = Search(grid, usable, kept, limits).run()
    shapes = min(_prune(grid, current_shapes, found.shapes, before), (), key=grid.seconds)
    after = grid.seconds(shapes)
    if before <= 0 or before - after < MIN_SAVED * before:
        return None
    return _plan(grid, current_shapes, shapes, before, (after - found.bound) / before)


def _first(
    calls: Iterable[CallStats],
    captures: Iterable[CaptureCost],
    current_shapes: list[Shape],
    requested: Mapping[Shape, int],
    budget: CaptureBudget,
    max_new: int,
) -> CapturePlan | None:
    """Returns a first plan that adds the shapes with the most decoder time, to measure captured calls.

    None if captured calls were measured already, no eager calls were, or no capture cost is known.
    """
    eager, captured = mean_times(calls, current_shapes)
    seconds = {shape: requested[shape] * eager[shape].seconds for shape in requested if shape in eager}
    before = sum(seconds.values())
    limits = _limits(captures, [*requested, *current_shapes], budget, max_new)
    if captured or not before:
        return None
    shapes = list(current_shapes)
    for shape in sorted(seconds, key=lambda shape: (-seconds[shape], shape)):
        enough = seconds[shape] >= MIN_SAVED * before and len(shapes) - len(current_shapes) < limits.max_new
        if enough and shape not in current_shapes and limits.allow((*shapes, shape)):
            shapes.append(shape)
    added = [f"{_name(shape)} ({seconds[shape] / before:.1%})" for shape in shapes[len(current_shapes) :]]
    if not added:
        return None
    return CapturePlan(
        shapes=tuple(CaptureShape(rows=r, frames=f) for r, f in sorted(shapes)),
        reasons=tuple(f"{seconds.get(shape, 0.0) / before:.1%} of decoder time" for shape in sorted(shapes)),
        seconds_before=before,
        seconds_after=before,
        saved_ratio=0.0,
        optimality_gap=1.0,
        rationale="no captured call was measured yet; starting with the most decoder time: " + ", ".join(added),
    )


def _requested(calls: Iterable[CallStats], max_rows: int) -> dict[Shape, int]:
    """Returns the number of calls by requested shape."""
    requested: dict[Shape, int] = {}
    for call in calls:
        if call.rows <= max_rows and call.count > 0:
            requested[call.rows, call.frames] = requested.get((call.rows, call.frames), 0) + call.count
    return requested


def _call_grid(calls: Iterable[CallStats], current_shapes: list[Shape], requested: dict[Shape, int]) -> CallGrid | None:
    """Returns the calls with their times; None if the time of the current set is unknown."""
    rows = sorted({r for r, _ in (*requested, *current_shapes)})
    frames = sorted({f for _, f in (*requested, *current_shapes)})
    eager, captured = mean_times(calls, current_shapes)
    known = estimate_times(eager, captured, rows, frames)
    if known is None or not requested:
        return None
    grid = CallGrid(rows, frames, requested, known)
    captured_calls = sum(grid.calls_by_shape(current_shapes).values())
    return grid if eager or captured_calls == grid.call_count else None


def _limits(captures: Iterable[CaptureCost], usable: list[Shape], budget: CaptureBudget, max_new: int) -> Limits:
    """Returns the budget as search constraints. The largest measured cost of a shape counts."""
    seconds: dict[Shape, float] = {}
    memory: dict[Shape, float] = {}
    for each in captures:
        shape: Shape = (each.rows, each.frames)
        seconds[shape] = max(seconds.get(shape, 0.0), each.seconds)
        memory[shape] = max(memory.get(shape, 0.0), float(each.bytes))
    if not seconds:
        return Limits(budget.count, 0, ())
    costs = tuple(
        ({shape: capture_cost(shape, known) for shape in usable}, limit)
        for known, limit in ((seconds, budget.seconds), (memory, float(budget.bytes)))
    )
    return Limits(budget.count, max_new, costs)


def _prune(grid: CallGrid, current_shapes: list[Shape], shapes: tuple[Shape, ...], before: float) -> tuple[Shape, ...]:
    """Drops rare and new shapes, least valuable first, while that costs less than `RARE` of the time."""
    while True:
        calls_of, seconds = grid.calls_by_shape(shapes), grid.seconds(shapes)
        droppable = [
            shape for shape in shapes if shape not in current_shapes or calls_of[shape] < RARE * grid.call_count
        ]
        rests = [tuple(each for each in shapes if each != shape) for shape in droppable]
        rest = min(rests, key=lambda rest: (grid.seconds(rest), rest), default=shapes)
        if rest == shapes or grid.seconds(rest) - seconds >= RARE * before:
            return shapes
        shapes = rest


def _plan(
    grid: CallGrid, current_shapes: list[Shape], shapes: tuple[Shape, ...], before: float, gap: float
) -> CapturePlan:
    after = grid.seconds(shapes)
    calls_of = grid.calls_by_shape(shapes)
    reasons = {}
    for shape in sorted(shapes):
        without = grid.seconds(each for each in shapes if each != shape) - after
        reasons[shape] = (
            f"{calls_of[shape] / grid.call_count:.1%} of calls, {without / before:.1%} more time without it"
        )
    saved = (before - after) / before
    added = [f"{_name(shape)} ({reasons[shape]})" for shape in sorted(set(shapes) - set(current_shapes))]
    dropped = [_name(shape) for shape in sorted(set(current_shapes) - set(shapes))]
    why = f"saves {saved:.1%} of decoder time, at most {gap:.1%} from the optimum"
    if added:
        why += "; new: " + ", ".join(added[:2]) + (f" and {len(added) - 2} more" if len(added) > 2 else "")
    if dropped:
        why += "; dropped: " + (", ".join(dropped) if len(dropped) <= 4 else f"{len(dropped)} shapes")
    return CapturePlan(
        shapes=tuple(CaptureShape(rows=r, frames=f) for r, f in sorted(shapes)),
        reasons=tuple(reasons.values()),
        seconds_before=before,
        seconds_after=after,
        saved_ratio=saved,
        optimality_gap=gap,
        rationale=why,
    )


def _name(shape: Shape) -> str:
    return f"{shape[0]}x{shape[1]}"
