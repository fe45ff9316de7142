"""Plans the decoder shapes that a codec captures, from the measured times of its calls. Pure.

Times of shapes without enough calls are fitted. `capture_search` finds the best set; `plan_captures` decides whether it
is worth it. Times are seconds per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, combinations, product

from msgspec import Struct

from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.tuner.capture_search import CallGrid, Limits, Search, Shape, TimeGrid, rank
from syrinx_operator.tuner.evidence import CallStats, CaptureCost
from syrinx_operator.tuner.policy import CaptureBudget

MIN_SAVED = 0.02
"""Fraction of the decoder time that a change must save. A trial could not detect less."""
RARE = 0.001
"""Fraction of the calls below which a shape is dropped, unless that costs as large a fraction of the time. A new shape
must save at least this fraction."""
MAX_NEW = 2
"""New shapes per plan. Predicted times of new shapes may be wrong; with few of them the trial tests exactly those."""
FULL_WEIGHT_CALLS = 30
"""Number of calls from which a mean is used as measured. More calls add no weight to a fit, because the error of the
fit is then its form, not noise."""
UNKNOWN_SECONDS = 1e6
"""Time of an eager call if none was measured, so that no captured shape is dropped."""


class MeanTime(Struct, frozen=True):
    """Mean time of the calls computed at one shape."""

    count: int
    seconds: float
    """Per call."""


class CapturePlan(Struct, frozen=True, kw_only=True):
    """A set of shapes that is predicted to be better than the current one."""

    shapes: tuple[CaptureShape, ...]
    """Sorted by rows, then frames."""
    seconds_before: float
    """Predicted decoder seconds of the measured calls with the current shapes."""
    seconds_after: float
    """Predicted decoder seconds with the planned shapes."""
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
    held: list[Shape] = [(each.rows, each.frames) for each in current]
    requested: dict[Shape, int] = {}
    for call in calls:
        if call.rows <= max_rows and call.count > 0:
            requested[call.rows, call.frames] = requested.get((call.rows, call.frames), 0) + call.count
    if budget.count == 0 or not requested:
        return None
    eager, captured = mean_times(calls, held)
    rows, frames = (sorted({shape[axis] for shape in (*requested, *held)}) for axis in (0, 1))
    times = estimate_times(eager, captured, rows, frames)
    grid = CallGrid(rows, frames, requested, times) if times else None
    if grid is None or (not eager and sum(grid.calls_by_shape(held).values()) < grid.call_count):
        if captured:
            return None
        seconds = {shape: requested[shape] * eager[shape].seconds for shape in requested if shape in eager}
        return _first_plan(seconds, held, _limits(captures, [*requested, *held], budget, max_new))
    candidates = {*product({r for r, _ in requested}, {f for _, f in requested}), *held}
    usable = sorted(shape for shape in candidates if shape[0] <= max_rows)
    limits = _limits(captures, usable, budget, max_new)
    found = Search(grid, usable, [shape for shape in held if shape[0] <= max_rows], limits).run()
    return _plan(grid, held, found.shapes, found.bound)


def _first_plan(seconds: Mapping[Shape, float], held: list[Shape], limits: Limits) -> CapturePlan | None:
    """Returns a first plan, to measure captured calls: it adds the shapes with the most eager `seconds`."""
    before = sum(seconds.values())
    shapes = list(held)
    for shape in sorted(seconds, key=lambda shape: (-seconds[shape], shape)):
        enough = seconds[shape] >= MIN_SAVED * before > 0 and len(shapes) - len(held) < limits.max_new
        if enough and shape not in held and limits.allow((*shapes, shape)):
            shapes.append(shape)
    added = [f"{_name(shape)} ({seconds[shape] / before:.1%})" for shape in shapes[len(held) :]]
    if not added:
        return None
    return CapturePlan(
        shapes=_sorted(shapes),
        seconds_before=before,
        seconds_after=before,
        optimality_gap=1.0,
        rationale="no captured call was measured yet; starting with the most decoder time: " + ", ".join(added),
    )


def _plan(grid: CallGrid, held: list[Shape], shapes: tuple[Shape, ...], bound: float) -> CapturePlan | None:
    """Returns the plan of a set without its least useful shapes, or None if it saves too little."""
    before = grid.seconds(held)
    shapes = min(_prune(grid, held, shapes, before), (), key=grid.seconds)
    after = grid.seconds(shapes)
    if before <= 0 or before - after < MIN_SAVED * before:
        return None
    calls_of, gap = grid.calls_by_shape(shapes), (after - bound) / before
    added = []
    for shape in sorted(set(shapes) - set(held)):
        without = grid.seconds(each for each in shapes if each != shape) - after
        share = f"{calls_of[shape] / grid.call_count:.1%} of calls, {without / before:.1%} more time without it"
        added.append(f"{_name(shape)} ({share})")
    dropped = [_name(shape) for shape in sorted(set(held) - set(shapes))]
    why = f"saves {(before - after) / before:.1%} of decoder time, at most {gap:.1%} from the optimum"
    if added:
        why += "; new: " + ", ".join(added[:2]) + (f" and {len(added) - 2} more" if len(added) > 2 else "")
    if dropped:
        why += "; dropped: " + (", ".join(dropped) if len(dropped) <= 4 else f"{len(dropped)} shapes")
    return CapturePlan(
        shapes=_sorted(shapes), seconds_before=before, seconds_after=after, optimality_gap=gap, rationale=why
    )


def _prune(grid: CallGrid, held: list[Shape], shapes: tuple[Shape, ...], before: float) -> tuple[Shape, ...]:
    """Drops rare and new shapes, least valuable first, while that costs less than `RARE` of the time."""
    while True:
        calls_of, seconds = grid.calls_by_shape(shapes), grid.seconds(shapes)
        droppable = [shape for shape in shapes if shape not in held or calls_of[shape] < RARE * grid.call_count]
        rests = [tuple(each for each in shapes if each != shape) for shape in droppable]
        rest = min(rests, key=lambda rest: (grid.seconds(rest), rest), default=shapes)
        if rest == shapes or grid.seconds(rest) - seconds >= RARE * before:
            return shapes
        shapes = rest


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


def capture_cost(shape: Shape, known: Mapping[Shape, float]) -> float:
    """Returns an upper bound of the cost to capture a shape, in the unit of `known`. Raises ValueError if it is empty.

    The cost is assumed to grow with rows * frames, at most proportionally, so each known cost gives a bound.
    """
    if shape in known:
        return known[shape]
    area = shape[0] * shape[1]
    return min(cost * max(1.0, area / (r * f)) for (r, f), cost in known.items())


def _sorted(shapes: Iterable[Shape]) -> tuple[CaptureShape, ...]:
    return tuple(CaptureShape(rows=r, frames=f) for r, f in sorted(shapes))


def _name(shape: Shape) -> str:
    return f"{shape[0]}x{shape[1]}"


# Times of captured and eager calls --------------------------------------------------------------------------------


def padded_shape(captured: Iterable[Shape], wanted: Shape) -> Shape | None:
    """Returns the captured shape that a call is padded to, or None if no shape fits and it runs eagerly."""
    holding = [shape for shape in captured if shape[0] >= wanted[0] and shape[1] >= wanted[1]]
    return min(holding, key=rank, default=None)


def mean_times(
    calls: Iterable[CallStats], current: Sequence[Shape]
) -> tuple[dict[Shape, MeanTime], dict[Shape, MeanTime]]:
    """Returns the mean times of eager and of captured calls, by the shape that was computed.

    Skips padded calls that the current shapes would not pad: they were computed at an unknown earlier shape.
    """
    sums: tuple[dict[Shape, tuple[int, float]], dict[Shape, tuple[int, float]]] = ({}, {})
    for call in calls:
        wanted: Shape = (call.rows, call.frames)
        shape = padded_shape(current, wanted) if call.result == "padded" else wanted
        if shape is None or (call.result == "padded" and shape == wanted) or call.count <= 0:
            continue
        kind = sums[call.result != "eager"]
        count, seconds = kind.get(shape, (0, 0.0))
        kind[shape] = count + call.count, seconds + call.seconds
    eager, captured = ({shape: MeanTime(n, total / n) for shape, (n, total) in kind.items()} for kind in sums)
    return eager, captured


def estimate_times(
    eager: Mapping[Shape, MeanTime], captured: Mapping[Shape, MeanTime], rows: Sequence[int], frames: Sequence[int]
) -> TimeGrid | None:
    """Returns the times on the grid of ascending `rows` and `frames`, or None with too little data.

    Without a captured call the gain of capturing is unknown; without calls of different shapes, the cost of padding.
    """
    fit = _fit(eager, captured) if captured else None
    if fit is None:
        return None
    return TimeGrid(*(_grid(fit, kind, measured, rows, frames) for kind, measured in enumerate((eager, captured))))


def _grid(
    fit: _Fit, captured: int, measured: Mapping[Shape, MeanTime], rows: Sequence[int], frames: Sequence[int]
) -> _Table:
    """Returns measured times, and in between the fit, clamped to the measured times of smaller and larger shapes."""
    known = {shape: mean.seconds for shape, mean in measured.items() if mean.count >= FULL_WEIGHT_CALLS}
    low, high = _bounds(known, rows, frames)
    # Two contradicting means (the larger shape was faster) are averaged.
    level = {
        (r, f): (low[j][i] + high[j][i]) / 2
        for j, f in enumerate(frames)
        for i, r in enumerate(rows)
        if (r, f) in known
    }
    low, high = _bounds(level, rows, frames)
    return [
        [min(max(fit((r, f), captured), low[j][i]), high[j][i]) for i, r in enumerate(rows)]
        for j, f in enumerate(frames)
    ]


def _bounds(known: Mapping[Shape, float], rows: Sequence[int], frames: Sequence[int]) -> tuple[_Table, _Table]:
    """Returns, for each grid shape, the largest known value of the shapes within it and the least of those around."""

    def sweep(rows: Sequence[int], frames: Sequence[int], choose: Callable[..., float], start: float) -> _Table:
        lines, line = [], [start] * len(rows)
        for f in frames:
            values = (choose(known.get((r, f), start), before) for r, before in zip(rows, line, strict=True))
            line = list(accumulate(values, choose))
            lines.append(line)
        return lines

    above = sweep(rows[::-1], frames[::-1], min, math.inf)
    return sweep(rows, frames, max, -math.inf), [line[::-1] for line in above[::-1]]


_Table = list[list[float]]
"""Seconds indexed [frames][rows]."""

_Fit = Callable[[Shape, int], float]
"""Seconds of a call by its shape and whether it is captured."""

_FORMS = ((0, 1, 2), (0, 1, 2, 3), (0, 1, 4, 5))
"""Columns of a fit (see `_columns`), simplest first."""


def _columns(shape: Shape, captured: int) -> tuple[float, ...]:
    """Returns the regressors: an intercept and the work of either kind, the work and the frames of both."""
    work = float(shape[0] * shape[1])
    kind = (0.0, 1.0) if captured else (1.0, 0.0)
    return (*kind, work, float(shape[1]), *(each * work for each in kind))


def _fit(eager: Mapping[Shape, MeanTime], captured: Mapping[Shape, MeanTime]) -> _Fit | None:
    """Returns the fit with the best Bayesian information criterion, by weighted nonnegative least squares.

    Nonnegative coefficients make times nondecreasing in the shape.
    """
    points = [(shape, kind, mean) for kind, means in enumerate((eager, captured)) for shape, mean in means.items()]
    weights = [float(min(mean.count, FULL_WEIGHT_CALLS)) for _, _, mean in points]
    values = [mean.seconds for _, _, mean in points]
    total, best = sum(weights), None
    # Measurements are not more precise than a ten-thousandth.
    precision = 1e-8 * sum(w * y * y for w, y in zip(weights, values, strict=True)) / total
    for form in (form if eager else form[1:] for form in _FORMS):
        if best is not None and len(points) < len(form) + 2:
            continue
        table = [[_columns(shape, kind)[column] for column in form] for shape, kind, _ in points]
        if (solved := _least_squares(table, values, weights)) is None:
            continue
        error, coefficients = solved
        score = len(points) * math.log(max(error / total, precision, 1e-300)) + len(form) * math.log(len(points))
        if best is None or score < best[0]:
            best = score, form, coefficients
    if best is None:
        return None
    _, chosen, factors = best

    def predict(shape: Shape, kind: int) -> float:
        if not (kind or eager):
            return UNKNOWN_SECONDS
        columns = _columns(shape, kind)
        return sum(a * columns[column] for a, column in zip(factors, chosen, strict=True))

    return predict


def _least_squares(
    table: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> tuple[float, list[float]] | None:
    """Returns the error and solution of exact weighted nonnegative least squares; None if it is not unique.

    With few parameters it tries each active set (parameters fixed at zero) and keeps the best feasible one.
    """
    size = range(len(table[0]))
    data = list(zip(table, values, weights, strict=True))
    normal = [[sum(w * line[a] * line[b] for line, _, w in data) for b in size] for a in size]
    right = [sum(w * line[a] * y for line, y, w in data) for a in size]
    if _solve(normal, right) is None:
        return None
    best: tuple[float, list[float]] | None = None
    for free in (chosen for n in range(len(size) + 1) for chosen in combinations(size, n)):
        part = _solve([[normal[a][b] for b in free] for a in free], [right[a] for a in free])
        if part is None or min(part, default=0.0) < 0:
            continue
        solved = [0.0] * len(size)
        for at, value in zip(free, part, strict=True):
            solved[at] = value
        error = sum(w * (y - sum(a * x for a, x in zip(solved, line, strict=True))) ** 2 for line, y, w in data)
        if best is None or error < best[0]:
            best = error, solved
    return best


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """Solves a small symmetric system by Gaussian elimination; None if it is singular."""
    size = len(right)
    scale = [math.sqrt(matrix[a][a]) for a in range(size)]
    if not all(scale):
        return None
    # After scaling to a unit diagonal, a pivot is the fraction of a column that the others do not explain.
    work = [[matrix[a][b] / (scale[a] * scale[b]) for b in range(size)] + [right[a] / scale[a]] for a in range(size)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda line: abs(work[line][at]))
        if abs(work[pivot][at]) < 1e-9:
            return None
        work[at], work[pivot] = work[pivot], work[at]
        for line in range(size):
            if line != at:
                factor = work[line][at] / work[at][at]
                work[line] = [x - factor * y for x, y in zip(work[line], work[at], strict=True)]
    return [work[a][size] / work[a][a] / scale[a] for a in range(size)]
